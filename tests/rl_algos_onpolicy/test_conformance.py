"""Every algorithm with every kind of action: what of the conformance suite actions touch."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rl_algos_onpolicy import (
    A2C,
    PPO,
    RNDPPO,
    TRPO,
    VPG,
    OnPolicyActor,
    OnPolicyActorConfig,
    PPOConfig,
    RNDConfig,
    RNDPPOConfig,
)
from rl_core.algorithm import AnyAlgorithm
from rl_core.spaces import HybridSpace, Space
from rl_testing.algorithms import AlgorithmSuite

VECTOR = spaces.Box(-1.0, 1.0, (3,), np.float32)
BOUNDED = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 1.0], np.float32))
UNBOUNDED = spaces.Box(-np.inf, np.inf, (2,), np.float32)

ALGORITHMS: dict[str, Callable[[OnPolicyActor], AnyAlgorithm]] = {
    "vpg": VPG,
    "a2c": A2C,
    "ppo-clip": PPO,
    "ppo-plain": lambda actor: PPO(actor, PPOConfig(surrogate="plain")),
    "ppo-penalty": lambda actor: PPO(actor, PPOConfig(surrogate="kl-penalty")),
    "trpo": TRPO,
    "rnd-ppo": lambda actor: RNDPPO(
        actor, RNDPPOConfig(rnd=RNDConfig(hidden_sizes=(4,), num_features=4))
    ),
}


def _masked(size: int) -> Space:
    return spaces.Dict({"observation": VECTOR, "action_mask": spaces.MultiBinary(size)})


PLAIN = OnPolicyActorConfig(hidden_sizes=(4,))
SQUASHED = replace(PLAIN, squash_actions=True)
ACTIONS: dict[str, tuple[Space, Space, OnPolicyActorConfig]] = {
    "discrete": (VECTOR, spaces.Discrete(3, start=-1), PLAIN),
    "multi-discrete": (VECTOR, spaces.MultiDiscrete([3, 2]), PLAIN),
    "multi-binary": (VECTOR, spaces.MultiBinary(2), PLAIN),
    "bounded": (VECTOR, BOUNDED, PLAIN),
    "unbounded": (VECTOR, UNBOUNDED, PLAIN),
    "own-std": (VECTOR, UNBOUNDED, replace(PLAIN, state_dependent_std=True)),
    "squashed": (VECTOR, BOUNDED, SQUASHED),
    "hybrid": (VECTOR, HybridSpace(BOUNDED, spaces.MultiDiscrete([3, 2])), PLAIN),
    "masked": (_masked(3), spaces.Discrete(3), PLAIN),
    "masked-multi": (_masked(5), spaces.MultiDiscrete([3, 2]), PLAIN),
}

CHECKED = (
    "test_acting_returns_what_it_declares",
    "test_deterministic_acting_explores_nothing",
    "test_preparing_a_rollout_gives_the_columns_of_a_batch",
    "test_a_step_changes_what_is_learned_and_nothing_else",
    "test_a_step_cut_in_two_is_the_same_step",
    "test_the_same_seed_twice_is_the_same_run",
    "test_a_restored_part_goes_on_as_the_saved_one_did",
    "test_a_step_that_is_not_finite_can_be_skipped",
)


@pytest.mark.parametrize("actions", ACTIONS)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_algorithm_conforms_with_all_kinds_of_actions(name: str, actions: str) -> None:
    observation_space, action_space, config = ACTIONS[actions]
    if name == "rnd-ppo":
        config = replace(config, intrinsic_value=True)

    class Suite(AlgorithmSuite):
        def make_algorithm(self, seed: int) -> AnyAlgorithm:
            torch.manual_seed(seed)
            return ALGORITHMS[name](OnPolicyActor(observation_space, action_space, config))

    for check in CHECKED:
        if check == "test_a_step_cut_in_two_is_the_same_step" and name == "trpo":
            continue  # its policy's step is no gradient
        getattr(Suite(), check)()
