"""Recurrent off-policy algorithms must answer what they saw earlier, which nothing else can."""

from collections.abc import Callable
from functools import partial
from typing import Any, SupportsFloat

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rl_algos_offpolicy import (
    DDPG,
    DQN,
    SAC,
    TD3,
    DDPGConfig,
    DQNConfig,
    OffPolicyActor,
    OffPolicyActorConfig,
    SACConfig,
    TD3Config,
)
from rl_algos_offpolicy.actor.config import PolicyKind
from rl_core.algorithm import AnyAlgorithm
from rl_core.types import Array
from rl_envs import make_gym_vec
from rl_storages import ReplayBuffer, SequenceConfig
from rl_testing.scripted import Info, MemoryCueEnv
from rl_train import Trainer, TrainerConfig, evaluate_policy

NUM_ENVS, DELAY = 4, 2
SHARED: dict[str, Any] = {
    "gamma": 0.9,
    "minibatch_size": 32 * (DELAY + 1),
    "start_steps": 300,
    "update_after": 300,
}
CADENCE: dict[str, Any] = {"update_every": NUM_ENVS}
RATES: dict[str, Any] = {"policy_learning_rate": 3e-3, "critic_learning_rate": 1e-2, "tau": 0.05}
EXPLORATION: dict[str, Any] = {"exploration_std": 0.3}


class RealCueEnv(MemoryCueEnv):
    """Asks for -1 or 1, and gives less the further away the answer is; at best 1.

    Who does not know does best to say 0, which earns 0.
    """

    def __init__(self, delay: int) -> None:
        super().__init__(delay)
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def step(self, action: object) -> tuple[Array, SupportsFloat, bool, bool, Info]:
        answer = float(np.asarray(action).item())
        observation, _, was_asked, truncated, info = super().step(0)
        error = abs(answer - (2.0 * self.cue - 1.0))
        return observation, float(was_asked) * (1.0 - error**2), was_asked, truncated, info


def _dqn(actor: OffPolicyActor) -> DQN:
    config = DQNConfig(**SHARED, **CADENCE, learning_rate=3e-3, target_update_every=10)
    return DQN(actor, config)


def _ddpg(actor: OffPolicyActor) -> DDPG:
    return DDPG(actor, DDPGConfig(**SHARED, **CADENCE, **RATES, **EXPLORATION))


def _td3(actor: OffPolicyActor) -> TD3:
    return TD3(actor, TD3Config(**SHARED, **CADENCE, **RATES, **EXPLORATION))


def _sac(actor: OffPolicyActor) -> SAC:
    config = SACConfig(
        **SHARED, **CADENCE, **RATES, initial_temperature=0.05, learn_temperature=False
    )
    return SAC(actor, config)


@pytest.mark.parametrize(
    ("make_algorithm", "policy", "make_env"),
    [
        (_dqn, "greedy", MemoryCueEnv),
        (_sac, "stochastic", MemoryCueEnv),
        (_sac, "stochastic", RealCueEnv),
        (_ddpg, "deterministic", RealCueEnv),
        (_td3, "deterministic", RealCueEnv),
    ],
)
def test_it_learns_to_answer_what_it_saw_earlier(
    make_algorithm: Callable[[OffPolicyActor], AnyAlgorithm],
    policy: PolicyKind,
    make_env: type[MemoryCueEnv],
) -> None:
    lengths = SequenceConfig(length=DELAY + 1, overlap=0.0)
    assert _score(make_algorithm, policy, make_env, lengths) > 0.9  # 0.5 or 0 without memory


def test_it_learns_what_was_seen_before_the_sequence_began() -> None:
    """The row that is asked about begins a sequence, and its burn-in does not show the cue.

    No gradient reaches the cue, so the memory has to be wide enough to keep it untrained.
    """
    lengths = SequenceConfig(length=DELAY + 1, overlap=0.34)
    assert (lengths.learned, lengths.burn_in) == (DELAY, 1)
    assert _score(_dqn, "greedy", MemoryCueEnv, lengths, memory_size=64) > 0.9


def _score(
    make_algorithm: Callable[[OffPolicyActor], AnyAlgorithm],
    policy: PolicyKind,
    make_env: type[MemoryCueEnv],
    lengths: SequenceConfig,
    memory_size: int = 16,
) -> float:
    """Train for a while, and return the mean of 100 answers' rewards."""
    make = partial(make_env, DELAY)
    envs = make_gym_vec(make, NUM_ENVS, seed=0)
    torch.manual_seed(0)
    config = OffPolicyActorConfig(
        policy=policy,
        hidden_sizes=(16,),
        num_critics=1 if policy == "greedy" else 2,
        recurrent_net="gru",
        recurrent_hidden_size=memory_size,
    )
    actor = OffPolicyActor(envs.single_observation_space, envs.single_action_space, config)
    algorithm = make_algorithm(actor)
    options = TrainerConfig(compile="off", num_threads=1)
    storage = ReplayBuffer(2000, sequences=lengths)
    Trainer(envs, algorithm, storage, config=options, seed=0).train(total_steps=1500)
    envs.close()
    test_envs = make_gym_vec(make, NUM_ENVS, seed=1)
    score = evaluate_policy(algorithm, test_envs, 100).mean
    test_envs.close()
    return score
