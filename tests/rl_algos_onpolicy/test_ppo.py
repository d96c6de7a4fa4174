import copy
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, get_args

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rl_algos_onpolicy import PPO, OnPolicyActor, OnPolicyActorConfig, PPOConfig
from rl_algos_onpolicy.advantages import normalized_advantage
from rl_algos_onpolicy.config import AdvantageNormalization
from rl_algos_onpolicy.kl import adapted_penalty, kl_penalty_term
from rl_algos_onpolicy.ppo import (
    Surrogate,
    clipped_surrogate_loss,
    clipped_value_loss,
    surrogate_loss,
    value_loss,
)
from rl_core.algorithm import PolicyLossAddOn
from rl_core.batch import ReplayBatch, RolloutBatch
from rl_core.config import Linear
from rl_core.errors import ConfigError
from rl_core.gradients import OptimizerConfig, masked_mean
from rl_core.nn.distributions import Distribution
from rl_testing.algorithms import AlgorithmSuite
from rl_testing.rollouts import make_batch, make_rollout

VECTOR = spaces.Box(-1.0, 1.0, (3,), np.float32)
BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)
ALL = torch.ones(4)
EPSILON = torch.tensor(0.2)

SEED_DEFAULTS = PPOConfig(
    learning_rate=1e-4,
    optimizer=OptimizerConfig(eps=1e-8),
    gamma=0.99,
    num_epochs=4,
    clip_range=0.2,
    num_minibatches=1,
    minibatch_size=None,
    max_grad_norm=0.5,
    entropy_coef=0.01,
    value_loss_coef=0.5,
    use_clipped_value_loss=True,
)
"""What PyTorchRL's PPO does when nothing is said."""


class Centring(PolicyLossAddOn):
    """Keeps the policy near a learned temperature's entropy."""

    def __init__(self) -> None:
        super().__init__()
        self.level = nn.Parameter(torch.tensor(0.5))

    def compute_loss_term(
        self,
        batch: RolloutBatch | ReplayBatch,
        distribution: Distribution,
        info: Mapping[str, Tensor],
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        term = (masked_mean(distribution.entropy(), batch.mask) - self.level).square()
        return term, {"loss/centring": term}


class TestPPO(AlgorithmSuite):
    def make_algorithm(self, seed: int) -> PPO:
        torch.manual_seed(seed)
        actor = OnPolicyActor(VECTOR, spaces.Discrete(3), OnPolicyActorConfig(hidden_sizes=(8,)))
        return PPO(actor, PPOConfig(learning_rate=1e-3))


class TestPPOWithSeedDefaults(AlgorithmSuite):
    has_compile_test: ClassVar[bool] = False

    def make_algorithm(self, seed: int) -> PPO:
        torch.manual_seed(seed)
        config = OnPolicyActorConfig(hidden_sizes=(8,), shared_policy_value_network=True)
        return PPO(OnPolicyActor(VECTOR, BOX, config), SEED_DEFAULTS)


class TestRecurrentPPO(AlgorithmSuite):
    def make_algorithm(self, seed: int) -> PPO:
        torch.manual_seed(seed)
        config = OnPolicyActorConfig(
            hidden_sizes=(8,),
            recurrent_net="gru",
            recurrent_hidden_size=6,
            normalize_observations=True,
        )
        return PPO(OnPolicyActor(VECTOR, BOX, config), PPOConfig(normalize_advantage="batch"))


class TestPPOWithAnAddOn(AlgorithmSuite):
    is_smooth: ClassVar[bool] = False  # switches are observed as float32
    has_compile_test: ClassVar[bool] = False

    def make_algorithm(self, seed: int) -> PPO:
        torch.manual_seed(seed)
        observation = spaces.Dict({"position": VECTOR, "lamps": spaces.MultiBinary(2)})
        config = OnPolicyActorConfig(hidden_sizes=(8,), normalize_observations=True)
        actor = OnPolicyActor(observation, spaces.MultiDiscrete([3, 2]), config)
        return PPO(actor, PPOConfig(target_kl=0.1, entropy_coef=0.01), add_ons=Centring())


class TestImagePPO(AlgorithmSuite):
    is_smooth: ClassVar[bool] = False
    has_compile_test: ClassVar[bool] = False

    def make_algorithm(self, seed: int) -> PPO:
        torch.manual_seed(seed)
        image = spaces.Box(0, 255, (36, 36, 1), np.uint8)
        config = OnPolicyActorConfig(hidden_sizes=(), image_features=4)
        return PPO(OnPolicyActor(image, spaces.MultiBinary(2), config), PPOConfig())


def _ppo(config: PPOConfig | None = None, **actor: object) -> PPO:
    torch.manual_seed(0)
    options = OnPolicyActorConfig(hidden_sizes=(8,), **actor)  # type: ignore[arg-type]  # by name
    return PPO(OnPolicyActor(VECTOR, spaces.Discrete(3), options), config)


def _batch(algorithm: PPO) -> RolloutBatch:
    return make_batch(algorithm, make_rollout(algorithm, seed=1))


# Eq. (1)


def test_the_surrogate_by_hand() -> None:
    # ratios 1.5, 1.5, 0.5, 0.5; clipped 1.2, 1.2, 0.8, 0.8
    log_ratio = torch.tensor([1.5, 1.5, 0.5, 0.5]).log()
    advantage = torch.tensor([2.0, -2.0, 2.0, -2.0])
    # minima 2.4, -3.0, 1.0, -1.6
    loss = clipped_surrogate_loss(log_ratio, advantage, EPSILON, ALL)
    assert loss.item() == pytest.approx(-(2.4 - 3.0 + 1.0 - 1.6) / 4.0)


def test_the_surrogate_leaves_masked_samples_out() -> None:
    log_ratio = torch.tensor([1.5, 1.5, 0.5, 0.5]).log()
    advantage = torch.tensor([2.0, -2.0, 2.0, 1e9])
    mask = torch.tensor([1.0, 0.0, 1.0, 0.0])
    loss = clipped_surrogate_loss(log_ratio, advantage, EPSILON, mask)
    assert loss.item() == pytest.approx(-(2.4 + 1.0) / 2.0)


@pytest.mark.parametrize("clipped", [False, True])
def test_a_masked_samples_ratio_may_be_infinite(clipped: bool) -> None:
    log_ratio = torch.tensor([math.log(1.1), 100.0], requires_grad=True)
    advantage, mask = torch.tensor([2.0, -1.0]), torch.tensor([1.0, 0.0])
    loss = (
        clipped_surrogate_loss(log_ratio, advantage, EPSILON, mask)
        if clipped
        else surrogate_loss(log_ratio, advantage, mask)
    )
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    assert loss.item() == pytest.approx(-2.2)
    assert log_ratio.grad is not None
    assert log_ratio.grad.tolist() == pytest.approx([-2.2, 0.0])


@pytest.mark.parametrize("surrogate", get_args(Surrogate))
def test_a_row_that_only_resets_may_be_all_but_impossible(surrogate: Surrogate) -> None:
    torch.manual_seed(0)
    actor = OnPolicyActor(VECTOR, spaces.Discrete(3), OnPolicyActorConfig(hidden_sizes=(8,)))
    algorithm = PPO(actor, PPOConfig(surrogate=surrogate, normalize_advantage="none"))
    batch = make_batch(algorithm, make_rollout(algorithm, 0))
    resets = batch.mask == 0.0
    assert resets.any()
    expected = algorithm.loss(batch, {})
    unlikely = replace(batch, log_prob=torch.where(resets, -200.0, batch.log_prob))
    output = algorithm.loss(unlikely, {})
    for name, value in {"loss": expected.loss, **expected.metrics}.items():
        got = output.loss if name == "loss" else output.metrics[name]
        assert torch.equal(got, value), name
    output.loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    assert all(p.grad is None or p.grad.isfinite().all() for p in actor.parameters())


def test_no_gradient_leads_further_out_of_the_clip_range() -> None:
    log_ratio = torch.tensor([1.5, 1.5, 0.5, 0.5]).log().requires_grad_()
    advantage = torch.tensor([2.0, -2.0, 2.0, -2.0])
    clipped_surrogate_loss(log_ratio, advantage, EPSILON, ALL).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    assert log_ratio.grad is not None
    # d(-r A / 4) / d(log r) = -r A / 4, where the unclipped term is the smaller
    assert log_ratio.grad.tolist() == pytest.approx([0.0, 0.75, -0.25, 0.0])


# Eq. (2) and (3)


def test_the_value_loss_by_hand() -> None:
    value, target = torch.tensor([1.0, 2.0, 0.0, 5.0]), torch.tensor([0.0, 4.0, 0.0, 9.0])
    assert value_loss(value, target, ALL).item() == pytest.approx(0.5 * (1 + 4 + 0 + 16) / 4)
    mask = torch.tensor([1.0, 1.0, 0.0, 0.0])
    assert value_loss(value, target, mask).item() == pytest.approx(0.5 * (1 + 4) / 2)


def test_the_value_function_may_have_a_clip_range_of_its_own() -> None:
    value, old, target = torch.zeros(4), torch.ones(4), torch.full((4,), 0.1)
    for own, kept in ((None, 0.8), (0.5, 0.5)):  # 1 - 0.2, or 1 - 0.5
        config = PPOConfig(use_clipped_value_loss=True, clip_range=0.2, value_clip_range=own)
        loss = PPO(OnPolicyActor(VECTOR, BOX), config).value_term(value, old, target, torch.ones(4))
        assert loss.item() == pytest.approx(0.5 * (kept - 0.1) ** 2)


def test_the_clipped_value_loss_by_hand() -> None:
    value, old = torch.tensor([2.0, 0.1, -1.0, 0.5]), torch.tensor([1.0, 0.0, 0.0, 0.5])
    target = torch.tensor([3.0, 1.0, 0.0, 0.0])
    # kept near the old: 1.2, 0.1, -0.2, 0.5
    # plain errors 1, 0.81, 1, 0.25; near errors 3.24, 0.81, 0.04, 0.25
    loss = clipped_value_loss(value, old, target, EPSILON, ALL)
    assert loss.item() == pytest.approx(0.5 * (3.24 + 0.81 + 1.0 + 0.25) / 4.0)
    mask = torch.tensor([1.0, 0.0, 1.0, 0.0])
    loss = clipped_value_loss(value, old, target, EPSILON, mask)
    assert loss.item() == pytest.approx(0.5 * (3.24 + 1.0) / 2.0)


# Eq. (4), from the algorithm


def test_the_loss_puts_the_terms_together() -> None:
    config = PPOConfig(value_loss_coef=0.7, entropy_coef=0.3, normalize_advantage="none")
    algorithm = _ppo(config)
    batch = _batch(algorithm)
    evaluation = algorithm.actor.evaluate_actions(batch.observation, batch.action, {})
    assert evaluation.value is not None
    output = algorithm.compute_loss(replace(batch, log_prob=batch.log_prob - 0.5))
    log_ratio = evaluation.log_prob - batch.log_prob + 0.5
    counts = batch.mask.bool()
    expected = (
        clipped_surrogate_loss(log_ratio, batch.advantage, EPSILON, batch.mask)
        + 0.7 * 0.5 * (evaluation.value - batch.value_target)[counts].square().mean()
        - 0.3 * evaluation.entropy[counts].mean()
    )
    torch.testing.assert_close(output.loss, expected)
    ratio = math.exp(0.5)
    assert output.metrics["policy/approx_kl"].item() == pytest.approx(ratio - 1.5, rel=1e-4)
    assert output.metrics["policy/clip_fraction"].item() == 1.0


def test_the_seeds_options_are_the_seeds_loss() -> None:
    algorithm = _ppo(SEED_DEFAULTS)
    batch = _batch(algorithm)
    with torch.no_grad():
        for parameter in algorithm.actor.parameters():
            parameter.add_(0.05)
    now = algorithm.actor.evaluate_actions(batch.observation, batch.action, {})
    assert now.value is not None
    kept = batch.mask.bool()
    advantage = batch.advantage[kept]
    advantage = (advantage - advantage.mean()) / advantage.std(correction=0)
    ratio = (now.log_prob - batch.log_prob)[kept].exp()
    policy = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
    value, old, target = now.value[kept], batch.value[kept], batch.value_target[kept]
    near = old + (value - old).clamp(-0.2, 0.2)
    errors = torch.max((value - target) ** 2, (near - target) ** 2)
    expected = policy + 0.5 * 0.5 * errors.mean() - 0.01 * now.entropy[kept].mean()
    torch.testing.assert_close(algorithm.compute_loss(batch).loss, expected)


def test_rows_that_only_reset_have_no_influence() -> None:
    algorithm = _ppo()
    batch = _batch(algorithm)
    assert not batch.mask.all()
    wild = torch.where(batch.mask.bool(), 0.0, 50.0)
    other = replace(
        batch,
        advantage=batch.advantage + wild,
        value_target=batch.value_target + wild,
        log_prob=batch.log_prob + 0.1 * wild,
    )
    ours, theirs = algorithm.compute_loss(batch), algorithm.compute_loss(other)
    torch.testing.assert_close(ours.loss, theirs.loss)
    torch.testing.assert_close(ours.metrics, theirs.metrics)


def test_advantages_are_normalized_where_asked() -> None:
    batches = {}
    for where in get_args(AdvantageNormalization):
        algorithm = _ppo(PPOConfig(normalize_advantage=where))
        columns, _ = algorithm.prepare(make_rollout(algorithm, seed=1))
        batches[where] = (columns["advantage"], algorithm)
    plain, valid = batches["none"][0], make_rollout(_ppo(), seed=1).valid
    assert torch.equal(batches["minibatch"][0], plain)
    whole = batches["batch"][0][valid]
    assert whole.mean().item() == pytest.approx(0.0, abs=1e-6)
    assert whole.std(correction=0).item() == pytest.approx(1.0, rel=1e-5)
    losses = {
        where: algorithm.compute_loss(_batch(algorithm)).metrics["loss/policy"].item()
        for where, (_, algorithm) in batches.items()
    }
    assert losses["minibatch"] == pytest.approx(losses["batch"], rel=1e-4, abs=1e-6)
    assert losses["none"] != pytest.approx(losses["batch"], rel=1e-2)


def test_target_kl_holds_the_step_that_is_too_far_back() -> None:
    algorithm = _ppo(PPOConfig(target_kl=0.01))
    batch = _batch(algorithm)
    before = algorithm.named_parameters()["actor.value_head.out.weight"].clone()
    far = replace(batch, log_prob=batch.log_prob - 0.5)  # KL about 0.15
    algorithm.gradient_step(far)
    assert algorithm.gradients.stopped
    assert torch.equal(algorithm.named_parameters()["actor.value_head.out.weight"], before)
    algorithm.gradients.begin_update()
    algorithm.gradient_step(batch)
    assert not algorithm.gradients.stopped


def test_target_kl_ends_an_update_beyond_one_and_a_half_targets() -> None:
    # A log-ratio of 0.5 everywhere: exp(0.5) - 1.5 = 0.14872, beside 0.1485 and 0.1488.
    for target, stops in ((0.0990, True), (0.0992, False)):
        algorithm = _ppo(PPOConfig(target_kl=target))
        batch = _batch(algorithm)
        output = algorithm.compute_loss(replace(batch, log_prob=batch.log_prob - 0.5))
        assert output.stop is not None
        assert bool(output.stop) == stops


def test_smaller_ratios_are_outside_the_clip_range_too() -> None:
    algorithm = _ppo(PPOConfig())
    batch = _batch(algorithm)
    output = algorithm.compute_loss(replace(batch, log_prob=batch.log_prob + 0.5))  # ratio 0.61
    assert output.metrics["policy/clip_fraction"].item() == 1.0


def test_target_kl_can_be_changed_while_running() -> None:
    algorithm = _ppo(PPOConfig(target_kl=0.01))
    algorithm.update_algorithm_parameter("target_kl", 1.0)
    batch = _batch(algorithm)
    algorithm.gradient_step(replace(batch, log_prob=batch.log_prob - 0.5))
    assert not algorithm.gradients.stopped


def test_the_ratio_of_a_fresh_rollout_is_one() -> None:
    for memory in ("none", "gru", "lstm"):
        algorithm = _ppo(recurrent_net=memory, normalize_observations=True)
        for seed in range(2):
            rollout = make_rollout(algorithm, seed)
            metrics = algorithm.compute_loss(make_batch(algorithm, rollout)).metrics
            assert metrics["policy/approx_kl"].item() == pytest.approx(0.0, abs=1e-6)
            assert metrics["policy/clip_fraction"].item() == 0.0
            algorithm.actor.update_normalization(rollout.observation, rollout.valid)


def test_the_schedule_says_what_the_config_said() -> None:
    schedule = _ppo(SEED_DEFAULTS).schedule
    assert (schedule.start_steps, schedule.update_every) == (0, None)
    assert (schedule.num_epochs, schedule.num_minibatches, schedule.minibatch_size) == (4, 1, None)
    assert float(_ppo(SEED_DEFAULTS).hyper["gamma"]) == pytest.approx(0.99)


def test_an_add_ons_term_joins_the_policy_loss() -> None:
    plain = _ppo()
    actor = plain.actor
    with_add_on = PPO(actor, PPOConfig(), add_ons=[Centring()])
    batch = _batch(plain)
    output = with_add_on.compute_loss(batch)
    term = output.metrics["loss/centring"]
    torch.testing.assert_close(output.loss, plain.compute_loss(batch).loss + term)


def test_clip_range_and_rate_may_be_scheduled() -> None:
    config = PPOConfig(learning_rate=Linear(3e-4, 0.0), clip_range=Linear(0.2, 0.0))
    algorithm = _ppo(config)
    algorithm.schedules.set_progress(0.5)
    assert float(algorithm.hyper["clip_range"]) == pytest.approx(0.1)
    assert float(algorithm.hyper["learning_rate"]) == pytest.approx(1.5e-4)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("learning_rate", -1e-4),
        ("learning_rate", Linear(-1e-4, 1e-3)),
        ("gamma", 1.01),
        ("gae_lambda", -0.1),
        ("clip_range", 0.0),
        ("max_grad_norm", 0.0),
        ("target_kl", -1.0),
        ("value_loss_coef", -0.5),
        ("entropy_coef", float("nan")),
        ("num_epochs", 0),
        ("minibatch_size", 0),
    ],
)
def test_options_out_of_range_are_refused(option: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"{option} must be"):
        PPOConfig(**{option: value})  # type: ignore[arg-type]  # one option by name


def test_minibatches_are_given_by_number_or_by_size() -> None:
    assert PPOConfig().minibatch_size == PPOConfig(minibatch_size=None).minibatch_size == 64
    assert PPOConfig(num_minibatches=4).minibatch_size is None
    assert PPOConfig(minibatch_size=16).num_minibatches is None
    with pytest.raises(ConfigError, match="num_minibatches has no effect with minibatch_size"):
        PPOConfig(num_minibatches=4, minibatch_size=64)


def test_minibatches_of_one_sample_are_not_normalized() -> None:
    with pytest.raises(ConfigError, match="minibatch_size=1 teaches a policy nothing"):
        PPOConfig(minibatch_size=1)
    assert _ppo().schedule.min_samples == 2
    for over in ("batch", "none"):
        config = PPOConfig(minibatch_size=1, normalize_advantage=over)
        assert _ppo(config).schedule.min_samples == 1


def test_normalization_is_a_known_name() -> None:
    with pytest.raises(ConfigError, match="did you mean 'minibatch'"):
        PPOConfig(normalize_advantage="mini_batch")  # type: ignore[arg-type]  # the mistake


# Eq. (5) to (7): the other surrogates

PENALTY = PPOConfig(learning_rate=1e-3, surrogate="kl-penalty")


class TestPPOWithAPenalty(AlgorithmSuite):
    def make_algorithm(self, seed: int) -> PPO:
        torch.manual_seed(seed)
        actor = OnPolicyActor(VECTOR, BOX, OnPolicyActorConfig(hidden_sizes=(8,)))
        return PPO(actor, PENALTY)


class TestPlainPPO(AlgorithmSuite):
    has_compile_test: ClassVar[bool] = False

    def make_algorithm(self, seed: int) -> PPO:
        torch.manual_seed(seed)
        actor = OnPolicyActor(VECTOR, spaces.Discrete(3), OnPolicyActorConfig(hidden_sizes=(8,)))
        config = PPOConfig(
            surrogate="plain",
            advantage_estimator="vtrace",
            value_target="return",
            positive_advantage=True,
            entropy_coef=0.01,
            use_softplus_entropy=True,
        )
        return PPO(actor, config)


def test_the_surrogate_without_a_bound_by_hand() -> None:
    log_ratio = torch.tensor([1.5, 1.5, 0.5, 0.5]).log()
    advantage = torch.tensor([2.0, -2.0, 2.0, -1.0])
    assert surrogate_loss(log_ratio, advantage, ALL).item() == pytest.approx(-0.5 / 4.0)
    mask = torch.tensor([1.0, 0.0, 1.0, 0.0])
    assert surrogate_loss(log_ratio, advantage, mask).item() == pytest.approx(-(3.0 + 1.0) / 2.0)


def test_the_penalty_by_hand() -> None:
    penalty, target = torch.tensor(3.0), torch.tensor(0.01)
    near, far = torch.tensor(0.02), torch.tensor(0.12)
    assert kl_penalty_term(near, penalty, target).item() == pytest.approx(0.06)
    assert kl_penalty_term(far, penalty, target).item() == pytest.approx(0.36 + 50 * 0.1**2)


@pytest.mark.parametrize(
    ("kl", "expected"),
    [(0.0066, 1.5), (0.0067, 3.0), (0.0149, 3.0), (0.0151, 6.0), (10.0, 6.0), (0.0, 1.5)],
)
def test_the_penalty_adapts_by_the_rule(kl: float, expected: float) -> None:
    adapted = adapted_penalty(torch.tensor(3.0), torch.tensor(kl), torch.tensor(0.01))
    assert adapted.item() == expected


def test_the_penalty_neither_vanishes_nor_grows_without_end() -> None:
    penalty, far, target = torch.tensor(1e-6), torch.tensor(1.0), torch.tensor(0.01)
    assert adapted_penalty(penalty, torch.tensor(0.0), target).item() == pytest.approx(1e-6)
    assert adapted_penalty(penalty, far, target).item() == pytest.approx(2e-6)
    assert adapted_penalty(torch.tensor(1e6), far, target).item() == 1e6


def _moved(algorithm: PPO, by: float) -> None:
    with torch.no_grad():
        for parameter in algorithm.actor.get_submodule("action_head").parameters():
            parameter.add_(by * torch.linspace(-1.0, 1.0, parameter.numel()).view_as(parameter))


def test_the_penalised_loss_takes_the_divergence_from_the_old_policy() -> None:
    plain = _ppo(PPOConfig(surrogate="plain"))
    penal = _ppo(replace(PENALTY, kl_penalty=3.0, kl_target=0.001))
    batch = _batch(penal)
    old, _ = copy.deepcopy(penal.actor).distribution(batch.observation, {})
    for algorithm in (plain, penal):
        _moved(algorithm, 0.3)
    now, _ = penal.actor.distribution(batch.observation, {})
    kl = old.kl_divergence(now)[batch.mask.bool()].mean()
    assert kl > 0.002
    losses = plain.compute_loss(batch).loss, 3.0 * kl + 50.0 * (kl - 0.002) ** 2
    loss = penal.compute_loss(batch).loss
    torch.testing.assert_close(loss, sum(losses))
    weights = [a.named_parameters()["actor.action_head.linear.weight"] for a in (plain, penal)]
    parts = zip(losses, weights, strict=True)
    slope = sum(torch.autograd.grad(part, weight)[0] for part, weight in parts)
    torch.testing.assert_close(torch.autograd.grad(loss, weights[1])[0], slope)


def test_a_step_beyond_four_targets_ends_the_update() -> None:
    algorithm = _ppo(PENALTY)
    batch = _batch(algorithm)
    algorithm.gradient_step(batch)
    assert not algorithm.gradients.stopped
    _moved(algorithm, 2.0)
    algorithm.gradient_step(batch)
    assert algorithm.gradients.stopped


@pytest.mark.parametrize(("targets", "stops"), [(4.1, True), (3.9, False)])
def test_the_penalty_s_bound_is_four_targets(targets: float, stops: bool) -> None:
    algorithm = _ppo(replace(PENALTY, target_kl=100.0))  # the other bound is far away
    batch = _batch(algorithm)
    old, _ = copy.deepcopy(algorithm.actor).distribution(batch.observation, {})
    _moved(algorithm, 0.3)
    now, _ = algorithm.actor.distribution(batch.observation, {})
    kl = old.kl_divergence(now)[batch.mask.bool()].mean().item()
    algorithm.update_algorithm_parameter("kl_target", kl / targets)
    output = algorithm.compute_loss(batch)
    assert output.stop is not None
    assert bool(output.stop) == stops


def test_the_penalty_is_state_and_can_be_set() -> None:
    algorithm = _ppo(PENALTY)
    assert algorithm.hyper["kl_penalty"].item() == 1.0
    assert algorithm.hyper["kl_target"].item() == pytest.approx(0.01)
    algorithm.hyper["kl_penalty"].fill_(4.0)  # as adapted
    algorithm.schedules.set_progress(0.5)
    restored = _ppo(PENALTY)
    restored.load_state_dict(algorithm.state_dict())
    assert restored.hyper["kl_penalty"].item() == 4.0
    restored.update_algorithm_parameter("kl_penalty", 0.25)
    assert restored.hyper["kl_penalty"].item() == 0.25
    with pytest.raises(ConfigError, match="kl_penalty"):
        restored.update_algorithm_parameter("kl_penalty", None)  # type: ignore[arg-type]  # what is tested
    with pytest.raises(ConfigError, match=r"kl_penalty adapts by itself; got linear\(1\.0, 0\.5\)"):
        restored.update_algorithm_parameter("kl_penalty", Linear(1.0, 0.5))
    restored.update_algorithm_parameter("kl_penalty", Linear(0.5, 0.5))
    assert restored.hyper["kl_penalty"].item() == 0.5
    restored.update_algorithm_parameter("clip_range", Linear(0.2, 0.1))


def test_the_penalty_stays_where_nothing_is_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_algos_onpolicy.ppo.whole_batch", lambda storage: storage)
    for rate, expected in ((0.0, 1.0), (1e-3, 0.5)):  # the policy did not move
        algorithm = _ppo(replace(PENALTY, learning_rate=rate))
        algorithm.after_epochs(_batch(algorithm))  # type: ignore[arg-type]  # see above
        assert algorithm.hyper["kl_penalty"].item() == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kl_target": 0.02}, "kl_target has no effect with surrogate='clip'"),
        ({"surrogate": "plain", "kl_penalty": 2.0}, "kl_penalty has no effect"),
        ({"surrogate": "kl-penalty", "kl_penalty": Linear(1.0, 0.0)}, "adapts by itself"),
        (
            {"surrogate": "kl-penalty", "kl_target": 0.0},
            "kl_target must be a finite number above 0",
        ),
        ({"surrogate": "cilp"}, "did you mean 'clip'"),
        (
            {"entropy_method": "max", "stop_entropy_gradient": True},
            "normalize_advantage would",
        ),
        ({"entropy_method": "no_entropy", "entropy_coef": 0.1}, "has no effect"),
        ({"value_clip_range": 0.5}, "value_clip_range has no effect with use_clipped_value_loss"),
        ({"advantage_estimator": "gea"}, "did you mean 'gae'"),
        ({"value_target": "mc"}, "value_target: unknown name"),
    ],
)
def test_contradictory_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PPOConfig(**options)  # type: ignore[arg-type]  # by name


def test_advantages_are_shifted_over_the_samples_they_are_normalized_over() -> None:
    for where in get_args(AdvantageNormalization):
        algorithm = _ppo(PPOConfig(normalize_advantage=where, positive_advantage=True))
        batch = _batch(algorithm)
        kept = batch.mask.bool()
        used = normalized_advantage(
            batch.advantage, batch.mask, algorithm.config, over_minibatch=True
        )[kept]
        assert used.min() == 0.0
        spread = used.std(correction=0).item()
        assert (spread == pytest.approx(1.0, rel=1e-4)) is (where != "none")
