"""The conformance suites on meta-algorithms, whose batches hold several tasks."""

from dataclasses import replace
from typing import ClassVar, cast

import pytest
import torch
from gymnasium import spaces

from rl_algos_onpolicy import OnPolicyActor, OnPolicyActorConfig
from rl_core.actor import Actor
from rl_core.algorithm import AnyAlgorithm
from rl_core.batch import RolloutBatch
from rl_core.spaces import Space
from rl_meta import (
    MAML,
    MAMLPPO,
    MAMLTRPO,
    MAMLVPG,
    PEARL,
    ContextConditionedActor,
    ContextConditionedActorConfig,
    MAMLPPOConfig,
    MAMLTRPOConfig,
    MAMLVPGConfig,
    PEARLConfig,
)
from rl_meta.rollouts import stacked, task_batch
from rl_testing.actors import ActorSuite
from rl_testing.algorithms import AlgorithmSuite
from rl_testing.rollouts import make_replay_batch, make_rollout

OBSERVATIONS = spaces.Box(-3.0, 3.0, (2,))
ACTIONS = spaces.Box(-1.0, 1.0, (2,))


class MAMLSuite(AlgorithmSuite):
    """Batches hold one rollout to adapt to, and one to judge, of two tasks."""

    is_smooth = False
    has_compile_test = False

    def actor(self, seed: int) -> OnPolicyActor:
        torch.manual_seed(seed)
        return OnPolicyActor(OBSERVATIONS, ACTIONS, OnPolicyActorConfig(hidden_sizes=(4,)))

    def make_batch(self, algorithm: AnyAlgorithm, seed: int) -> object:
        maml = cast("MAML[MAMLVPGConfig]", algorithm)
        kept = []
        for one in (seed, seed + 100):
            rollout = make_rollout(algorithm, one)
            kept.append(task_batch(rollout, maml.estimate(maml.adapted, rollout)[0], 2))
        return stacked(kept)

    def test_weights_carry_over(self) -> None:
        pytest.skip("acts with the policies of its tasks, which belong to its state")


class TestMAMLVPG(MAMLSuite):
    has_compile_test = True

    def make_algorithm(self, seed: int) -> AnyAlgorithm:
        return MAMLVPG(self.actor(seed), MAMLVPGConfig(meta_batch_size=2))


class TestMAMLPPO(MAMLSuite):
    def make_algorithm(self, seed: int) -> AnyAlgorithm:
        return MAMLPPO(self.actor(seed), MAMLPPOConfig(meta_batch_size=2))


class TestMAMLTRPO(MAMLSuite):
    def make_algorithm(self, seed: int) -> AnyAlgorithm:
        return MAMLTRPO(self.actor(seed), MAMLTRPOConfig(meta_batch_size=2))

    def test_a_step_changes_what_is_learned_and_nothing_else(self) -> None:
        """The step is TRPO's, not one of `gradient_step`."""
        algorithm = cast("MAMLTRPO", self._algorithm())
        before = algorithm.get_weights().tensors
        algorithm.meta_step(cast("RolloutBatch", self.make_batch(algorithm, 1)))
        now = algorithm.get_weights().tensors
        moved = {name for name in before if not torch.equal(now[name], before[name])}
        assert moved == set(algorithm.policy_parameters())


def conditioned_actor(
    observation_space: Space = OBSERVATIONS,
    action_space: Space = ACTIONS,
    *,
    use_next_observation: bool = False,
) -> ContextConditionedActor:
    config = ContextConditionedActorConfig(
        latent_dim=2,
        encoder_hidden_sizes=(4,),
        inner_options={"hidden_sizes": [4]},
        use_next_observation=use_next_observation,
    )
    return ContextConditionedActor(observation_space, action_space, config)


class TestPEARL(AlgorithmSuite):
    is_smooth = False
    unweighted_groups = frozenset({"encoder", "temperature"})

    def make_algorithm(self, seed: int) -> AnyAlgorithm:
        torch.manual_seed(seed)
        return PEARL(conditioned_actor(), PEARLConfig(num_sampled_tasks=4))

    def make_batch(self, algorithm: AnyAlgorithm, seed: int) -> object:
        batch = make_replay_batch(algorithm, seed)
        context = make_replay_batch(algorithm, seed + 100, size=20)
        columns = ("observation", "action", "next_observation")
        extras = {f"context/{name}": getattr(context, name).view(4, 5, 2) for name in columns}
        extras["context/reward"] = context.reward[:, 0].view(4, 5)
        return replace(batch, extras=extras)


class TestContextConditionedActor(ActorSuite):
    observation_spaces: ClassVar = {"vector": OBSERVATIONS}
    action_spaces: ClassVar = {"discrete": spaces.Discrete(3), "box": ACTIONS}

    def make_actor(self, observation_space: Space, action_space: Space) -> Actor:
        return conditioned_actor(observation_space, action_space, use_next_observation=True)
