"""Every off-policy algorithm against the conformance suite, and what they share."""

from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from rl_algos_offpolicy import (
    DDPG,
    DQN,
    SAC,
    TD3,
    DDPGConfig,
    DQNConfig,
    OffPolicyActor,
    OffPolicyActorConfig,
    Rainbow,
    SACConfig,
    TD3Config,
)
from rl_core.algorithm import AnyAlgorithm, EnvSpec, PolicyLossAddOn
from rl_core.batch import ReplayBatch
from rl_core.config import decode
from rl_core.errors import ConfigError
from rl_core.gradients import Noise
from rl_testing.algorithms import AlgorithmSuite
from rl_testing.rollouts import make_replay_batch

VECTOR = spaces.Box(-1.0, 1.0, (3,), np.float32)
BOX = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 1.0], np.float32))
CATEGORIES = spaces.Discrete(3)


def _actor(seed: int, action_space: spaces.Space[object], **options: object) -> OffPolicyActor:
    torch.manual_seed(seed)
    config = replace(OffPolicyActorConfig(hidden_sizes=(8,)), **options)  # type: ignore[arg-type]
    return OffPolicyActor(VECTOR, action_space, config)


class OffPolicySuite(AlgorithmSuite):
    __test__ = False
    is_smooth: ClassVar[bool] = False
    has_compile_test: ClassVar[bool] = True
    unweighted_groups: ClassVar[frozenset[str]] = frozenset({"temperature"})


class TestSAC(OffPolicySuite):
    """With smooth actions, which are learned from single steps."""

    __test__ = True
    looks_past_ends: ClassVar[bool] = True

    def make_algorithm(self, seed: int) -> SAC:
        config = SACConfig(
            temporal_smoothness=0.1, spatial_smoothness=0.2, max_grad_norm=1.0, reward_scale=2.0
        )
        return SAC(_actor(seed, BOX), config)

    def make_batch(self, algorithm: AnyAlgorithm, seed: int) -> ReplayBatch:
        return make_replay_batch(algorithm, seed, n=1)


class TestSACOverSeveralSteps(OffPolicySuite):
    __test__ = True
    has_compile_test: ClassVar[bool] = False

    def make_algorithm(self, seed: int) -> SAC:
        return SAC(_actor(seed, BOX), SACConfig(spatial_smoothness=0.2))


class TestDiscreteSAC(OffPolicySuite):
    __test__ = True
    has_compile_test: ClassVar[bool] = False

    def make_algorithm(self, seed: int) -> SAC:
        config = SACConfig(learn_temperature=False, initial_temperature=0.2)
        return SAC(_actor(seed, CATEGORIES, dueling=True), config)


class TestTD3(OffPolicySuite):
    __test__ = True

    def make_algorithm(self, seed: int) -> TD3:
        actor = _actor(seed, BOX, policy="deterministic", critic_layer_norm=True)
        return TD3(actor, TD3Config(clip_return=5.0))


class TestDDPG(OffPolicySuite):
    __test__ = True
    has_compile_test: ClassVar[bool] = False

    def make_algorithm(self, seed: int) -> DDPG:
        config = DDPGConfig(
            exploration_noise="ou",
            critic_weight_decay=0.01,
            clip_return=2.0,
            clip_positive_returns=True,
        )
        return DDPG(_actor(seed, BOX, policy="deterministic", num_critics=1), config)


class NeverEnding(DDPG):
    """Bootstraps from what follows a terminated step."""

    def target(self, batch: ReplayBatch, noise: Noise) -> Tensor:
        never = torch.zeros_like(batch.terminated)
        return super().target(replace(batch, terminated=never), noise)


def test_the_suite_catches_targets_that_look_past_ends() -> None:
    class Suite(AlgorithmSuite):
        def make_algorithm(self, seed: int) -> DDPG:
            return NeverEnding(_actor(seed, BOX, policy="deterministic", num_critics=1))

    with pytest.raises(AssertionError, match=r"(?s)bootstrap with rl_core\.returns"):
        Suite().test_nothing_of_value_follows_a_terminated_step()


class TestDQN(OffPolicySuite):
    __test__ = True

    def make_algorithm(self, seed: int) -> DQN:
        config = DQNConfig(target_update_every=2, clip_reward=1.0)
        return DQN(_actor(seed, CATEGORIES, policy="greedy", num_critics=1, dueling=True), config)


class TestSoftDQN(OffPolicySuite):
    __test__ = True
    has_compile_test: ClassVar[bool] = False

    def make_algorithm(self, seed: int) -> DQN:
        config = DQNConfig(target_update_every=1, tau=0.1, double=False, loss="square")
        return DQN(_actor(seed, CATEGORIES, policy="greedy", num_critics=2), config)


class TestRainbow(OffPolicySuite):
    """With the networks and the options of its default recipe, but smaller."""

    __test__ = True

    def make_algorithm(self, seed: int) -> Rainbow:
        recipe = Rainbow.default_recipe(EnvSpec("CartPole-v1", VECTOR, CATEGORIES))
        small = {"hidden_sizes": (8,), "num_atoms": 7, "value_range": (-2.0, 3.0)}
        actor = _actor(seed, CATEGORIES, **{**recipe.actor.kwargs, **small})
        options = {**recipe.algorithm, "target_update_every": 2}
        return Rainbow(actor, decode(DQNConfig, options))


class TestQuantileDQN(OffPolicySuite):
    __test__ = True

    def make_algorithm(self, seed: int) -> DQN:
        config = DQNConfig(target_update_every=2, clip_reward=1.0)
        options = {"distribution": "quantile", "num_quantiles": 5}
        return DQN(_actor(seed, CATEGORIES, policy="greedy", num_critics=2, **options), config)


class TestNoisyDQN(OffPolicySuite):
    __test__ = True
    has_compile_test: ClassVar[bool] = False

    def make_algorithm(self, seed: int) -> DQN:
        config = DQNConfig(target_update_every=2, double=False)
        return DQN(_actor(seed, CATEGORIES, policy="greedy", num_critics=2, noisy=True), config)


class RecurrentSuite(AlgorithmSuite):
    """Of sequences, whose graphs take long to compile: one of each kind of memory does."""

    __test__ = False
    is_smooth: ClassVar[bool] = False
    has_compile_test: ClassVar[bool] = False
    unweighted_groups: ClassVar[frozenset[str]] = frozenset({"temperature"})

    def make_batch(self, algorithm: AnyAlgorithm, seed: int) -> object:
        return make_replay_batch(algorithm, seed, n=2, num_rows=2)


class TestRecurrentSAC(RecurrentSuite):
    __test__ = True

    def make_algorithm(self, seed: int) -> SAC:
        return SAC(_actor(seed, BOX, recurrent_net="gru", recurrent_hidden_size=5), SACConfig())


class TestRecurrentDiscreteSAC(RecurrentSuite):
    __test__ = True

    def make_algorithm(self, seed: int) -> SAC:
        return SAC(
            _actor(seed, CATEGORIES, recurrent_net="lstm", recurrent_hidden_size=5), SACConfig()
        )


class TestRecurrentTD3(RecurrentSuite):
    __test__ = True
    has_compile_test: ClassVar[bool] = True

    def make_algorithm(self, seed: int) -> TD3:
        actor = _actor(
            seed, BOX, policy="deterministic", recurrent_net="lstm", recurrent_hidden_size=5
        )
        return TD3(actor, TD3Config())


class TestRecurrentDDPG(RecurrentSuite):
    __test__ = True

    def make_algorithm(self, seed: int) -> DDPG:
        actor = _actor(
            seed,
            BOX,
            policy="deterministic",
            num_critics=1,
            recurrent_net="gru",
            recurrent_layers=2,
        )
        return DDPG(actor, DDPGConfig(exploration_noise="ou"))


class TestRecurrentDQN(RecurrentSuite):
    __test__ = True
    has_compile_test: ClassVar[bool] = True

    def make_algorithm(self, seed: int) -> DQN:
        actor = _actor(
            seed,
            CATEGORIES,
            policy="greedy",
            dueling=True,
            recurrent_net="gru",
            recurrent_hidden_size=5,
        )
        return DQN(actor, DQNConfig(target_update_every=2))


class TestRecurrentQuantileDQN(RecurrentSuite):
    __test__ = True

    def make_algorithm(self, seed: int) -> DQN:
        options = {"distribution": "quantile", "num_quantiles": 5, "recurrent_net": "gru"}
        actor = _actor(seed, CATEGORIES, policy="greedy", dueling=True, **options)
        return DQN(actor, DQNConfig(target_update_every=2))


class _Pull(PolicyLossAddOn):
    """Pulls the policy's action to 1."""

    def compute_loss_term(self, batch, distribution, info):  # type: ignore[no-untyped-def]
        term = 100.0 * (distribution.mode() - 1.0).square().mean()
        return term, {"loss/pull": term}


@pytest.mark.parametrize(
    ("algorithm", "policy"), [(SAC, "stochastic"), (TD3, "deterministic"), (DDPG, "deterministic")]
)
def test_add_ons_join_the_policy_loss(algorithm: type[AnyAlgorithm], policy: str) -> None:
    learner = algorithm(_actor(0, BOX, policy=policy), add_ons=_Pull())
    batch = make_replay_batch(learner, seed=1)
    before = learner.actor.get_action(batch.observation, {}, None, True).action.mean()
    for _ in range(20):
        learner.gradient_step(batch)
    after = learner.actor.get_action(batch.observation, {}, None, True).action.mean()
    assert after > before
    assert "loss/pull" in learner.read_metrics()


def test_dqn_has_no_policy_loss_for_add_ons() -> None:
    with pytest.raises(ConfigError, match="DQN takes no add-ons; leave add_ons out"):
        DQN(_actor(0, CATEGORIES, policy="greedy"), add_ons=_Pull())
