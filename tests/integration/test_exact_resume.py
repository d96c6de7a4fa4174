"""Runs in Gymnasium's environments equal an uninterrupted run after a resume."""

from pathlib import Path
from typing import Literal

import pytest
import torch

import rl_train
from rl_algos_onpolicy import PPO, OnPolicyActor, OnPolicyActorConfig, PPOConfig
from rl_envs import make_vec
from rl_storages import RolloutStorage
from rl_testing.stateful import check_same_state
from rl_train import Trainer


def _trainer(
    env_id: str, vectorization: Literal["sync", "native"], run_dir: Path | None = None
) -> Trainer:
    envs = make_vec(env_id, 2, vectorization=vectorization)
    torch.manual_seed(0)
    spaces = envs.single_observation_space, envs.single_action_space
    actor = OnPolicyActor(*spaces, OnPolicyActorConfig(hidden_sizes=(8,)))
    algorithm = PPO(actor, PPOConfig())
    return Trainer(envs, algorithm, RolloutStorage(35), seed=1, run_dir=run_dir)


@pytest.mark.parametrize(
    ("env_id", "vectorization"),
    [
        ("CartPole-v1", "sync"),
        ("CartPole-v1", "native"),
        ("HalfCheetah-v5", "sync"),
    ],
)
def test_a_resumed_run_equals_one_that_was_never_stopped(
    env_id: str, vectorization: Literal["sync", "native"], tmp_path: Path
) -> None:
    whole = _trainer(env_id, vectorization)
    whole.train(total_updates=5)
    first = _trainer(env_id, vectorization, tmp_path)
    first.train(total_updates=2)
    assert first.resume_grade == "exact"
    second = _trainer(env_id, vectorization, tmp_path)
    second.resume()
    second.train(total_updates=5)
    check_same_state(second.state_dict()["algorithm"], whole.state_dict()["algorithm"])
    check_same_state(second.state_dict()["collector"], whole.state_dict()["collector"])
    for trainer in (whole, first, second):
        trainer.envs.close()


@pytest.mark.parametrize(("num_envs", "expected"), [(2, "sync"), (8, "native")])
def test_the_recipe_records_how_environments_step(num_envs: int, expected: str) -> None:
    agent = rl_train.make("ppo", "CartPole-v1", num_envs=num_envs, num_steps=32)
    agent.train(total_steps=64)
    assert agent.recipe.env["vectorization"] == expected
