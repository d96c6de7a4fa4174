from dataclasses import replace

import pytest

from rl_core.storage import HasTrajectories
from rl_storages import ReplayBuffer
from rl_testing.replay import LIVES, ReplayStorageSuite
from rl_testing.storages import seeded
from rl_testing.transitions import TransitionScript
from rl_train.demonstrations import insert_trajectories


class Suite(ReplayStorageSuite):
    __test__ = False

    def make_storage(self, *, size: int, n_step: int) -> ReplayBuffer:
        return ReplayBuffer(size, n_step=n_step)


PLAIN = {name: life for name, life in LIVES.items() if not (life.extras or life.recurrent)}
"""Trajectories hold neither extras nor states."""


@pytest.mark.parametrize("life", PLAIN.values(), ids=PLAIN)
@pytest.mark.parametrize("n_step", [1, 3, 5])
def test_who_takes_over_trajectories_draws_what_happened(
    life: TransitionScript, n_step: int
) -> None:
    """Also with another number of environments, and with more room."""
    suite = Suite()
    storage, oracle = suite.filled_pair(life, n_step)
    assert isinstance(storage, HasTrajectories)
    for num_envs in (1, life.num_envs + 1):
        taker = suite.make_storage(size=500 * num_envs, n_step=n_step)
        assert isinstance(taker, HasTrajectories)
        taker.allocate(replace(life.spec(), num_envs=num_envs), seeded())
        count = insert_trajectories(taker, storage.trajectories())
        assert count == sum(map(len, storage.trajectories()))
        suite.check_complete(taker, oracle)
