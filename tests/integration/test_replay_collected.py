"""What a collector brings from environments, which know themselves what follows what.

Environment `i` shows ``[i, episode, step]``, and rewards the step to it with
``100 episode + step``.
"""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from torch import Tensor

from rl_core.env import VecEnv
from rl_envs import SyncVecEnv
from rl_storages import PrioritizedConfig, ReplayBuffer
from rl_testing.scripted import CountingEnv
from rl_testing.storages import seeded
from rl_testing.toy import ToyActor, ToyActorCritic
from rl_train import Collector
from support.envs import counting_envs

_LENGTHS = ((3, 1, 4), (2, 5), (9,))
_TERMINATE = ((True, False), (False,), (True, False, False))


def _single_envs() -> VecEnv:
    return SyncVecEnv([CountingEnv(_LENGTHS[i], _TERMINATE[i], i) for i in range(3)])


def _same_step() -> VecEnv:
    return counting_envs(_LENGTHS, _TERMINATE, AutoresetMode.SAME_STEP)


def _next_step() -> VecEnv:
    return counting_envs(_LENGTHS, _TERMINATE, AutoresetMode.NEXT_STEP)


@pytest.mark.parametrize("envs", [_single_envs, _next_step, _same_step])
@pytest.mark.parametrize("prioritized", [None, PrioritizedConfig()])
@pytest.mark.parametrize("n_step", [1, 3])
def test_every_window_follows_from_the_numbers(
    envs: Callable[[], VecEnv], prioritized: PrioritizedConfig | None, n_step: int
) -> None:
    vec_env = envs()
    actor = ToyActor(vec_env.single_observation_space, vec_env.single_action_space)
    collector = Collector(vec_env, ToyActorCritic(actor), generator=torch.Generator(), seed=0)
    storage = ReplayBuffer(90, n_step=n_step, prioritized=prioritized)
    storage.allocate(collector.storage_spec(), seeded())
    for _ in range(40):
        collector.collect(12, into=storage)
        newest = np.zeros(3)
        (batch,) = storage.generate_batches(1, 500)
        assert isinstance(batch.observation, Tensor)
        assert isinstance(batch.next_observation, Tensor)
        now, after = batch.observation.numpy(), batch.next_observation.numpy()
        index, episode, step = now.T.astype(int)
        places = list(zip(index, episode, strict=True))
        length = np.array([_LENGTHS[i][e % len(_LENGTHS[i])] for i, e in places])
        by_termination = np.array([_TERMINATE[i][e % len(_TERMINATE[i])] for i, e in places])
        taken = batch.num_steps.numpy()
        assert np.array_equal(after, np.stack([index, episode, step + taken], 1))
        ended = step + taken == length
        assert np.array_equal(batch.terminated.numpy(), ended & by_termination)
        # A window is short only where its episode ended, or is still running.
        np.maximum.at(newest, index, 1000 * episode + step + taken)
        is_newest = 1000 * episode + step + taken == newest[index]
        assert (ended | is_newest | (taken == n_step)).all()
        steps = np.arange(1, n_step + 1)
        rewards = 100 * episode[:, None] + step[:, None] + steps
        assert np.array_equal(batch.reward.numpy(), rewards * (steps <= taken[:, None]))


def test_a_collector_that_is_reset_leaves_a_cut() -> None:
    """No window leads from the abandoned episode into the next one."""
    vec_env = SyncVecEnv([CountingEnv((100,))])
    actor = ToyActor(vec_env.single_observation_space, vec_env.single_action_space)
    collector = Collector(vec_env, ToyActorCritic(actor), generator=torch.Generator(), seed=0)
    storage = ReplayBuffer(50, n_step=4)
    storage.allocate(collector.storage_spec(), seeded())
    collector.collect(5, into=storage)
    collector.reset()
    collector.collect(5, into=storage)
    (batch,) = storage.generate_batches(1, 300)
    assert isinstance(batch.observation, Tensor)
    assert isinstance(batch.next_observation, Tensor)
    seen = {
        (*map(int, now[1:]), *map(int, after[1:]))
        for now, after in zip(
            batch.observation.tolist(), batch.next_observation.tolist(), strict=True
        )
    }
    assert seen == {(e, s, e, min(s + 4, 5)) for e in (0, 1) for s in range(5)}
    assert not batch.terminated.any()
