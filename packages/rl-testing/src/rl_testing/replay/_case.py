"""How the replay suite makes, fills and compares storages."""

from collections.abc import Mapping
from typing import ClassVar

import pytest

from rl_core.batch import ReplayBatch, Transition
from rl_core.storage import AnyStorage
from rl_testing.replay.checks import check_transitions, must_hold
from rl_testing.replay.reference import ReferenceReplayStorage
from rl_testing.replay.script import LIVES, RandomTransitionScript
from rl_testing.storages import AnyStorageSuite, seeded

SHARE = 30
"""Rows of each environment in storages that wrap around."""

STEPS = 130
"""Steps after which those have wrapped around several times."""


class ReplayCase(AnyStorageSuite):
    """What the tests of replay storages share; see `ReplayStorageSuite`."""

    lives: ClassVar[Mapping[str, RandomTransitionScript]] = LIVES
    is_uniform: ClassVar[bool] = True
    slack: ClassVar[int] = 4
    per_episode: ClassVar[int] = 1

    def make_storage(self, *, size: int, n_step: int) -> AnyStorage:
        """Return a new storage, not allocated yet.

        Args:
            size: rows over all environments.
            n_step: rewards per transition, at most.
        """
        raise NotImplementedError

    def new_storage(self) -> AnyStorage:
        """Return a storage of single steps for the tests that all storages have in common."""
        return self.make_storage(size=300, n_step=1)

    @classmethod
    def pytest_generate_tests(cls, metafunc: pytest.Metafunc) -> None:
        """Run each test with each life, and with windows of several lengths."""
        super().pytest_generate_tests(metafunc)
        if "life" in metafunc.fixturenames:
            metafunc.parametrize("life", cls.lives.values(), ids=cls.lives)
        if "n_step" in metafunc.fixturenames:
            metafunc.parametrize("n_step", (1, 3, 5))

    def pair(
        self, life: RandomTransitionScript, n_step: int, seed: int = 0, rows: int = SHARE
    ) -> tuple[AnyStorage, ReferenceReplayStorage]:
        """Return an empty storage, and an oracle that knows all it may hold."""
        num_envs = life.num_envs
        size = rows * num_envs + num_envs - 1  # what does not divide is no use
        storage = self.make_storage(size=size, n_step=n_step)
        oracle = ReferenceReplayStorage((rows + self.slack) * num_envs, n_step)
        storage.allocate(life.spec(), seeded(seed))
        oracle.allocate(life.spec(), seeded())
        return storage, oracle

    def filled_pair(
        self, life: RandomTransitionScript, n_step: int
    ) -> tuple[AnyStorage, ReferenceReplayStorage]:
        """Return a storage that has wrapped around, and its oracle."""
        storage, oracle = self.pair(life, n_step)
        insert_all(life.transitions(STEPS), storage, oracle)
        return storage, oracle

    def check_complete(self, storage: AnyStorage, oracle: ReferenceReplayStorage) -> None:
        """Assert that a storage draws all that it must hold, and nothing that it may not."""
        expected = set(must_hold(oracle, SHARE - self.slack, self.per_episode))
        if not expected:
            return
        batch = draw_one(storage, 15 * len(oracle.transitions()))
        seen = set(check_transitions(batch, oracle))
        assert expected <= seen, (
            f"{len(expected - seen)} of {len(expected)} transitions were never drawn"
        )


def draw_one(storage: AnyStorage, mini_batch_size: int) -> ReplayBatch:
    """Draw one batch."""
    (batch,) = storage.generate_batches(1, mini_batch_size)
    assert isinstance(batch, ReplayBatch)
    return batch


def insert(transition: Transition, *storages: AnyStorage) -> None:
    """Give a transition to some storages, in their order."""
    for storage in storages:
        storage.insert_transition(transition)


def insert_all(transitions: list[Transition], *storages: AnyStorage) -> None:
    """Give transitions to some storages."""
    for transition in transitions:
        insert(transition, *storages)
