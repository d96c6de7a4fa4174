"""All tests of a storage of replayed sequences in one class."""

from collections import Counter
from collections.abc import Mapping
from typing import ClassVar, cast

import pytest
import torch

from rl_core.batch import ReplayBatch
from rl_core.storage import AnyStorage
from rl_core.types import StateDict
from rl_testing.replay._case import draw_one, insert, insert_all
from rl_testing.replay.checks import must_hold
from rl_testing.replay.script import LIVES, RandomTransitionScript
from rl_testing.replay.sequences import ReferenceSequenceStorage, check_sequences
from rl_testing.stateful import check_same_state, copy_state
from rl_testing.storages import AnyStorageSuite, columns_of, seeded

SHARE = 40
"""Rows of each environment in storages that wrap around."""

STEPS = 170
"""Steps after which those have wrapped around several times."""

SHAPES = ((1, 4, 3), (3, 3, 0), (2, 2, 5))
"""Steps of a window, transitions to learn from, and burn-in, of the tested sequences."""


class SequenceReplaySuite(AnyStorageSuite):
    """Tests of storages that replay sequences, with `ReferenceSequenceStorage` as the oracle.

    Subclass it and supply `make_storage`. What ``size`` promises is what it does to a
    `ReplayStorageSuite`: the newest transitions that fit are each learned from in one sequence.

    Attributes:
        lives: what storages are filled with, by name.
        is_uniform: whether all sequences are drawn alike, with weight 1.
        slack: rows by which each environment's may be fewer than promised, or more beyond those
            of one sequence.
        per_episode: rows that an episode may take beside those of its transitions.
    """

    lives: ClassVar[Mapping[str, RandomTransitionScript]] = {
        name: LIVES[name]
        for name in (
            "same_step_dict_box",
            "same_step_recurrent",
            "same_step_alike",
            "next_step_seams",
            "next_step_alike",
        )
    }
    is_uniform: ClassVar[bool] = True
    slack: ClassVar[int] = 4
    per_episode: ClassVar[int] = 1

    def make_storage(self, *, size: int, n_step: int, learned: int, burn_in: int) -> AnyStorage:
        """Return a new storage, not allocated yet.

        Args:
            size: rows over all environments.
            n_step: rewards per transition, at most.
            learned: transitions of a sequence to learn from.
            burn_in: transitions before them.
        """
        raise NotImplementedError

    def new_storage(self) -> AnyStorage:
        """Return a storage for the tests that all storages have in common."""
        return self.make_storage(size=300, n_step=1, learned=3, burn_in=2)

    @classmethod
    def pytest_generate_tests(cls, metafunc: pytest.Metafunc) -> None:
        """Run each test with each life, and with sequences of several shapes."""
        super().pytest_generate_tests(metafunc)
        if "life" in metafunc.fixturenames:
            metafunc.parametrize("life", cls.lives.values(), ids=cls.lives)
        if "shape" in metafunc.fixturenames:
            metafunc.parametrize("shape", SHAPES, ids=str)

    def pair(
        self, life: RandomTransitionScript, shape: tuple[int, int, int], seed: int = 0
    ) -> tuple[AnyStorage, ReferenceSequenceStorage]:
        """Return an empty storage, and an oracle that forgets nothing."""
        n_step, learned, burn_in = shape
        storage = self.make_storage(
            size=SHARE * life.num_envs, n_step=n_step, learned=learned, burn_in=burn_in
        )
        oracle = ReferenceSequenceStorage(10**6, n_step, learned=learned, burn_in=burn_in)
        storage.allocate(life.spec(), seeded(seed))
        oracle.allocate(life.spec(), seeded())
        return storage, oracle

    def check(self, batch: ReplayBatch, oracle: ReferenceSequenceStorage) -> set[tuple[int, int]]:
        """Compare a batch with the oracle; return environment and step of what is learned from."""
        oldest = len(oracle) - SHARE - self.slack - oracle.learned - oracle.burn_in
        found = check_sequences(batch, oracle, oldest=oldest)
        return {(sequence.env, row.step) for sequence in found for row in sequence.rows}

    def check_complete(self, storage: AnyStorage, oracle: ReferenceSequenceStorage) -> None:
        """Assert that a storage draws all that it must hold, and nothing that it may not."""
        steps = [
            (env, r.step) for env in range(oracle.num_envs) for e in oracle.episodes(env) for r in e
        ]
        expected = {steps[i] for i in must_hold(oracle, SHARE - self.slack, self.per_episode)}
        if expected:
            seen = self.check(draw_one(storage, 800 * oracle.learned), oracle)
            assert expected <= seen, f"{sorted(expected - seen)} were never learned from"

    def test_it_gives_sequences(self, life: RandomTransitionScript) -> None:
        """An actor with a memory asks for just this, and gets whole rows of time."""
        storage, _ = self.pair(life, SHAPES[0])
        assert storage.gives_sequences
        insert_all(life.transitions(30), storage)
        n_step, learned, burn_in = SHAPES[0]
        batches = list(storage.generate_batches(3, 2 * learned + 1))
        assert len(batches) == 3
        assert storage.steps_per_sample == burn_in + learned
        for batch in batches:
            assert batch.action.shape[:2] == batch.mask.shape == batch.weight.shape == (learned, 3)
            assert batch.reward.shape == (learned, 3, n_step)
            assert batch.key.shape == (3, 2)
            columns = columns_of(batch)
            for name in columns:
                if name.startswith("next_observation"):
                    assert columns[name].shape[:2] == (n_step, 3)
                if name.startswith("start/burn_in"):
                    assert columns[name].shape[:2] == (burn_in, 3)
                if name.startswith("start/state"):
                    assert columns[name].shape == (3, life.spec().state_sizes["memory"])

    def test_every_sequence_is_what_happened(
        self, life: RandomTransitionScript, shape: tuple[int, int, int]
    ) -> None:
        """They end with their episode, at seams and at the newest row; nothing is stale."""
        storage, oracle = self.pair(life, shape)
        for count, transition in enumerate(life.transitions(STEPS)):
            insert(transition, storage, oracle)
            if count % 23 == 0 and oracle.sequences():
                self.check(draw_one(storage, 40 * oracle.learned), oracle)

    def test_every_transition_is_learned_from(
        self, life: RandomTransitionScript, shape: tuple[int, int, int]
    ) -> None:
        """Also the first of an episode, the newest, and the oldest that there is room for."""
        storage, oracle = self.pair(life, shape)
        for count, transition in enumerate(life.transitions(STEPS), start=1):
            insert(transition, storage, oracle)
            if count in (1, SHARE // 2, SHARE + 3, STEPS):
                self.check_complete(storage, oracle)

    def test_all_sequences_are_drawn_alike(self, life: RandomTransitionScript) -> None:
        """Counted over many draws, by Pearson's test."""
        if not self.is_uniform:
            pytest.skip("not uniform")
        storage, oracle = self.pair(life, SHAPES[0])
        insert_all(life.transitions(SHARE // 2), storage, oracle)
        sequences = oracle.sequences()
        batch = draw_one(storage, 100 * len(sequences) * oracle.learned)
        assert bool((batch.weight == 1.0).all())
        found = check_sequences(batch, oracle)
        counts = Counter((each.env, each.rows[0].step) for each in found)
        drawn = torch.tensor([float(counts[(s.env, s.rows[0].step)]) for s in sequences])
        statistic = float(((drawn - 100.0) ** 2 / 100.0).sum())
        freedom = len(sequences) - 1
        assert statistic < freedom + 6.0 * (2.0 * freedom) ** 0.5

    def test_a_key_names_one_sequence(self, life: RandomTransitionScript) -> None:
        """As long as it is stored, and none that is stored later in the same place."""
        storage, oracle = self.pair(life, SHAPES[0])
        key_of: dict[object, object] = {}
        for count, transition in enumerate(life.transitions(STEPS)):
            insert(transition, storage, oracle)
            if count % 7 == 0 and oracle.sequences():
                batch = draw_one(storage, 200)
                for action, key in zip(batch.action[0].tolist(), batch.key.tolist(), strict=True):
                    assert key_of.setdefault(str(action), tuple(key)) == tuple(key)
        assert len(set(key_of.values())) == len(key_of), "two sequences have the same key"

    def test_nothing_is_shared(
        self, life: RandomTransitionScript, shape: tuple[int, int, int]
    ) -> None:
        """An algorithm may write to its batch; the next one is what happened all the same."""
        storage, oracle = self.pair(life, shape)
        insert_all(life.transitions(SHARE), storage, oracle)
        for _ in range(2):
            for batch in storage.generate_batches(2, 20 * oracle.learned):
                self.check(batch, oracle)
                assert bool((batch.weight > 0.0).all()), "a weight is not above 0"
                for column in columns_of(batch).values():
                    column.zero_()

    @pytest.mark.parametrize("count", [0, 7, SHARE + 5, 2 * SHARE + 11])
    def test_a_restored_storage_goes_on_alike(
        self, life: RandomTransitionScript, count: int
    ) -> None:
        """Also in the middle of a sequence and of the memory, with the same draws."""
        saved, oracle = self.pair(life, SHAPES[0])
        transitions = life.transitions(STEPS)
        insert_all(transitions[:count], saved, oracle)
        state = cast("StateDict", copy_state(saved.state_dict()))
        restored, _ = self.pair(life, SHAPES[0], seed=9)
        insert_all(transitions[-3:], restored)
        restored.load_state_dict(state)
        for start in range(count, STEPS, 17):
            if oracle.sequences():
                expected, actual = draw_one(saved, 64), draw_one(restored, 64)
                check_same_state(columns_of(actual), columns_of(expected))
                self.check(actual, oracle)
            insert_all(transitions[start : start + 17], saved, restored, oracle)

    def test_slices_bring_the_same_sequences(
        self, life: RandomTransitionScript, shape: tuple[int, int, int]
    ) -> None:
        """None leaves its slice, where what follows is of another place or time."""
        storage, oracle = self.pair(life, shape)
        transitions = life.transitions(2 * STEPS)
        start = 0
        for number in range(12):
            end = start + 1 + number * 5 % 11
            if number % 3 == 1:
                insert_all(transitions[start:end], storage, oracle)
            else:
                worker, source = self.pair(life, shape)
                insert_all(transitions[start:end], worker, source)
                storage.insert_data_slice(worker.get_all_buffer_data())
                oracle.insert_data_slice(source.get_all_buffer_data())
            self.check_complete(storage, oracle)
            start = end + (number + 1) % 3
