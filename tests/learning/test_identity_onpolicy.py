"""On-policy algorithms must solve tasks so small that anything else than a mistake solves them."""

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import gymnasium
import pytest
import torch

from rl_algos_onpolicy import (
    A2C,
    PPO,
    TRPO,
    VPG,
    A2CConfig,
    OnPolicyActor,
    OnPolicyActorConfig,
    PPOConfig,
    TRPOConfig,
    VPGConfig,
)
from rl_core import Trainer, TrainerConfig, evaluate_policy, make_gym_vec
from rl_core.algorithm import AnyAlgorithm
from rl_core.nn.trunk import MemoryKind
from rl_core.testing.scripted import IDENTITY_SPACES, IdentityEnv, MemoryCueEnv
from rl_storages import RolloutStorage

NUM_ENVS = 8
MakeAlgorithm: TypeAlias = Callable[[float, int, OnPolicyActor], AnyAlgorithm]


def _train(
    make_env: Callable[[], gymnasium.Env],
    make_algorithm: MakeAlgorithm,
    *,
    gamma: float,
    num_steps: int,
    total_steps: int,
    memory: MemoryKind = "none",
    sequence_length: int | None = None,
) -> float:
    """Train from scratch and return the mean return of the deterministic policy."""
    envs = make_gym_vec(make_env, NUM_ENVS, seed=0)
    torch.manual_seed(0)
    config = OnPolicyActorConfig(
        hidden_sizes=(32,),
        recurrent_net=memory,
        recurrent_hidden_size=None if memory == "none" else 16,
        initial_log_std=-0.7 if isinstance(envs.single_action_space, gymnasium.spaces.Box) else 0.0,
    )
    actor = OnPolicyActor(envs.single_observation_space, envs.single_action_space, config)
    algorithm = make_algorithm(gamma, num_steps, actor)
    options = TrainerConfig(compile="off", num_threads=1)
    storage = RolloutStorage(num_steps, sequence_length=sequence_length)
    Trainer(envs, algorithm, storage, config=options, seed=0).train(total_steps)
    envs.close()
    test_envs = make_gym_vec(make_env, NUM_ENVS, seed=1)
    result = evaluate_policy(algorithm, test_envs, 200)
    test_envs.close()
    return result.mean


def _ppo(gamma: float, num_steps: int, actor: OnPolicyActor) -> PPO:
    size = 4 * num_steps
    return PPO(
        actor, PPOConfig(learning_rate=1e-2, gamma=gamma, num_epochs=4, mini_batch_size=size)
    )


def _a2c(gamma: float, num_steps: int, actor: OnPolicyActor) -> A2C:
    rate = 7e-3
    return A2C(actor, A2CConfig(policy_learning_rate=rate, value_learning_rate=rate, gamma=gamma))


def _vpg(gamma: float, num_steps: int, actor: OnPolicyActor) -> VPG:
    rate = 2e-2
    return VPG(actor, VPGConfig(policy_learning_rate=rate, value_learning_rate=rate, gamma=gamma))


def _reinforce(gamma: float, num_steps: int, actor: OnPolicyActor) -> VPG:
    config = VPGConfig(policy_learning_rate=2e-2, value_learning_rate=None, gamma=gamma)
    return VPG(actor, config)


def _trpo(gamma: float, num_steps: int, actor: OnPolicyActor) -> TRPO:
    size = 4 * num_steps
    return TRPO(actor, TRPOConfig(max_kl=0.05, gamma=gamma, num_epochs=4, mini_batch_size=size))


def _penalised_ppo(gamma: float, num_steps: int, actor: OnPolicyActor) -> PPO:
    config = PPOConfig(
        learning_rate=1e-2,
        gamma=gamma,
        num_epochs=4,
        mini_batch_size=4 * num_steps,
        surrogate="kl-penalty",
        kl_target=0.05,
    )
    return PPO(actor, config)


@pytest.mark.parametrize("kind", IDENTITY_SPACES)
@pytest.mark.parametrize(
    ("make_algorithm", "num_steps", "total_steps"),
    [(_ppo, 64, 5_120), (_a2c, 8, 8_000), (_trpo, 64, 12_288)],
    ids=["ppo", "a2c", "trpo"],
)
def test_it_learns_to_answer_what_it_sees(
    make_algorithm: MakeAlgorithm,
    num_steps: int,
    total_steps: int,
    kind: str,
) -> None:
    make_env = partial(IdentityEnv, IDENTITY_SPACES[kind])
    score = _train(
        make_env, make_algorithm, gamma=0.0, num_steps=num_steps, total_steps=total_steps
    )
    task = make_env()
    assert score > 0.95 * task.optimal_return > task.constant_return


@pytest.mark.parametrize("kind", ["discrete", "box"])
@pytest.mark.parametrize(
    ("make_algorithm", "num_steps", "total_steps"),
    [(_vpg, 16, 12_800), (_reinforce, 16, 12_800), (_penalised_ppo, 64, 8_192)],
    ids=["vpg", "reinforce", "ppo-penalty"],
)
def test_the_other_forms_learn_it_too(
    make_algorithm: MakeAlgorithm,
    num_steps: int,
    total_steps: int,
    kind: str,
) -> None:
    make_env = partial(IdentityEnv, IDENTITY_SPACES[kind])
    score = _train(
        make_env, make_algorithm, gamma=0.0, num_steps=num_steps, total_steps=total_steps
    )
    task = make_env()
    assert score > 0.95 * task.optimal_return > task.constant_return


@pytest.mark.parametrize("memory", ["gru", "lstm"])
@pytest.mark.parametrize(
    ("make_algorithm", "num_steps", "total_steps"),
    [(_ppo, 16, 4_096), (_a2c, 8, 8_000)],
    ids=["ppo", "a2c"],
)
def test_memory_answers_what_it_saw_before(
    make_algorithm: MakeAlgorithm,
    num_steps: int,
    total_steps: int,
    memory: MemoryKind,
) -> None:
    score = _train(
        partial(MemoryCueEnv, 2),  # episodes of three rows, which sequences cut anywhere
        make_algorithm,
        gamma=0.9,
        num_steps=num_steps,
        total_steps=total_steps,
        memory=memory,
        sequence_length=num_steps // 2,
    )
    assert score > 0.95


def test_without_memory_it_can_only_guess() -> None:
    score = _train(partial(MemoryCueEnv, 2), _ppo, gamma=0.9, num_steps=16, total_steps=4_096)
    assert 0.35 < score < 0.65
