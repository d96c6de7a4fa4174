from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from gymnasium import spaces

from rl_algos_onpolicy import RND, VPG, OnPolicyActor, OnPolicyActorConfig, RNDConfig, VPGConfig
from rl_core.errors import ConfigError
from rl_core.gradients import OptimizerConfig
from rl_testing.algorithms import AlgorithmSuite
from rl_testing.rollouts import make_batch, make_rollout
from rl_testing.stateful import check_same_state, copy_state

VECTOR = spaces.Box(-1.0, 1.0, (3,), np.float32)
BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)
ENTROPY_REWARD = VPGConfig(
    entropy_method="max",
    entropy_coef=0.3,
    stop_entropy_gradient=True,
    normalize_advantage=False,
)


class TestVPG(AlgorithmSuite):
    def make_algorithm(self, seed: int) -> VPG:
        torch.manual_seed(seed)
        actor = OnPolicyActor(VECTOR, BOX, OnPolicyActorConfig(hidden_sizes=(8,)))
        return VPG(actor, VPGConfig(entropy_coef=0.01, use_softplus_entropy=True))


class TestReinforce(AlgorithmSuite):
    has_compile_test: ClassVar[bool] = False

    def make_algorithm(self, seed: int) -> VPG:
        torch.manual_seed(seed)
        config = OnPolicyActorConfig(hidden_sizes=(8,), shared_policy_value_network=True)
        actor = OnPolicyActor(VECTOR, spaces.Discrete(3), config)
        return VPG(actor, VPGConfig(value_learning_rate=None, positive_advantage=True))


class TestRecurrentVPG(AlgorithmSuite):
    has_compile_test: ClassVar[bool] = False

    def make_algorithm(self, seed: int) -> VPG:
        torch.manual_seed(seed)
        config = OnPolicyActorConfig(
            hidden_sizes=(8,), recurrent_net="gru", recurrent_hidden_size=4
        )
        return VPG(OnPolicyActor(VECTOR, spaces.MultiDiscrete([2, 3]), config), ENTROPY_REWARD)


class TestVPGWithAnAddOn(AlgorithmSuite):
    has_compile_test: ClassVar[bool] = False
    is_smooth: ClassVar[bool] = False  # the networks of novelty are rectified

    def make_algorithm(self, seed: int) -> VPG:
        torch.manual_seed(seed)
        actor = OnPolicyActor(VECTOR, BOX, OnPolicyActorConfig(hidden_sizes=(8,)))
        rnd = RNDConfig(hidden_sizes=(8,), num_features=4, pre_normalization_steps=16)
        return VPG(actor, VPGConfig(), add_ons=RND(rnd=rnd))


def _vpg(config: VPGConfig | None = None) -> VPG:
    torch.manual_seed(0)
    actor = OnPolicyActor(VECTOR, spaces.Discrete(3), OnPolicyActorConfig(hidden_sizes=(8,)))
    return VPG(actor, config)


def test_the_loss_puts_the_terms_together() -> None:
    algorithm = _vpg(VPGConfig(entropy_coef=0.3, use_softplus_entropy=True))
    batch = make_batch(algorithm, make_rollout(algorithm, seed=1))
    now = algorithm.actor.evaluate_actions(batch.observation, batch.action, {})
    assert now.value is not None
    kept = batch.mask.bool()
    expected = (
        -(now.log_prob * batch.advantage)[kept].mean()
        + (now.value - batch.value_target)[kept].square().mean()
        - 0.3 * F.softplus(now.entropy[kept]).mean()
    )
    torch.testing.assert_close(algorithm.compute_loss(batch).loss, expected)


def test_advantages_are_complete_returns_above_the_values_normalized() -> None:
    algorithm = _vpg()
    rollout = make_rollout(algorithm, seed=1)
    plain, _ = _vpg(VPGConfig(normalize_advantage=False, advantage_estimator="baseline")).prepare(
        rollout
    )
    columns, _ = algorithm.prepare(rollout)
    kept = rollout.valid
    centered = plain["advantage"][kept] - plain["advantage"][kept].mean()
    # by the standard deviation and not by the variance
    expected = centered / centered.square().mean().sqrt()
    torch.testing.assert_close(columns["advantage"][kept], expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(columns["value_target"], plain["value_target"])


def test_entropy_as_a_reward_adds_to_it_and_not_to_the_loss() -> None:
    algorithm = _vpg(ENTROPY_REWARD)
    rollout = make_rollout(algorithm, seed=1)
    plain = _vpg(replace(ENTROPY_REWARD, entropy_coef=0.0))
    policy, _ = algorithm.actor.distribution(rollout.observation, {})
    bonus = 0.3 * policy.entropy().detach() * rollout.valid
    richer = replace(rollout, reward=rollout.reward + bonus)
    columns, _ = algorithm.prepare(rollout)
    expected, _ = plain.prepare(richer)
    torch.testing.assert_close(dict(columns), dict(expected))
    batch = make_batch(algorithm, rollout)
    torch.testing.assert_close(algorithm.compute_loss(batch).loss, plain.compute_loss(batch).loss)


def test_entropy_has_a_gradient_only_where_it_is_regularized() -> None:
    rewarded = VPGConfig(
        entropy_method="max",
        entropy_coef=0.5,
        stop_entropy_gradient=True,
        normalize_advantage=False,
    )
    none, added = (
        VPGConfig(entropy_coef=coefficient, normalize_advantage=False) for coefficient in (0.0, 0.5)
    )
    vectors = []
    for config in (none, rewarded, added):
        algorithm = _vpg(config)
        batch = make_batch(_vpg(none), make_rollout(algorithm, seed=1))
        vectors.append(algorithm.compute_gradients(batch).tensors["policy"])
    assert torch.equal(vectors[1], vectors[0])
    assert not torch.allclose(vectors[2], vectors[0])


def test_without_a_value_function_nothing_of_it_moves() -> None:
    algorithm = _vpg(VPGConfig(value_learning_rate=None))
    before = copy_state(algorithm.actor.get_submodule("value_torso").state_dict())
    batch = make_batch(algorithm, make_rollout(algorithm, seed=1))
    algorithm.gradient_step(batch)
    check_same_state(dict(algorithm.actor.get_submodule("value_torso").state_dict()), before)
    assert "loss/value" not in algorithm.read_metrics()
    assert (
        algorithm.compute_loss(batch).loss == algorithm.compute_loss(batch).metrics["loss/policy"]
    )


def test_garages_passes_over_a_rollout() -> None:
    schedule = _vpg(VPGConfig(num_epochs=3, num_minibatches=2)).schedule
    assert (schedule.num_epochs, schedule.num_minibatches, schedule.update_every) == (3, 2, None)
    assert (_vpg().schedule.num_epochs, _vpg().schedule.num_minibatches) == (1, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"entropy_method": "max", "stop_entropy_gradient": True},
            "normalize_advantage would",
        ),
        ({"entropy_method": "max", "normalize_advantage": False}, "stop_entropy_gradient=True"),
        ({"entropy_method": "no_entropy", "entropy_coef": 0.1}, "entropy_coef has no effect"),
        ({"entropy_method": "maximum"}, "unknown name 'maximum'"),
        ({"value_learning_rate": None, "advantage_estimator": "td"}, "need a value function"),
        ({"value_learning_rate": None, "value_target": "td"}, "need a value function"),
        ({"value_target": "mc"}, "value_target: unknown name"),
        ({"policy_learning_rate": -1.0}, "policy_learning_rate must be"),
        ({"num_minibatches": 0}, "num_minibatches must be"),
        ({"max_grad_norm": 0.0}, "max_grad_norm must be"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        VPGConfig(**options)  # type: ignore[arg-type]  # by name


def test_a_shared_torso_has_one_rate() -> None:
    actor = OnPolicyActor(
        VECTOR, spaces.Discrete(2), OnPolicyActorConfig(shared_policy_value_network=True)
    )
    with pytest.raises(ConfigError, match="must be equal"):
        VPG(actor, VPGConfig(policy_learning_rate=2e-3, value_learning_rate=5e-3))
    VPG(actor, VPGConfig(optimizer=OptimizerConfig(name="sgd")))
