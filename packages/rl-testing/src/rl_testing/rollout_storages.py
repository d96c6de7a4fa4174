"""The tests that every storage of rollouts must pass."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, cast

import pytest
import torch
from torch import Tensor

from rl_core.batch import PREPARED_COLUMNS, Rollout, RolloutBatch, Transition
from rl_core.errors import ConfigError, DataError
from rl_core.storage import AnyStorage, HasRollouts, HasSlices
from rl_testing.reference import ReferenceRolloutStorage
from rl_testing.stateful import check_same_state
from rl_testing.storages import StorageSuite, columns_of, insert_all, seeded, ship, stored
from rl_testing.transitions import TransitionScript

SampleKey = tuple[tuple[object, ...], ...]
"""Every column of a sample with its numbers."""


class RolloutStorageSuite(StorageSuite[HasRollouts]):
    """Tests of storages that keep rollouts, with `ReferenceRolloutStorage` as the oracle.

    Subclass it, supply `make_storage`, and inherit the tests.

    Attributes:
        sequence_length: rows of the sequences that a recurrent actor's minibatches are made of;
            None for whole rollouts.
    """

    sequence_length: ClassVar[int | None] = None

    def make_storage(self) -> HasRollouts:
        """Return a new storage, not allocated yet, with room for at least eight steps."""
        raise NotImplementedError

    def new_storage(self) -> HasRollouts:
        """Return what `make_storage` returns."""
        return self.make_storage()

    def draw(self, storage: AnyStorage) -> list[object]:
        """Attach columns and draw two minibatches."""
        assert isinstance(storage, HasRollouts)
        return list(_prepared(storage).generate_batches(2, None))

    def test_it_gives_batches_of_rollouts(self) -> None:
        """An algorithm that learns from rollouts asks for just this type."""
        storage = self.make_storage()
        assert storage.batch_type is RolloutBatch
        assert storage.rollout_steps >= 8, "make_storage() must leave room for eight steps"

    def test_a_rollout_holds_what_was_inserted(self, script: TransitionScript) -> None:
        """Also the second one in the same memory, which begins in the middle of episodes."""
        storage, oracle = self._pair(script)
        rows = oracle.num_steps
        transitions = script.transitions(3 * rows)
        for start in range(0, 3 * rows, rows):
            insert_all(transitions[start : start + rows], storage, oracle)
            _check_same_rollout(storage.rollout(), oracle.rollout())
            storage.after_update()
            oracle.after_update()
            assert len(storage) == 0

    def test_every_sample_comes_once_per_epoch(self, script: TransitionScript) -> None:
        """Whatever the sizes: every transition with all its columns, and no reset-only row.

        Sequences have their rows in order, and begin with the state that was there while acting.
        """
        storage, oracle = self._pair(script)
        num_steps = oracle.num_steps
        insert_all(script.transitions(2 * num_steps)[num_steps:], storage, oracle)
        expected = _samples(_prepared(oracle).generate_batches(1, None))
        rows, length = len(storage), self._length(script, len(storage))
        assert not script.recurrent or bool(oracle.rollout().state["memory"].any())
        sizes: list[tuple[int | None, int | None]] = [(1, None), (2, None), (3, None)]
        sizes += [(None, size) for size in (rows, rows * script.num_envs, length, rows + length)]
        for num_minibatches, minibatch_size in sizes:
            batches = list(_prepared(storage).generate_batches(num_minibatches, minibatch_size, 2))
            assert _samples(batches) == Counter({key: 2 * n for key, n in expected.items()})

    def test_there_are_as_many_minibatches_as_asked_for(self, script: TransitionScript) -> None:
        """None is empty, and numbers of samples differ by at most one unit, however they divide."""
        storage = _prepared(self.filled(script))
        length = self._length(script, len(storage))
        assert storage.steps_per_sample == length
        units = script.num_envs * len(storage) // length
        for count in (1, 2, 3, units - 1, units):
            batches = list(storage.generate_batches(count, None))
            assert len(batches) == count
            assert len({batch.mask.shape for batch in batches}) == 1
            filled = [int(batch.mask.sum()) for batch in batches]
            assert sum(filled) == int(storage.rollout().valid.sum())
            if script.autoreset == "same_step":
                assert max(filled) - min(filled) <= length
        if not script.recurrent:
            largest = max(len(batch.mask) for batch in storage.generate_batches(None, 5))
            assert largest <= 5

    def test_sizes_that_contradict_each_other_are_refused(self, script: TransitionScript) -> None:
        """With the numbers in the message."""
        storage = _prepared(self.filled(script))
        samples = len(storage) * script.num_envs
        units = samples // self._length(script, len(storage))
        for sizes in ((None, None), (2, len(storage)), (units + 1, None), (None, samples + 1)):
            with pytest.raises(ConfigError, match="minibatch"):
                list(storage.generate_batches(*sizes))
        if (length := self._length(script, len(storage))) > 1:
            with pytest.raises(ConfigError, match="minibatch_size"):
                list(storage.generate_batches(None, length - 1))

    def test_a_full_rollout_takes_no_more(self, script: TransitionScript) -> None:
        """Overwriting would mix two policies in one rollout."""
        storage = self.filled(script)
        before = stored(storage)
        with pytest.raises(ConfigError, match="full"):
            storage.insert_transition(script.transitions(1)[0])
        if isinstance(storage, HasSlices):
            with pytest.raises(DataError, match="does not fit"):
                storage.insert_data_slice(storage.get_data_slice(0, 1))
        check_same_state(stored(storage), before)

    def test_an_unfinished_rollout_is_not_learned_from(self, script: TransitionScript) -> None:
        """It says how many rows are missing."""
        storage = self.filled(script, count=3)
        with pytest.raises(ConfigError, match="3 of"):
            storage.rollout()

    def test_batches_wait_for_the_prepared_columns(self, script: TransitionScript) -> None:
        """Of the right shape, and of this rollout."""
        storage = self.filled(script)
        with pytest.raises(ConfigError, match="attach"):
            list(storage.generate_batches(1, None))
        wrong = torch.zeros(len(storage) - 1, script.num_envs)
        with pytest.raises(DataError, match="advantage"):
            storage.attach({"advantage": wrong})
        _prepared(storage).after_update()
        self.fill(storage, script)
        with pytest.raises(ConfigError, match="attach"):
            list(storage.generate_batches(1, None))

    def test_a_resumed_rollout_does_not_bridge_the_gap(self, script: TransitionScript) -> None:
        """Episodes that were running at the checkpoint count as truncated."""
        saved, oracle = self._pair(script)
        insert_all(script.transitions(3), saved, oracle)
        storage = self.allocated(script)
        storage.load_state_dict(saved.state_dict())
        insert_all(script.transitions(oracle.num_steps - 3), storage, oracle)
        _check_same_rollout(storage.rollout(), oracle.rollout())
        last = script.transitions(3)[-1]
        ended = torch.as_tensor(last.terminated) | torch.as_tensor(last.truncated)
        running = torch.as_tensor(last.valid) & ~ended
        assert running.any(), "the script leaves no episode open"
        assert storage.rollout().truncated[2][running].all()

    def test_consecutive_slices_are_one_rollout(self, script: TransitionScript) -> None:
        """Of one collector, in their order; nothing is truncated between them."""
        workers, storages = self._pair(script, filled=True), self._pair(script)
        for start, end in ((0, 3), (3, 4), (4, len(workers[0]))):
            ship(workers, storages, start, end)
        for rollout in (storages[1].rollout(), workers[0].rollout()):
            _check_same_rollout(storages[0].rollout(), rollout)

    def test_slices_with_a_hole_between_them_are_not(self, script: TransitionScript) -> None:
        """Episodes that were running are truncated, even if later slices continue them."""
        workers = self._pair(script, filled=True)
        rows = len(workers[0])
        starts = [bool(t.episode_start.all()) for t in script.transitions(rows)]
        hole = next(t for t in range(3, rows) if not starts[t])
        pieces = ((workers, 0, 2), (workers, hole, rows), (workers, 0, hole - 2))
        self._check_boundary(script, *pieces)

    def test_slices_of_two_collectors_do_not_run_into_each_other(
        self, script: TransitionScript
    ) -> None:
        """The first one's episodes are truncated; recurrent rollouts cannot be, and refuse."""
        first, second = self._pair(script, filled=True), self._pair(script)
        rows, middle, transitions = len(first[0]), *self._middle(script)
        insert_all(transitions[middle : middle + rows], *second)
        self._check_boundary(script, (first, 0, 3), (second, 0, rows - 3))

    def test_a_boundary_ends_running_episodes(self, script: TransitionScript) -> None:
        """What is inserted next belongs to other episodes, whatever it looks like."""
        storage, oracle = self._pair(script)
        middle, transitions = self._middle(script)
        insert_all(transitions[:3], storage, oracle)
        storage.mark_boundary()
        oracle.mark_boundary()
        others = transitions[middle : middle + oracle.num_steps - 3]
        if script.recurrent:
            with pytest.raises(DataError, match="another episode"):
                insert_all(others, storage)
            return
        insert_all(others, storage, oracle)
        _check_same_rollout(storage.rollout(), oracle.rollout())
        assert bool(storage.rollout().truncated[2].any())

    def _check_boundary(
        self, script: TransitionScript, *pieces: tuple[Sequence[AnyStorage], int, int]
    ) -> None:
        """Insert slices of workers that do not continue each other."""
        storage, oracle = self._pair(script)
        for number, (workers, start, end) in enumerate(pieces):
            if number and script.recurrent:
                for worker, target in zip(workers, (storage, oracle), strict=True):
                    with pytest.raises(DataError, match="another episode"):
                        ship([worker], [target], start, end)
                assert len(storage) == pieces[0][2]
                return
            ship(workers, (storage, oracle), start, end)
        rollout, last = storage.rollout(), pieces[0][2] - 1
        _check_same_rollout(rollout, oracle.rollout())
        assert torch.equal(rollout.terminated[last] | rollout.truncated[last], rollout.valid[last])

    def _middle(self, script: TransitionScript) -> tuple[int, list[Transition]]:
        """Return a step beyond the first rollout in which no episode begins, and all steps."""
        transitions, rows = script.transitions(60), self._pair(script)[1].num_steps
        return next(
            t for t in range(rows, 40) if not transitions[t].episode_start.any()
        ), transitions

    def _length(self, script: TransitionScript, num_steps: int) -> int:
        """Return how many rows one unit of a minibatch has."""
        return (self.sequence_length or num_steps) if script.recurrent else 1

    def _pair(
        self, script: TransitionScript, *, filled: bool = False
    ) -> tuple[HasRollouts, ReferenceRolloutStorage]:
        """Return an allocated storage and its oracle."""
        storage = self.allocated(script)
        rows = storage.rollout_steps
        oracle = ReferenceRolloutStorage(rows, self.sequence_length)
        oracle.allocate(script.spec(), seeded())
        insert_all(script.transitions(rows * filled), storage, oracle)
        return storage, oracle


def _prepared(storage: HasRollouts) -> HasRollouts:
    """Attach columns in which every number occurs once."""
    number = torch.arange(len(storage) * storage.num_envs, dtype=torch.float32)
    number = number.view(len(storage), storage.num_envs)
    columns = {name: number + 1000 * i for i, name in enumerate(PREPARED_COLUMNS)}
    storage.attach({**columns, "weights": torch.stack([number, -number], dim=-1)})
    return storage


def _samples(batches: Iterable[object]) -> Counter[SampleKey]:
    """Count every sample that is learned from, or sequence of them, with all its columns.

    A state that is there where an episode begins does not matter: networks begin with zeros.
    """
    counts: Counter[SampleKey] = Counter()
    for batch in cast("Iterable[RolloutBatch]", batches):
        columns = columns_of(batch)
        for name in [f"state/{name}" for name in batch.state]:
            columns[name] = columns[name] * ~batch.episode_start[0].unsqueeze(-1)
        is_sequence = batch.mask.dim() == 2
        for place in range(batch.mask.shape[-1]):
            one = {
                name: column[:, place]
                if is_sequence and not name.startswith("state/")
                else column[place]
                for name, column in sorted(columns.items())
            }
            if one["mask"].any():
                counts[
                    tuple((name, *column.flatten().tolist()) for name, column in one.items())
                ] += 1
    return counts


def _check_same_rollout(actual: Rollout, expected: Rollout) -> None:
    """Compare all columns, and final observations by what steps led to, where it matters."""
    got, wanted = columns_of(actual), columns_of(expected)
    matters = expected.valid & ~expected.terminated
    for name, column in wanted.items():
        if name.startswith("final_observation"):
            successors = _successors(got, name)[matters], _successors(wanted, name)[matters]
            check_same_state(*successors, name)
        elif name != "final_index":
            check_same_state(got[name], column, name)


def _successors(columns: Mapping[str, Tensor], final: str) -> Tensor:
    """Return what every step led to, `(T, B, ...)`, of the observation with these final ones."""
    name = final.removeprefix("final_")
    successors = torch.cat([columns[name][1:], columns[f"next_{name}"].unsqueeze(0)])
    step, env = columns["final_index"].unbind(1)
    successors[step, env] = columns[final]
    return successors
