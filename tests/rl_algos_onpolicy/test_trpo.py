import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar
from unittest import mock

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from rl_algos_onpolicy import TRPO, OnPolicyActor, OnPolicyActorConfig, TRPOConfig
from rl_core.actor import Actor
from rl_core.algorithm import PolicyLossAddOn
from rl_core.batch import PREPARED_COLUMNS, ReplayBatch, Rollout, RolloutBatch
from rl_core.config import Linear, Scheduled
from rl_core.errors import ConfigError, NonFiniteError
from rl_core.gradients.trust_region import constrained_step
from rl_core.nn.distributions import Distribution
from rl_core.nn.torso import CoreKind
from rl_core.spaces import Space
from rl_testing.algorithms import AlgorithmSuite
from rl_testing.rollouts import make_batch, make_rollout
from rl_testing.stateful import check_same_state, copy_state
from rl_testing.toy import ToyActor

VECTOR = spaces.Box(-1.0, 1.0, (3,), np.float32)
BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)


class Temperature(PolicyLossAddOn):
    """Pulls the entropy towards a learned level."""

    def __init__(self) -> None:
        super().__init__()
        self.level = nn.Parameter(torch.tensor(0.5))

    def compute_loss_term(
        self,
        batch: RolloutBatch | ReplayBatch,
        distribution: Distribution,
        info: Mapping[str, Tensor],
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        term = (distribution.entropy().mean() - self.level).square()
        return term, {"loss/temperature": term}


class TestTRPO(AlgorithmSuite):
    def make_algorithm(self, seed: int) -> TRPO:
        torch.manual_seed(seed)
        config = OnPolicyActorConfig(hidden_sizes=(8,), normalize_observations=True)
        return TRPO(OnPolicyActor(VECTOR, BOX, config), TRPOConfig())


class TestRecurrentTRPO(AlgorithmSuite):
    has_compile_test: ClassVar[bool] = False

    def make_algorithm(self, seed: int) -> TRPO:
        return _trpo(TRPOConfig(max_grad_norm=0.5), "lstm", seed=seed)


class TestTRPOWithAnAddOn(AlgorithmSuite):
    is_smooth: ClassVar[bool] = False  # the policy is a constant of the loss
    has_compile_test: ClassVar[bool] = False

    def make_algorithm(self, seed: int) -> TRPO:
        torch.manual_seed(seed)
        actor = OnPolicyActor(VECTOR, spaces.Discrete(3), OnPolicyActorConfig(hidden_sizes=(8,)))
        return TRPO(actor, TRPOConfig(), add_ons=Temperature())


def _trpo(
    config: TRPOConfig | None = None,
    memory: CoreKind = "none",
    space: Space = BOX,
    seed: int = 0,
) -> TRPO:
    torch.manual_seed(seed)
    options = OnPolicyActorConfig(
        hidden_sizes=(8,),
        recurrent_net=memory,
        recurrent_hidden_size=None if memory == "none" else 4,
    )
    return TRPO(OnPolicyActor(VECTOR, space, options), config)


def _rollout(algorithm: TRPO, seed: int = 1) -> Rollout:
    return make_rollout(algorithm, seed, num_steps=16)


def _mean_kl(old: Actor, new: Actor, rollout: Rollout) -> float:
    with torch.no_grad():
        before, after = (
            actor.distribution(rollout.observation, rollout.state, rollout.episode_start)[0]
            for actor in (old, new)
        )
        return float(before.kl_divergence(after)[rollout.valid].mean())


@pytest.mark.parametrize("memory", ["none", "gru"])
@pytest.mark.parametrize(
    "space",
    [BOX, spaces.Discrete(3), spaces.MultiDiscrete([3, 2]), spaces.MultiBinary(2)],
    ids=["box", "discrete", "multi_discrete", "multi_binary"],
)
@pytest.mark.parametrize("max_kl", [1e-3, 0.05])
def test_no_step_leaves_the_trust_region(max_kl: float, space: Space, memory: CoreKind) -> None:
    for seed in range(3):
        algorithm = _trpo(TRPOConfig(max_kl=max_kl), memory, space, seed)
        rollout = _rollout(algorithm, seed)
        frozen = copy.deepcopy(algorithm.actor)
        step = algorithm.policy_step(make_batch(algorithm, rollout))
        assert step.fraction > 0.0
        kl = _mean_kl(frozen, algorithm.actor, rollout)
        assert 0.1 * max_kl < kl <= max_kl * (1.0 + 1e-4)  # rounding of another order of sums
        assert kl == pytest.approx(float(step.kl), rel=1e-3)
        assert float(step.kl) <= max_kl
        assert float(step.loss) < float(step.loss_before)


def test_the_options_of_the_step_reach_it() -> None:
    algorithm = _trpo(
        TRPOConfig(max_kl=0.25, cg_steps=3, cg_damping=0.2, num_backtracks=4, backtrack_ratio=0.5)
    )
    batch = make_batch(algorithm, _rollout(algorithm))
    with mock.patch("rl_algos_onpolicy.trpo.constrained_step", wraps=constrained_step) as step:
        algorithm.policy_step(batch)
    arguments, options = step.call_args
    assert arguments[2] == 0.25
    names = ("num_cg_steps", "damping", "num_backtracks", "backtrack_ratio")
    assert [options[name] for name in names] == [3, 0.2, 4, 0.5]


def test_a_frozen_part_of_the_policy_stays() -> None:
    algorithm = _trpo()
    spread = algorithm.actor.get_parameter("action_head.log_std").requires_grad_(False)
    weight = algorithm.actor.get_parameter("action_head.linear.weight")
    before = spread.clone(), weight.clone()
    algorithm.policy_step(make_batch(algorithm, _rollout(algorithm)))
    assert torch.equal(spread, before[0])
    assert not torch.equal(weight, before[1])


@pytest.mark.parametrize(("rate", "moves"), [(1e-3, True), (Linear(1e-3, 0.0), True), (0.0, False)])
def test_only_a_run_that_just_evaluates_leaves_the_policy_alone(
    rate: Scheduled, moves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rl_algos_onpolicy.trpo.whole_batch", lambda storage: storage)
    algorithm = _trpo(TRPOConfig(value_learning_rate=rate))
    algorithm.schedules.set_progress(1.0)
    weight = algorithm.actor.get_parameter("action_head.linear.weight")
    before = weight.clone()
    algorithm.before_epochs(make_batch(algorithm, _rollout(algorithm)))  # type: ignore[arg-type]  # see above
    assert torch.equal(weight, before) != moves


def test_the_surrogate_by_hand() -> None:
    algorithm = _trpo(TRPOConfig(entropy_coef=0.3), space=spaces.Discrete(3))
    rollout = _rollout(algorithm)
    batch = make_batch(algorithm, rollout)
    step = algorithm.policy_step(batch)
    now = algorithm.actor.evaluate_actions(batch.observation, batch.action, {})
    kept = batch.mask.bool()
    ratio = (now.log_prob - batch.log_prob).exp()
    expected = -(ratio * batch.advantage)[kept].mean() - 0.3 * now.entropy[kept].mean()
    torch.testing.assert_close(step.loss.float(), expected.detach())


def test_the_policys_step_leaves_the_value_function_alone_and_the_other_way_round() -> None:
    algorithm = _trpo()
    batch = make_batch(algorithm, _rollout(algorithm))
    actor = algorithm.actor

    def part(names: tuple[str, ...]) -> object:
        return copy_state({name: dict(actor.get_submodule(name).state_dict()) for name in names})

    policy, value = part(actor.policy_modules), part(actor.value_modules)
    algorithm.policy_step(batch)
    check_same_state(part(actor.value_modules), value)  # type: ignore[arg-type]  # a state
    with pytest.raises(AssertionError):
        check_same_state(part(actor.policy_modules), policy)  # type: ignore[arg-type]
    policy = part(actor.policy_modules)
    algorithm.gradient_step(batch)
    check_same_state(part(actor.policy_modules), policy)  # type: ignore[arg-type]
    with pytest.raises(AssertionError):
        check_same_state(part(actor.value_modules), value)  # type: ignore[arg-type]
    algorithm.read_metrics()  # the parameters are still tied to their vectors


def test_a_policy_that_cannot_improve_stays() -> None:
    algorithm = _trpo()
    batch = make_batch(algorithm, _rollout(algorithm))
    before = copy_state(dict(algorithm.get_weights().tensors))
    step = algorithm.policy_step(replace(batch, advantage=torch.zeros_like(batch.advantage)))
    assert step.fraction == 0.0
    check_same_state(dict(algorithm.get_weights().tensors), before)


def test_a_surrogate_that_is_not_finite_moves_nothing_and_is_reported() -> None:
    algorithm = _trpo()
    batch = make_batch(algorithm, _rollout(algorithm))
    before = copy_state(dict(algorithm.get_weights().tensors))
    with pytest.raises(NonFiniteError, match="left as it was"):
        algorithm.policy_step(replace(batch, advantage=batch.advantage * torch.nan))
    check_same_state(dict(algorithm.get_weights().tensors), before)


@pytest.mark.parametrize("memory", ["none", "gru"])
def test_the_curvature_of_fewer_samples_gives_another_step_within_the_region(
    memory: CoreKind,
) -> None:
    steps = {}
    for stride in (1, 3):
        algorithm = _trpo(TRPOConfig(curvature_every=stride), memory)
        batch = make_batch(algorithm, _rollout(algorithm))
        steps[stride] = algorithm.policy_step(batch)
    assert steps[3].fraction > 0.0
    assert float(steps[3].kl) <= 0.01
    assert float(steps[3].kl) != float(steps[1].kl)


@pytest.mark.parametrize("memory", ["none", "gru"])
def test_the_curvature_is_that_of_every_third_sample(
    memory: CoreKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}

    def note(objective: Any, start: Any, max_kl: float, **options: Any) -> Any:
        seen.update(objective=objective, start=start, divergence=options["divergence"])
        return constrained_step(objective, start, max_kl, **options)

    monkeypatch.setattr("rl_algos_onpolicy.trpo.constrained_step", note)
    algorithm = _trpo(TRPOConfig(curvature_every=3), memory)
    batch = make_batch(algorithm, _rollout(algorithm))
    algorithm.policy_step(batch)
    at = {name: value.detach() + 0.1 for name, value in seen["start"].items()}
    rows = [0, 3] if memory == "gru" else [*range(0, len(batch.mask), 3)]

    def pick(column: Tensor) -> Tensor:
        return column[:, rows] if memory == "gru" else column[rows]

    picked = tree_map_only(Tensor, pick, replace(batch, state={}))
    picked = replace(picked, state={name: state[rows] for name, state in batch.state.items()})
    divergence = float(seen["divergence"](at))
    assert divergence == pytest.approx(float(seen["objective"](at, picked)[1]), rel=1e-6)
    assert divergence != pytest.approx(float(seen["objective"](at)[1]), rel=1e-3)


def test_an_add_ons_term_joins_the_surrogate_and_its_own_parameters_are_learned() -> None:
    torch.manual_seed(0)
    actor = OnPolicyActor(VECTOR, BOX, OnPolicyActorConfig(hidden_sizes=(8,)))
    add_on = Temperature()
    algorithm = TRPO(actor, TRPOConfig(), add_ons=add_on)
    batch = make_batch(algorithm, _rollout(algorithm))
    still = replace(batch, advantage=torch.zeros_like(batch.advantage))

    def distance() -> float:
        policy, _ = actor.distribution(batch.observation, {})
        return abs(policy.entropy().mean().item() - 0.5)

    before = distance()
    assert algorithm.policy_step(still).fraction > 0.0
    assert add_on.level.item() == 0.5
    assert distance() < before
    algorithm.gradient_step(batch)
    assert add_on.level.item() > 0.5


class Constant(PolicyLossAddOn):
    """A large term that has nothing to do with the policy."""

    def compute_loss_term(
        self,
        batch: RolloutBatch | ReplayBatch,
        distribution: Distribution,
        info: Mapping[str, Tensor],
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        return torch.tensor(1e6), {}


class Faint(Temperature):
    def compute_loss_term(
        self,
        batch: RolloutBatch | ReplayBatch,
        distribution: Distribution,
        info: Mapping[str, Tensor],
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        term, metrics = super().compute_loss_term(batch, distribution, info)
        return 0.01 * term, metrics


@pytest.mark.parametrize("swap", [False, True])
def test_a_large_term_of_one_add_on_does_not_swallow_that_of_another(swap: bool) -> None:
    torch.manual_seed(0)
    actor = OnPolicyActor(VECTOR, BOX, OnPolicyActorConfig(hidden_sizes=(8,)))
    add_ons = [Constant(), Faint()]
    algorithm = TRPO(actor, add_ons=add_ons[::-1] if swap else add_ons)
    batch = make_batch(algorithm, _rollout(algorithm))
    still = replace(batch, advantage=torch.zeros_like(batch.advantage))
    assert algorithm.policy_step(still).fraction > 0.0


def test_a_large_term_that_the_policy_does_not_change_leaves_the_step_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rl_algos_onpolicy.trpo.whole_batch", lambda storage: storage)
    weights, metrics = [], []
    for add_ons in ([], [Constant()]):
        torch.manual_seed(0)
        actor = OnPolicyActor(VECTOR, BOX, OnPolicyActorConfig(hidden_sizes=(8,)))
        algorithm = TRPO(actor, TRPOConfig(entropy_coef=0.5), add_ons=add_ons)
        batch = make_batch(algorithm, _rollout(algorithm))
        metrics.append(algorithm.before_epochs(batch))  # type: ignore[arg-type]  # see above
        weights.append(actor.action_head.state_dict())
    assert metrics[1]["policy/step_fraction"] > 0.0
    for name, value in weights[0].items():
        assert torch.equal(weights[1][name], value)
    log_prob = actor.distribution(batch.observation, {})[0].log_prob(batch.action)
    gains = (log_prob - batch.log_prob).exp() * batch.advantage
    term = -gains[batch.mask.bool()].mean()
    for each in metrics:
        assert each["loss/policy"].item() == pytest.approx(term.item(), abs=1e-6)
        improvement = each["loss/policy_improvement"].item()
        assert improvement == pytest.approx(metrics[0]["loss/policy_improvement"].item(), rel=1e-5)


class Quiet(PolicyLossAddOn):
    """Adds nothing, but logs; what it has of parameters does not learn."""

    calls = 0

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(2, 2).requires_grad_(False)

    def compute_loss_term(
        self,
        batch: RolloutBatch | ReplayBatch,
        distribution: Distribution,
        info: Mapping[str, Tensor],
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        self.calls += 1
        return torch.zeros(()), {"loss/quiet": distribution.entropy().mean()}


def test_only_what_learns_is_part_of_the_value_functions_loss() -> None:
    torch.manual_seed(0)
    actor = OnPolicyActor(VECTOR, BOX, OnPolicyActorConfig(hidden_sizes=(8,)))
    quiet = Quiet()
    algorithm = TRPO(actor, add_ons=[quiet, Temperature()])
    batch = make_batch(algorithm, _rollout(algorithm))
    metrics = algorithm.compute_loss(batch).metrics
    assert quiet.calls == 0
    assert {"loss/value", "loss/temperature"} == set(metrics)


def test_an_add_on_that_does_not_learn_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    actor = OnPolicyActor(VECTOR, BOX, OnPolicyActorConfig(hidden_sizes=(8,)))
    algorithm = TRPO(actor, add_ons=Quiet())
    batch = make_batch(algorithm, _rollout(algorithm))
    monkeypatch.setattr("rl_algos_onpolicy.trpo.whole_batch", lambda storage: storage)
    metrics = algorithm.before_epochs(batch)  # type: ignore[arg-type]  # see above
    entropy = actor.distribution(batch.observation, {})[0].entropy().mean()
    assert metrics["loss/quiet"].item() == pytest.approx(entropy.item())


def test_the_behaviors_policy_travels_with_the_batch() -> None:
    algorithm = _trpo()
    batch = make_batch(algorithm, _rollout(algorithm))
    columns, _ = algorithm.prepare(_rollout(algorithm))
    kept = {name for name in columns if name not in PREPARED_COLUMNS}
    assert kept == set(batch.extras) == {"old_policy.mean", "old_policy.log_std"}


def test_an_actor_that_does_not_name_its_policy_is_refused() -> None:
    class Silent(ToyActor):
        @property
        def policy_modules(self) -> tuple[str, ...]:
            return ()

    with pytest.raises(ConfigError, match="Silent does not say which of its modules that is"):
        TRPO(Silent(VECTOR, BOX))


def test_shared_parameters_are_refused() -> None:
    config = OnPolicyActorConfig(shared_policy_value_network=True)
    with pytest.raises(ConfigError, match=r"share policy_torso.*give each its own"):
        TRPO(OnPolicyActor(VECTOR, BOX, config))
    extractor = nn.Linear(3, 4)
    with pytest.raises(ConfigError, match=r"share policy_torso\.encoder"):
        TRPO(OnPolicyActor(VECTOR, BOX, feature_extractor=extractor))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_kl": 0.0}, "max_kl must be a finite number above 0"),
        ({"cg_steps": 0}, "cg_steps must be"),
        ({"cg_damping": -0.1}, "cg_damping must be"),
        ({"backtrack_ratio": 1.5}, "backtrack_ratio must be"),
        ({"backtrack_ratio": 0.0}, "backtrack_ratio must be"),
        ({"backtrack_ratio": 1.0}, r"backtrack_ratio must be a number in \(0, 1\)"),
        ({"advantage_estimator": "td", "gae_lambda": 0.5}, "gae_lambda has no effect"),
        ({"curvature_every": 0}, "curvature_every must be"),
        (
            {"num_minibatches": 4, "minibatch_size": 128},
            "num_minibatches has no effect with minibatch_size",
        ),
        ({"entropy_method": "max"}, "normalize_advantage would"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TRPOConfig(**options)  # type: ignore[arg-type]  # by name
