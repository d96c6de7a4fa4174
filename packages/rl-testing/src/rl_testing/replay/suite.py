"""All tests of a storage of replayed transitions in one class."""

from collections import Counter
from collections.abc import Mapping
from typing import cast

import numpy as np
import pytest
import torch

from rl_core.batch import ReplayBatch
from rl_core.errors import ConfigError, RLError
from rl_core.storage import AnyStorage, observation_columns
from rl_core.types import StateDict
from rl_testing.replay._case import SHARE, STEPS, draw_one, insert, insert_all
from rl_testing.replay._refusals import RefusalTests
from rl_testing.replay.checks import check_trajectories, check_transitions, must_hold
from rl_testing.replay.script import RandomTransitionScript
from rl_testing.stateful import check_same_state, copy_state
from rl_testing.storages import columns_of, stored

_WHOLE = SHARE // 3
"""Steps that are all stored, however short episodes are."""


class ReplayStorageSuite(RefusalTests):
    """Tests of storages that replay transitions, with `ReferenceReplayStorage` as the oracle.

    Subclass it and supply `make_storage`. What ``size`` promises: of each of ``B`` environments,
    the storage has ``size // B`` rows. A transition takes one, and every episode one more for the
    observation after its last transition; so does the piece of an episode that is still running,
    or that was left at a reset. What fits of the newest is there, and nothing older than
    ``size // B`` steps is.

    Attributes:
        lives: what storages are filled with, by name; leave out what yours does not store.
        is_uniform: whether all transitions are drawn alike, with weight 1.
        slack: rows by which each environment's may be fewer or more than promised.
        per_episode: rows that an episode may take beside those of its transitions; more than 1
            for storages that keep what came before an episode's first observation.
    """

    def test_it_gives_replayed_transitions(self) -> None:
        """An algorithm that learns from replay asks for just this type."""
        storage = self.new_storage()
        assert storage.batch_type is ReplayBatch
        assert storage.rollout_steps is None
        with pytest.raises(ConfigError):
            storage.rollout()

    def test_every_sample_is_what_happened(self, life: RandomTransitionScript, n_step: int) -> None:
        """Windows end with their episode, at seams and at the newest row; nothing is stale."""
        storage, oracle = self.pair(life, n_step)
        for count, transition in enumerate(life.transitions(STEPS)):
            insert(transition, storage, oracle)
            if count % 11 == 0:
                assert 1 <= len(storage) <= SHARE + self.slack
                check_transitions(draw_one(storage, 100), oracle)

    def test_nothing_is_missing(self, life: RandomTransitionScript, n_step: int) -> None:
        """Neither the newest transition nor the oldest that there is room for."""
        storage, oracle = self.pair(life, n_step)
        for count, transition in enumerate(life.transitions(STEPS), start=1):
            insert(transition, storage, oracle)
            if count in (1, SHARE // 2, SHARE + 1, STEPS):
                self.check_complete(storage, oracle)

    def test_batches_have_just_this_form(self, life: RandomTransitionScript, n_step: int) -> None:
        """Columns keep the shape and the dtype they came with, and are where the spec says."""
        storage, _ = self.filled_pair(life, n_step)
        spec = life.spec()
        own = {"action": spec.action, **{f"extras/{k}": v for k, v in spec.extras.items()}}
        own |= observation_columns(spec.observation)
        own |= observation_columns(spec.observation, "next_observation")
        expected = {name: ((7, *leaf.shape), leaf.dtype) for name, leaf in own.items()}
        expected["reward"] = ((7, n_step), torch.float32)
        expected["num_steps"] = ((7,), torch.int64)
        expected["terminated"] = ((7,), torch.bool)
        expected["weight"] = expected["mask"] = ((7,), torch.float32)
        expected["key"] = ((7, 2), torch.int64)
        batches = list(storage.generate_batches(3, 7))
        assert len(batches) == 3
        for batch in batches:
            columns = columns_of(batch)
            assert {n: (tuple(c.shape), c.dtype) for n, c in columns.items()} == expected
            assert all(column.device == spec.device for column in columns.values())
            assert bool((batch.mask == 1.0).all())

    def test_all_transitions_are_drawn_alike(self, life: RandomTransitionScript) -> None:
        """Counted over many draws, by Pearson's test; no weight corrects what needs no mending."""
        if not self.is_uniform:
            pytest.skip("not uniform")
        storage, oracle = self.filled_pair(life, n_step=3)
        expected = must_hold(oracle, SHARE - self.slack, self.per_episode)
        batch = draw_one(storage, 100 * len(expected))
        assert bool((batch.weight == 1.0).all())
        counts = Counter(check_transitions(batch, oracle))
        drawn = torch.tensor([float(counts[place]) for place in expected])
        statistic = float(((drawn - drawn.mean()) ** 2 / drawn.mean()).sum())
        freedom = len(expected) - 1
        assert statistic < freedom + 6.0 * (2.0 * freedom) ** 0.5

    def test_a_key_names_one_transition(self, life: RandomTransitionScript) -> None:
        """As long as it is stored, and none that is stored later in the same place."""
        storage, oracle = self.pair(life, n_step=3)
        key_of: dict[object, object] = {}
        for count, transition in enumerate(life.transitions(STEPS)):
            insert(transition, storage, oracle)
            if count % 7 == 0:
                batch = draw_one(storage, 200)
                for action, key in zip(batch.action.tolist(), batch.key.tolist(), strict=True):
                    assert key_of.setdefault(str(action), tuple(key)) == tuple(key)
        assert len(set(key_of.values())) == len(key_of), "two transitions have the same key"

    @pytest.mark.parametrize("count", [0, 7, SHARE + 5, 2 * SHARE + 11])
    def test_a_restored_storage_goes_on_alike(
        self, life: RandomTransitionScript, count: int
    ) -> None:
        """Also in the middle of an episode and of the memory, with the same draws."""
        saved, oracle = self.pair(life, n_step=3)
        transitions = life.transitions(STEPS)
        for transition in transitions[:count]:
            insert(transition, saved, oracle)
        state = cast("StateDict", copy_state(saved.state_dict()))
        restored, _ = self.pair(life, n_step=3, seed=9)
        insert(transitions[-1], restored)
        restored.load_state_dict(state)
        assert len(restored) == len(saved)
        for start in range(count, STEPS, 17):
            if oracle.transitions():
                expected, actual = draw_one(saved, 64), draw_one(restored, 64)
                check_same_state(columns_of(actual), columns_of(expected))
                check_transitions(actual, oracle)
            insert_all(transitions[start : start + 17], saved, restored, oracle)

    def test_slices_bring_the_same_transitions(
        self, life: RandomTransitionScript, n_step: int
    ) -> None:
        """No window leaves its slice, where what follows is of another place or time."""
        storage, oracle = self.pair(life, n_step)
        generator = np.random.default_rng(0)
        transitions = life.transitions(2 * STEPS)
        start = 0
        for number in range(15):
            end = start + int(generator.integers(1, 12))
            if number % 3 == 1:
                insert_all(transitions[start:end], storage, oracle)
            else:
                worker, its_oracle = self.pair(life, n_step)
                insert_all(transitions[start:end], worker, its_oracle)
                storage.insert_data_slice(worker.get_all_buffer_data())
                oracle.insert_data_slice(its_oracle.get_all_buffer_data())
            self.check_complete(storage, oracle)
            start = end + int(generator.integers(1, 4))

    def test_slices_go_on_where_they_follow_each_other(
        self, life: RandomTransitionScript, n_step: int
    ) -> None:
        """In one storage, one after the other; not after a hole, nor another worker's."""
        storage, oracle = self.pair(life, n_step)
        workers = [self.pair(life, n_step) for _ in range(2)]
        for number, pair in enumerate(workers):
            insert_all(life.transitions(2 * _WHOLE)[number * _WHOLE :][:_WHOLE], *pair)
        for number, start, end in ((0, 0, 2), (0, 2, 5), (1, 1, 4), (1, 4, 7), (1, 8, _WHOLE)):
            worker, source = workers[number]
            storage.insert_data_slice(worker.get_data_slice(start, end))
            oracle.insert_data_slice(source.get_data_slice(start, end))
            self.check_complete(storage, oracle)

    def test_a_slice_goes_on_after_its_storage_was_emptied(
        self, life: RandomTransitionScript, n_step: int
    ) -> None:
        """A worker may send what it has and forget it; one that was cut is at another place."""
        storage, oracle = self.pair(life, n_step)
        worker, source = self.pair(life, n_step)
        transitions = life.transitions(2 * SHARE)
        for number, start in enumerate(range(0, SHARE, 3)):
            for each in (worker, source):
                each.reset()
                if number % 3 == 0:
                    each.cut()
            start += 3 * (number // 3)
            insert_all(transitions[start : start + 3], worker, source)
            storage.insert_data_slice(worker.get_all_buffer_data())
            oracle.insert_data_slice(source.get_all_buffer_data())
            self.check_complete(storage, oracle)

    def test_nothing_goes_on_after_a_cut(self, life: RandomTransitionScript, n_step: int) -> None:
        """Neither here nor after a checkpoint, whatever is observed next."""
        storage, oracle = self.pair(life, n_step)
        transitions = life.transitions(STEPS)
        for start in range(0, STEPS, 10):
            insert_all(transitions[start : start + 7], storage, oracle)
            storage.cut()
            oracle.cut()
            if start % 20:
                state = storage.state_dict()
                storage, _ = self.pair(life, n_step)
                storage.load_state_dict(state)
            self.check_complete(storage, oracle)

    @pytest.mark.parametrize("rows", [SHARE, 4 * SHARE])
    def test_a_slice_may_fill_the_storage(self, life: RandomTransitionScript, rows: int) -> None:
        """Copied from one that has wrapped around, or longer than there is room for."""
        worker, source = self.pair(life, n_step=3, rows=rows)
        insert_all(life.transitions(STEPS if rows == SHARE else rows // 2), worker, source)
        storage, oracle = self.pair(life, n_step=3)
        storage.insert_data_slice(worker.get_all_buffer_data())
        oracle.insert_data_slice(source.get_data_slice(len(source) - len(worker), len(source)))
        self.check_complete(storage, oracle)

    def test_trajectories_are_what_happened(self, life: RandomTransitionScript) -> None:
        """All that there must be room for, and nothing that was never told."""
        storage, oracle = self.filled_pair(life, n_step=1)
        held = check_trajectories(storage.trajectories(), oracle)
        expected = must_hold(oracle, SHARE - self.slack, self.per_episode)
        assert set(expected) <= set(held), "steps are missing from the trajectories"
        assert storage.num_transitions == len(held), "num_transitions is not what is there"

    def test_after_a_reset_nothing_older_is_drawn(
        self, life: RandomTransitionScript, n_step: int
    ) -> None:
        """Not even by a window that begins before the reset, nor after a checkpoint."""
        storage, _ = self.filled_pair(life, n_step)
        storage.reset()
        assert len(storage) == 0
        with pytest.raises(RLError):
            draw_one(storage, 4)
        _, oracle = self.pair(life, n_step)
        for transition in life.transitions(STEPS + 20)[STEPS:]:
            insert(transition, storage, oracle)
            if oracle.transitions():
                check_transitions(draw_one(storage, 64), oracle)
        restored, _ = self.pair(life, n_step)
        restored.load_state_dict(storage.state_dict())
        check_same_state(restored.state_dict(), storage.state_dict())
        check_transitions(draw_one(restored, 64), oracle)

    def test_new_observations_are_told_once(self, life: RandomTransitionScript) -> None:
        """Those that were acted on, however they came in; also after a checkpoint."""
        storage, oracle = self.pair(life, n_step=3, rows=2 * SHARE)
        transitions = life.transitions(STEPS)
        for start in range(0, STEPS, 13):
            insert_all(transitions[start : start + 6], storage, oracle)
            worker, source = self.pair(life, n_step=3)
            insert_all(transitions[start + 6 : start + 13], worker, source)
            storage.insert_data_slice(worker.get_all_buffer_data())
            oracle.insert_data_slice(source.get_all_buffer_data())
            restored, _ = self.pair(life, n_step=3, rows=2 * SHARE)
            restored.load_state_dict(storage.state_dict())
            expected = _acted_on(oracle)
            assert _acted_on(storage) == expected
            assert _acted_on(restored) == expected
            assert _acted_on(storage) == []

    def test_an_update_forgets_nothing(self, life: RandomTransitionScript) -> None:
        """Replayed transitions are learned from more than once."""
        storage, _ = self.filled_pair(life, n_step=3)
        before = stored(storage)
        storage.before_gradients()
        draw_one(storage, 8)
        storage.after_update()
        check_same_state(stored(storage), before)

    def test_nothing_is_shared(self, life: RandomTransitionScript) -> None:
        """An actor may write to its outputs again, and an algorithm to its batch."""
        storage, oracle = self.pair(life, n_step=3)
        for transition in life.transitions(SHARE):
            insert(transition, oracle, storage)
            for tensor in (transition.action, *transition.extras.values()):
                tensor.zero_()
            for batch in storage.generate_batches(2, 16):
                check_transitions(batch, oracle)
                assert bool((batch.weight > 0.0).all()), "a weight is not above 0"
                for column in columns_of(batch).values():
                    column.zero_()


def _acted_on(storage: AnyStorage) -> list[str]:
    observation, counts = storage.new_observations()
    leaves = observation.values() if isinstance(observation, Mapping) else [observation]
    return sorted(map(str, zip(*(leaf[counts].tolist() for leaf in leaves), strict=True)))
