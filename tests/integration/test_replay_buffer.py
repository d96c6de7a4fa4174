"""The replay buffer with collectors and algorithms: stacks of frames, and memory."""

from collections.abc import Mapping

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.wrappers import FrameStackObservation, GrayscaleObservation
from torch import Tensor

from rl_algos_offpolicy import DQN, DQNConfig, OffPolicyActor, OffPolicyActorConfig
from rl_core import Trainer, make_gym_vec
from rl_core.batch import ReplayBatch
from rl_core.collector import Collector
from rl_core.env import SyncVecEnv
from rl_core.errors import ConfigError
from rl_core.testing.storages import seeded
from rl_core.testing.toy import ToyActor, ToyActorCritic
from rl_core.types import Array
from rl_storages import ReplayBuffer, SequenceConfig


class _Fading(gymnasium.Env[Array, np.int64]):
    """Each frame is as bright as the steps that were taken, in all three colours."""

    observation_space = gymnasium.spaces.Box(0, 255, (36, 36, 3), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[Array, dict[str, object]]:
        self._brightness = 1
        return self._frame(), {}

    def step(self, action: np.int64) -> tuple[Array, float, bool, bool, dict[str, object]]:
        self._brightness += 1
        return self._frame(), 1.0, self._brightness == 8, False, {}

    def _frame(self) -> Array:
        return np.full((36, 36, 3), self._brightness, np.uint8)


@pytest.mark.parametrize("keep_dim", [False, True])
@pytest.mark.parametrize("padding", ["reset", "zero"])
def test_dqn_learns_from_stacks_of_gymnasiums_wrapper(padding: str, keep_dim: bool) -> None:
    def make() -> gymnasium.Env[Array, np.int64]:
        env = GrayscaleObservation(_Fading(), keep_dim=keep_dim)
        return FrameStackObservation(env, 4, padding_type=padding)

    envs = SyncVecEnv([make(), make()])
    actor = OffPolicyActor(
        envs.single_observation_space,
        envs.single_action_space,
        OffPolicyActorConfig(policy="greedy", num_critics=1, hidden_sizes=(8,), image_features=8),
    )
    convolution = next(p for name, p in actor.named_parameters() if "convolutions.0" in name)
    assert convolution.shape[1] == 4
    config = DQNConfig(update_after=20, update_every=10, mini_batch_size=8)
    storage = ReplayBuffer(40, n_step=2, frame_stack=4)
    Trainer(envs, DQN(actor, config), storage).train(total_steps=60)
    (batch,) = storage.generate_batches(1, 200)
    _check_brightness(batch, padding)


def _check_brightness(batch: ReplayBatch, padding: str) -> None:
    assert isinstance(batch.observation, Tensor)
    assert isinstance(batch.next_observation, Tensor)
    older = torch.tensor([3, 2, 1, 0])
    first = 1 if padding == "reset" else 0
    for stacks in (batch.observation, batch.next_observation):
        newest = stacks[:, -1].flatten(1)[:, :1].int()
        expected = (newest - older).clamp(min=first)
        assert torch.equal(stacks.flatten(2)[:, :, 0].int(), expected)
        assert int(newest.max()) <= 8


def test_a_collector_brings_stacks() -> None:
    """With its own resets from outside, which leave a cut."""
    env = FrameStackObservation(GrayscaleObservation(_Fading()), 4)
    envs = SyncVecEnv([env])
    actor = ToyActor(envs.single_observation_space, envs.single_action_space)
    collector = Collector(envs, ToyActorCritic(actor), generator=torch.Generator(), seed=0)
    storage = ReplayBuffer(30, n_step=3, frame_stack=4)
    storage.allocate(collector.storage_spec(), seeded())
    for _ in range(12):
        collector.collect(5, into=storage)
        (batch,) = storage.generate_batches(1, 60)
        _check_brightness(batch, "reset")
        collector.reset()


class _Recurrent(OffPolicyActor):
    @property
    def state_sizes(self) -> Mapping[str, int]:
        return {"memory": 2}


@pytest.mark.parametrize(
    ("actor_type", "sequences", "message"),
    [
        (_Recurrent, None, "the actor is recurrent, but ReplayBuffer replays single transitions"),
        (OffPolicyActor, SequenceConfig(), "replays sequences, but the actor has no memory"),
    ],
)
def test_memory_and_sequences_need_each_other(
    actor_type: type[OffPolicyActor], sequences: SequenceConfig | None, message: str
) -> None:
    envs = make_gym_vec("CartPole-v1", num_envs=1, seed=0)
    config = OffPolicyActorConfig(policy="greedy", num_critics=1)
    actor = actor_type(envs.single_observation_space, envs.single_action_space, config)
    with pytest.raises(ConfigError, match=message):
        Trainer(envs, DQN(actor, DQNConfig()), ReplayBuffer(100, sequences=sequences))
