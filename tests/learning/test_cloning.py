"""Behavior cloning must reach its expert on tasks so small that only a mistake fails to."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from rl_algos_offpolicy import BC, BCConfig, OffPolicyActor, OffPolicyActorConfig
from rl_algos_offpolicy.actor.config import PolicyKind
from rl_algos_offpolicy.bc import CloningLoss
from rl_algos_onpolicy import OnPolicyActor
from rl_core.actor import Actor
from rl_core.env import VecEnv
from rl_envs import make_gym_vec
from rl_storages import ReplayBuffer
from rl_testing.scripted import IDENTITY_SPACES, IdentityEnv
from rl_train import Trainer, TrainerConfig, evaluate_policy
from rl_train.storage_files import save_storage

NUM_ENVS = 4
TRAINING = TrainerConfig(compile="off", num_threads=1)


def _envs(kind: str, seed: int = 0) -> VecEnv:
    return make_gym_vec(partial(IdentityEnv, IDENTITY_SPACES[kind]), NUM_ENVS, seed=seed)


def _off_policy(envs: VecEnv, policy: PolicyKind) -> Actor:
    config = OffPolicyActorConfig(policy=policy, hidden_sizes=(32,), num_critics=1)
    return OffPolicyActor(envs.single_observation_space, envs.single_action_space, config)


def _score(learner: BC, kind: str) -> float:
    test_envs = _envs(kind, seed=1)
    score = evaluate_policy(learner, test_envs, 100).mean
    test_envs.close()
    return score


@pytest.mark.parametrize(
    ("kind", "policy", "loss"),
    [
        ("discrete", "stochastic", "log_prob"),
        ("discrete", "on-policy", "log_prob"),
        ("multi_discrete", "on-policy", "log_prob"),
        ("box", "stochastic", "log_prob"),
        ("box", "stochastic", "mse"),
        ("box", "deterministic", "mse"),
        ("box", "on-policy", "mse"),
    ],
)
def test_it_learns_what_the_expert_does(kind: str, policy: str, loss: CloningLoss) -> None:
    envs = _envs(kind)
    torch.manual_seed(0)
    actor = (
        OnPolicyActor(envs.single_observation_space, envs.single_action_space)
        if policy == "on-policy"
        else _off_policy(envs, policy)  # type: ignore[arg-type]  # one of the kinds
    )
    config = BCConfig(loss=loss, learning_rate=3e-3, update_every=100, minibatch_size=64)
    learner = BC(actor, config, expert=np.asarray)
    result = Trainer(envs, learner, ReplayBuffer(5000), config=TRAINING, seed=0).train(2000)
    envs.close()
    assert (result.total_steps, result.total_updates) == (2000, 20)
    task = IdentityEnv(IDENTITY_SPACES[kind])
    score = _score(learner, kind)
    assert score > 0.95 * task.optimal_return > task.constant_return


def test_it_learns_from_a_saved_storage_alone(tmp_path: Path) -> None:
    envs = _envs("box")
    torch.manual_seed(0)
    watcher = BC(_off_policy(envs, "stochastic"), expert=np.asarray)
    trainer = Trainer(envs, watcher, ReplayBuffer(5000), config=TRAINING, seed=0)
    trainer.collector.collect(2000, into=trainer.storage)
    save_storage(trainer.storage, tmp_path / "demos", recipe=trainer.recipe)
    # Its actions are not scaled, those that were saved are.
    learner = BC(
        OnPolicyActor(envs.single_observation_space, envs.single_action_space),
        BCConfig(learning_rate=3e-3, loss="mse", minibatch_size=64),
    )
    config = TrainerConfig(compile="off", num_threads=1, demonstrations=str(tmp_path / "demos"))
    trainer = Trainer(envs, learner, ReplayBuffer(5000), config=config, seed=0)
    result = trainer.train(total_steps=400)
    envs.close()
    assert trainer.state.num_demonstrations == 2000
    assert (result.total_steps, result.total_updates) == (400, 25)
    assert trainer.collector.total_episodes == 0
    assert learner.gradients.count == 400
    assert _score(learner, "box") > 0.95 * IdentityEnv(IDENTITY_SPACES["box"]).optimal_return
