"""Random network distillation must find what no reward points at."""

from collections.abc import Callable
from typing import SupportsFloat

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from rl_algos_onpolicy import (
    A2C,
    PPO,
    RND,
    RNDPPO,
    TRPO,
    A2CConfig,
    OnPolicyActor,
    OnPolicyActorConfig,
    PPOConfig,
    RNDConfig,
    RNDPPOConfig,
    TRPOConfig,
)
from rl_core.algorithm import AnyAlgorithm, PolicyLossAddOn
from rl_envs import make_gym_vec
from rl_storages import RolloutStorage
from rl_testing.scripted import Info
from rl_train import Trainer, TrainerConfig, evaluate_policy

NUM_ENVS = 8
KEYS = (1, 2, 2, 1, 2, 1, 1, 2, 1, 2)
"""The action that opens each door."""

NEAR_REWARD = 0.02


class Doors(gymnasium.Env):
    """A row of doors, each opened by one of two keys; a wrong key ends the episode.

    Behind the last door there is a reward of 1, which acting at random finds once in 3¹⁰ episodes.
    Action 0 leaves at any time with a small reward. The observation is the number of open doors.
    """

    def __init__(self) -> None:
        self.observation_space = spaces.Discrete(len(KEYS) + 1)
        self.action_space = spaces.Discrete(3)
        self.opened = 0

    def reset(
        self, *, seed: int | None = None, options: Info | None = None
    ) -> tuple[np.int64, Info]:
        super().reset(seed=seed)
        self.opened = 0
        return np.int64(0), {}

    def step(self, action: object) -> tuple[np.int64, SupportsFloat, bool, bool, Info]:
        key = int(np.asarray(action).item())
        opens = key == KEYS[self.opened]
        self.opened += opens
        is_last = self.opened == len(KEYS)
        reward = 1.0 if is_last else NEAR_REWARD if key == 0 else 0.0
        return np.int64(self.opened), reward, is_last or not opens, False, {}


RND_OPTIONS = RNDConfig(hidden_sizes=(32,), num_features=16, pre_normalization_steps=0)


def _actor(*, intrinsic: bool = False) -> OnPolicyActor:
    torch.manual_seed(0)
    config = OnPolicyActorConfig(hidden_sizes=(32,), intrinsic_value=intrinsic)
    return OnPolicyActor(spaces.Discrete(len(KEYS) + 1), spaces.Discrete(3), config)


def _return_of(algorithm: AnyAlgorithm, num_steps: int, total_steps: int) -> float:
    """Train from scratch and return the mean return of the deterministic policy."""
    envs = make_gym_vec(Doors, NUM_ENVS, seed=0)
    options = TrainerConfig(compile="off", num_threads=1)
    Trainer(envs, algorithm, RolloutStorage(num_steps), config=options, seed=0).train(total_steps)
    envs.close()
    test_envs = make_gym_vec(Doors, NUM_ENVS, seed=1)
    result = evaluate_policy(algorithm, test_envs, NUM_ENVS)
    test_envs.close()
    return result.mean


def _ppo() -> PPO:
    return PPO(_actor(), PPOConfig(learning_rate=3e-3, num_epochs=4, minibatch_size=128))


def _rnd_ppo() -> RNDPPO:
    config = RNDPPOConfig(learning_rate=3e-3, num_epochs=4, minibatch_size=128, rnd=RND_OPTIONS)
    return RNDPPO(_actor(intrinsic=True), config)


def _a2c(*add_ons: PolicyLossAddOn) -> A2C:
    config = A2CConfig(policy_learning_rate=3e-3, value_learning_rate=3e-3)
    return A2C(_actor(), config, add_ons=add_ons)


def _trpo(*add_ons: PolicyLossAddOn) -> TRPO:
    return TRPO(_actor(), TRPOConfig(minibatch_size=128), add_ons=add_ons)


def test_ppo_leaves_at_once_and_rnd_ppo_opens_all_doors() -> None:
    assert _return_of(_ppo(), 64, 20_000) == pytest.approx(NEAR_REWARD)
    assert _return_of(_rnd_ppo(), 64, 20_000) == 1.0


@pytest.mark.parametrize(
    ("make_algorithm", "num_steps"), [(_a2c, 16), (_trpo, 64)], ids=["a2c", "trpo"]
)
def test_other_algorithms_explore_with_the_add_on(
    make_algorithm: Callable[..., AnyAlgorithm], num_steps: int
) -> None:
    assert _return_of(make_algorithm(), num_steps, 20_000) == pytest.approx(NEAR_REWARD)
    assert _return_of(make_algorithm(RND(rnd=RND_OPTIONS)), num_steps, 20_000) == 1.0
