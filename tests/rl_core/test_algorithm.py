import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rl_core.actor import Actor
from rl_core.algorithm import (
    Algorithm,
    DefaultRecipe,
    EnvSpec,
    PolicyLossAddOn,
    UpdateSchedule,
    run_update,
)
from rl_core.batch import (
    PREPARED_COLUMNS,
    ReplayBatch,
    Rollout,
    RolloutBatch,
    Transition,
)
from rl_core.config import ComponentSpec, Config, Linear, ScheduledNonNegative
from rl_core.errors import CheckpointError, ConfigError
from rl_core.gradients import LossOutput, Noise, OptimizerConfig, ParameterGroup, masked_mean
from rl_core.nn.distributions import DiagonalGaussian, Distribution
from rl_core.nn.normalization import RunningNorm
from rl_core.storage import HasRollouts, TensorSpec
from rl_core.types import Observation, State
from rl_testing.algorithms import AlgorithmSuite
from rl_testing.rollouts import make_batch, make_rollout
from rl_testing.stateful import check_same_state, copy_state


class LinearActor(Actor):
    """A Gaussian around a linear function of the normalized observation."""

    def __init__(self, size: int = 2) -> None:
        box = spaces.Box(-1.0, 1.0, (size,), np.float32)
        super().__init__(box, box)
        self.norm = RunningNorm((size,))
        self.linear = nn.Linear(size, size)

    def distribution(
        self, observation: Observation, state: State, episode_start: Tensor | None = None
    ) -> tuple[Distribution, State]:
        assert isinstance(observation, Tensor)
        mean = self.linear(self.norm(observation))
        return DiagonalGaussian(mean, torch.zeros_like(mean)), {}

    @property
    def action_spec(self) -> TensorSpec:
        return TensorSpec((self.linear.out_features,), torch.float32)

    def to_env_action(self, action: Tensor) -> Tensor:
        return action.clamp(-1.0, 1.0)

    def draw_noise(self, batch_shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return torch.randn(*batch_shape, self.linear.out_features, generator=generator)

    def update_normalization(self, observation: Observation, mask: Tensor | None = None) -> None:
        assert isinstance(observation, Tensor)
        self.norm.update(observation, mask)


@dataclass(frozen=True, kw_only=True, slots=True)
class ReinforceConfig(Config):
    learning_rate: ScheduledNonNegative = 0.01
    noise_scale: ScheduledNonNegative = 0.1
    bound: ScheduledNonNegative | None = None
    num_epochs: int = 1
    stop_at: float | None = None


class Reinforce(Algorithm[ReinforceConfig, RolloutBatch]):
    """Weighs log-probabilities by rewards that noise shakes."""

    takes_add_ons: ClassVar[bool] = True

    @property
    def schedule(self) -> UpdateSchedule:
        return UpdateSchedule(num_epochs=self.config.num_epochs, num_minibatches=2)

    @classmethod
    def default_recipe(cls, env: EnvSpec) -> DefaultRecipe:
        return DefaultRecipe(
            ComponentSpec("actor", "on-policy", {}),
            ComponentSpec("storage", "rollout", {"num_steps": 4}),
            env={"num_envs": 2},
            algorithm={"learning_rate": 0.02},
            trainer={"scale_rewards": True},
        )

    def parameter_groups(self) -> tuple[ParameterGroup, ...]:
        bound = None if self.config.bound is None else "bound"
        sgd = OptimizerConfig(name="sgd")
        return (
            ParameterGroup(
                name="actor", modules=("actor", "add_ons"), max_grad_norm=bound, optimizer=sgd
            ),
        )

    def draw_update_noise(self, batch: RolloutBatch) -> Noise:
        return {"shake": torch.randn(batch.log_prob.shape, generator=self.generator)}

    def prepare(self, rollout: Rollout) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
        columns = dict.fromkeys(PREPARED_COLUMNS, rollout.reward)
        return columns, {"value/mean_reward": rollout.reward.mean()}

    def loss(self, batch: RolloutBatch, noise: Noise) -> LossOutput:
        distribution, _ = self.actor.distribution(batch.observation, batch.state)
        log_prob = distribution.log_prob(batch.action)
        shake = self.hyper["noise_scale"] * noise["shake"]
        policy = -masked_mean(log_prob * (batch.advantage + shake), batch.mask)
        metrics = {"loss/policy": policy}
        added, more = self.add_on_terms(batch, distribution, metrics)
        stop = None
        if self.config.stop_at is not None:
            stop = batch.advantage[0] >= self.config.stop_at
        return LossOutput(policy + added, {**metrics, **more}, {"log_prob": log_prob}, stop)


class Attraction(PolicyLossAddOn):
    """Pulls the mean towards a learned point."""

    def __init__(self, name: str = "attraction") -> None:
        super().__init__()
        self.name = name
        self.point = nn.Parameter(torch.ones(2))
        self.setups: list[tuple[Actor, torch.device]] = []
        self.seen: list[set[str]] = []

    def setup(self, actor: Actor, device: torch.device) -> None:
        self.setups.append((actor, device))

    def compute_loss_term(
        self,
        batch: RolloutBatch | ReplayBatch,
        distribution: Distribution,
        info: Mapping[str, Tensor],
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        self.seen.append(set(info))
        assert isinstance(batch, RolloutBatch)
        distances = (distribution.mode() - self.point).square().mean(-1)
        distance = masked_mean(distances, batch.mask)
        return distance, {f"loss/{self.name}": distance}


def _algorithm(
    config: ReinforceConfig | None = None, add_ons: object = (), seed: int = 0
) -> Reinforce:
    torch.manual_seed(seed)
    return Reinforce(LinearActor(), config or ReinforceConfig(), add_ons=add_ons)  # type: ignore[arg-type]  # whatever the test gives


class TestReinforce(AlgorithmSuite):
    has_compile_test: ClassVar[bool] = False

    def make_algorithm(self, seed: int) -> Reinforce:
        return _algorithm(ReinforceConfig(bound=0.5), seed=seed)


class TestReinforceWithAnAddOn(AlgorithmSuite):
    has_compile_test: ClassVar[bool] = False

    def make_algorithm(self, seed: int) -> Reinforce:
        return _algorithm(add_ons=Attraction(), seed=seed)


class RecordingStorage(HasRollouts):
    """Hands out a made-up rollout and writes down what it is asked."""

    def __init__(self, rollout: Rollout, batches: list[RolloutBatch]) -> None:
        self.calls: list[str] = []
        self.attached: dict[str, Tensor] = {}
        self._rollout = rollout
        self._batches = batches

    def rollout(self) -> Rollout:
        self.calls.append("rollout")
        return self._rollout

    def attach(self, columns: Mapping[str, Tensor]) -> None:
        self.calls.append("attach")
        self.attached = dict(columns)

    def before_gradients(self) -> None:
        self.calls.append("before_gradients")

    def generate_batches(
        self, num_minibatches: int | None, minibatch_size: int | None, num_epochs: int = 1
    ) -> Iterator[RolloutBatch]:
        self.calls.append(f"batches {num_minibatches} {minibatch_size}")
        yield from self._batches

    def after_gradients(self, batch: object, info: Mapping[str, Tensor]) -> None:
        self.calls.append(f"after_gradients {sorted(info)}")

    def after_update(self) -> None:
        self.calls.append("after_update")

    def insert_transition(self, transition: Transition) -> None:
        raise NotImplementedError

    def sample_indices(
        self, num_minibatches: int | None, minibatch_size: int | None
    ) -> Iterator[Tensor]:
        raise NotImplementedError

    def gather(self, indices: Tensor) -> Iterator[RolloutBatch]:
        raise NotImplementedError

    def reset(self) -> None:
        raise NotImplementedError

    def __len__(self) -> int:
        return 0


def _storage(algorithm: Reinforce, num_batches: int = 2) -> RecordingStorage:
    rollout = make_rollout(algorithm, seed=1)
    batches = [make_batch(algorithm, make_rollout(algorithm, seed=k)) for k in range(num_batches)]
    return RecordingStorage(rollout, batches)


def test_an_update_asks_the_storage_in_this_order() -> None:
    algorithm = _algorithm(ReinforceConfig(num_epochs=2))
    storage = _storage(algorithm)
    metrics = run_update(algorithm, storage)
    epoch = ["batches 2 None", *2 * ["after_gradients ['log_prob']"]]
    assert storage.calls == [
        "rollout",
        "attach",
        "before_gradients",
        *epoch,
        *epoch,
        "after_update",
    ]
    assert set(storage.attached) == set(PREPARED_COLUMNS)
    assert metrics == {"value/mean_reward": pytest.approx(storage._rollout.reward.mean().item())}
    assert algorithm.gradients.count == 4


def test_a_stop_ends_the_update_and_the_next_one_starts_afresh() -> None:
    algorithm = _algorithm(ReinforceConfig(num_epochs=3, stop_at=-1e9))
    storage = _storage(algorithm)
    before = algorithm.named_parameters()["actor.linear.weight"].clone()
    run_update(algorithm, storage)
    assert storage.calls.count("batches 2 None") == 1
    assert torch.equal(algorithm.named_parameters()["actor.linear.weight"], before)
    assert algorithm.read_metrics()["loss/policy"] != 0.0
    run_update(algorithm, storage)
    assert algorithm.read_metrics()["loss/policy"] != 0.0


def test_statistics_take_in_the_valid_rows_after_the_update_but_before_the_first_one() -> None:
    class Observant(Reinforce):
        """Notes how many observations the statistics are of."""

        def prepare(self, rollout: Rollout) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
            self.counts = [self._count()]
            return super().prepare(rollout)

        def loss(self, batch: RolloutBatch, noise: Noise) -> LossOutput:
            self.counts.append(self._count())
            return super().loss(batch, noise)

        def _count(self) -> float:
            assert isinstance(self.actor, LinearActor)
            return self.actor.norm.count.item()

    algorithm = Observant(LinearActor())
    storage = _storage(algorithm)
    run_update(algorithm, storage)
    actor, rollout = algorithm.actor, storage._rollout
    assert isinstance(actor, LinearActor)
    assert isinstance(rollout.observation, Tensor)
    seen = rollout.observation[rollout.valid]
    assert not rollout.valid.all()
    torch.testing.assert_close(actor.norm.mean, seen.double().mean(0))
    assert algorithm.counts == 3 * [len(seen)]
    assert actor.norm.count.item() == len(seen)
    run_update(algorithm, storage)
    assert algorithm.counts == 3 * [len(seen)]  # learned from as it was acted
    assert actor.norm.count.item() == 2 * len(seen)


def test_an_update_at_rate_zero_reports_and_changes_nothing() -> None:
    algorithm = _algorithm(ReinforceConfig(learning_rate=0.0))
    storage = _storage(algorithm)
    before = dict(algorithm.get_weights().tensors)
    run_update(algorithm, storage)
    for name, tensor in algorithm.get_weights().tensors.items():
        assert torch.equal(tensor, before[name]), name
    assert algorithm.read_metrics()["loss/policy"] != 0.0
    assert storage.calls[-1] == "after_update"


def test_fields_that_may_change_become_tensors_and_others_do_not() -> None:
    algorithm = _algorithm(ReinforceConfig(noise_scale=Linear(1.0, 0.0)))
    assert sorted(algorithm.hyper.state_dict()) == ["learning_rate", "noise_scale"]
    assert float(algorithm.hyper["noise_scale"]) == 1.0


def test_a_schedule_that_is_given_while_running_begins_where_the_run_is() -> None:
    algorithm = _algorithm()
    algorithm.schedules.set_progress(0.25)
    algorithm.update_algorithm_parameter("learning_rate", Linear(1.0, 0.0))
    assert float(algorithm.hyper["learning_rate"]) == 0.75


def test_a_value_that_the_config_refuses_is_refused_while_running_too() -> None:
    algorithm = _algorithm()
    with pytest.raises(
        ConfigError, match="learning_rate must be a finite number of at least 0, got -1"
    ):
        algorithm.update_algorithm_parameter("learning_rate", -1.0)
    assert float(algorithm.hyper["learning_rate"]) == pytest.approx(0.01)


@pytest.mark.parametrize("value", ["x", None, True, math.inf])
def test_a_value_that_is_no_number_names_the_parameter(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"^learning_rate: .*got .*; expected"):
        _algorithm().update_algorithm_parameter("learning_rate", value)


def test_an_algorithm_says_what_its_options_and_batches_are() -> None:
    class Silent(Algorithm):  # type: ignore[type-arg]  # what is tested
        schedule = loss = default_recipe = None  # type: ignore[assignment]  # never called

    with pytest.raises(ConfigError, match=r"Silent does not say .* derive it from Algorithm\[My"):
        Silent(LinearActor())


def test_a_hyper_parameter_that_is_not_scheduled_is_named() -> None:
    algorithm = _algorithm()
    with pytest.raises(ConfigError, match="no hyper-parameter 'learning_rat'; did you mean 'lear"):
        algorithm.hyper["learning_rat"]


def test_add_ons_that_would_be_ignored_are_refused() -> None:
    class Plain(Reinforce):
        takes_add_ons = False

    class Nothing(PolicyLossAddOn):
        def compute_loss_term(self, *_: Any) -> tuple[Tensor, dict[str, Tensor]]:
            return torch.zeros(()), {}

    with pytest.raises(ConfigError, match="Plain takes no add-ons; leave add_ons out"):
        Plain(LinearActor(), add_ons=Nothing())


def test_a_config_must_be_a_dataclass() -> None:
    with pytest.raises(ConfigError, match="config: expected ReinforceConfig, got dict"):
        Reinforce(LinearActor(), {"learning_rate": 0.1})  # type: ignore[arg-type]  # the mistake


def test_a_config_of_a_kind_with_more_options_is_refused() -> None:
    class Wider(ReinforceConfig):
        pass

    message = "config: expected ReinforceConfig, got Wider; the class that adds its options says"
    with pytest.raises(ConfigError, match=f"{message} config_type = Wider"):
        Reinforce(LinearActor(), Wider())

    class Owner(Reinforce):
        config_type = Wider

    assert isinstance(Owner(LinearActor(), Wider()).config, Wider)


def test_explicit_parameters_may_be_given_in_part() -> None:
    algorithm = _algorithm()
    batch = make_batch(algorithm, make_rollout(algorithm, seed=1))
    noise = algorithm.draw_update_noise(batch)
    name = "actor.linear.bias"
    moved = {name: algorithm.named_parameters()[name] + 1.0}
    loss = algorithm.compute_loss(batch, noise, moved).loss
    assert loss != algorithm.compute_loss(batch, noise).loss
    everything = {**algorithm.named_parameters(), **moved}
    assert loss == algorithm.compute_loss(batch, noise, everything).loss


def test_update_noise_comes_from_the_algorithms_generator() -> None:
    algorithm = _algorithm()
    batch = make_batch(algorithm, make_rollout(algorithm, seed=1))
    algorithm.generator.manual_seed(5)
    first = algorithm.compute_loss(batch).loss
    assert algorithm.compute_loss(batch).loss != first
    algorithm.generator.manual_seed(5)
    assert algorithm.compute_loss(batch).loss == first


@pytest.mark.parametrize(
    ("add_ons", "got"),
    [
        ([nn.Linear(1, 1)], "Linear"),
        (nn.Linear(1, 1), "Linear"),
        (None, "NoneType"),
        (3, "int"),
        ("attraction-kl", "str"),
        ([Attraction], "type|ABCMeta"),
    ],
)
def test_add_ons_are_checked(add_ons: object, got: str) -> None:
    with pytest.raises(ConfigError, match=f"expected PolicyLossAddOn objects, got ({got})"):
        _algorithm(add_ons=add_ons)


def test_an_add_on_may_stand_alone_or_in_a_list_and_is_set_up_once() -> None:
    for add_ons in (Attraction(), [Attraction()]):
        algorithm = _algorithm(add_ons=add_ons)
        (add_on,) = algorithm.add_ons
        assert isinstance(add_on, Attraction)
        assert add_on.setups == [(algorithm.actor, torch.device("cpu"))]
        run_update(algorithm, _storage(algorithm))
        assert len(add_on.setups) == 1
        assert add_on.seen[0] == {"loss/policy"}


def test_the_terms_of_all_add_ons_are_added_to_the_loss() -> None:
    plain, both = _algorithm(), _algorithm(add_ons=[Attraction("one"), Attraction("other")])
    batch = make_batch(plain, make_rollout(plain, seed=1))
    noise = plain.draw_update_noise(batch)
    output = both.compute_loss(batch, noise)
    term = output.metrics["loss/one"]
    assert term == output.metrics["loss/other"]
    torch.testing.assert_close(output.loss, plain.compute_loss(batch, noise).loss + 2.0 * term)


def test_what_an_add_on_learns_is_in_the_checkpoint() -> None:
    algorithm = _algorithm(add_ons=Attraction())
    run_update(algorithm, _storage(algorithm))
    (add_on,) = algorithm.add_ons
    assert isinstance(add_on, Attraction)
    assert (add_on.point != 1.0).all()
    restored = _algorithm(add_ons=Attraction())
    restored.load_state_dict(algorithm.state_dict())
    (other,) = restored.add_ons
    assert isinstance(other, Attraction)
    assert torch.equal(other.point, add_on.point)


def test_a_state_of_other_networks_is_refused() -> None:
    small = Reinforce(LinearActor(2), ReinforceConfig())
    large = Reinforce(LinearActor(3), ReinforceConfig())
    with pytest.raises(CheckpointError, match=r"'actor\.norm\.mean' should have shape \(3,\)"):
        large.load_state_dict(small.state_dict())


def test_a_state_of_another_optimizer_changes_nothing() -> None:
    one, other = _algorithm(), _algorithm()
    before = copy_state(other.state_dict())
    gradients = cast("dict[str, Any]", one.state_dict()["gradients"])
    with pytest.raises(CheckpointError):
        other.load_state_dict({**one.state_dict(), "gradients": {**gradients, "optimizers": {}}})
    check_same_state(other.state_dict(), before)


def test_an_add_on_is_taken_once_its_algorithm_is_built() -> None:
    add_on = Attraction()
    with pytest.raises(ConfigError, match="one Attraction is there twice"):
        _algorithm(add_ons=[add_on, add_on])

    class Failing(Reinforce):
        def parameter_groups(self) -> tuple[ParameterGroup, ...]:
            raise ConfigError("it cannot be built")

    with pytest.raises(ConfigError, match="it cannot be built"):
        Failing(LinearActor(), add_ons=[add_on])
    _algorithm(add_ons=[add_on])
    with pytest.raises(ConfigError, match="belongs to an algorithm already"):
        _algorithm(add_ons=[add_on])


def test_a_failed_compilation_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = []

    def fail(*arguments: object) -> None:
        tries.append(arguments)
        raise RuntimeError("no compiler")

    monkeypatch.setattr("rl_core.compile.function.trace", fail)
    algorithm = _algorithm()
    batch = make_batch(algorithm, make_rollout(algorithm, seed=1))
    algorithm.compiled.set_mode("auto")
    with pytest.warns(RuntimeWarning, match="no compiler"):
        algorithm.gradient_step(batch)
    algorithm.gradient_step(batch)
    assert len(tries) == 1
    assert algorithm.gradients.count == 2


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("start_steps", -1),
        ("update_after", -1),
        ("update_every", 0),
        ("num_epochs", 0),
        ("num_minibatches", 0),
        ("minibatch_size", 0),
        ("min_samples", 0),
    ],
)
def test_counts_of_a_schedule_are_checked(name: str, value: int) -> None:
    with pytest.raises(ConfigError, match=f"{name} must .*{value}"):
        UpdateSchedule(**{name: value})  # type: ignore[arg-type]  # one is a flag


def test_a_ratio_can_be_kept_for_several_environments() -> None:
    kept = UpdateSchedule(update_every=4, num_minibatches=3, keep_ratio=True)
    # Four transitions at a time, then six of which four would be three minibatches: 4.5.
    assert [kept.batches_per_epoch(num_envs) for num_envs in (1, 2, 3)] == [3, 3, 4]
    assert [kept.batches_per_epoch(3, steps) for steps in (4, 9, 13)] == [5, 4, 5]
    assert UpdateSchedule(update_every=4, num_minibatches=3).batches_per_epoch(3) == 3
    assert UpdateSchedule(minibatch_size=64).batches_per_epoch(3) is None
    with pytest.raises(ConfigError, match="keep_ratio has no effect without update_every"):
        UpdateSchedule(minibatch_size=64, keep_ratio=True)


@pytest.mark.parametrize("num_epochs", [1, 2])
def test_fractions_of_a_ratio_are_carried_over(num_epochs: int) -> None:
    schedule = UpdateSchedule(
        update_every=4, num_minibatches=1, keep_ratio=True, num_epochs=num_epochs
    )
    batches, steps = [], 0
    for _ in range(8):  # five transitions each: one minibatch for every four of 40
        batches.append(schedule.batches_per_epoch(5, steps))
        steps += num_epochs * (batches[-1] or 0)
    assert batches == [1, 1, 1, 2, 1, 1, 1, 2]
