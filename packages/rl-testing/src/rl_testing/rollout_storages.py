"""The tests that every storage of rollouts must pass."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import ClassVar, cast

import pytest
import torch
from torch import Tensor

from rl_core.batch import PREPARED_COLUMNS, Rollout, RolloutBatch
from rl_core.errors import ConfigError, DataError
from rl_core.storage import AnyStorage
from rl_core.types import ArrayObservation, Observation
from rl_testing.reference import ReferenceRolloutStorage
from rl_testing.stateful import check_same_state
from rl_testing.storages import StorageSuite, columns_of, seeded, stored
from rl_testing.transitions import TransitionScript

SampleKey = tuple[tuple[object, ...], ...]
"""Every column of a sample with its numbers."""


class RolloutStorageSuite(StorageSuite):
    """Further tests of storages that keep rollouts, with `ReferenceRolloutStorage` as the oracle.

    Subclass it instead of `StorageSuite`, and supply `make_storage`.

    Attributes:
        sequence_length: rows of the sequences that a recurrent actor's minibatches are made of;
            None for whole rollouts.
    """

    sequence_length: ClassVar[int | None] = None

    def draw(self, storage: AnyStorage) -> list[object]:
        """Attach columns and draw two minibatches."""
        return list(_prepared(storage).generate_batches(2, None))

    def test_it_gives_batches_of_rollouts(self) -> None:
        """An algorithm that learns from rollouts asks for just this type."""
        storage = self.make_storage()
        assert storage.batch_type is RolloutBatch
        assert storage.rollout_steps is not None
        assert storage.rollout_steps >= 8, "make_storage() must leave room for eight steps"

    def test_a_rollout_holds_what_was_inserted(self, script: TransitionScript) -> None:
        """Also the second one in the same memory, which begins in the middle of episodes."""
        storage = self.allocated(script)
        reference = self._reference(script)
        rows = reference.num_steps
        for number in range(3):
            for transition in script.transitions(3 * rows)[number * rows : (number + 1) * rows]:
                storage.insert_transition(transition)
                reference.insert_transition(transition)
            _check_same_rollout(storage.rollout(), reference.rollout())
            storage.after_update()
            reference.after_update()
            assert len(storage) == 0

    def test_every_sample_comes_once_per_epoch(self, script: TransitionScript) -> None:
        """Whatever the sizes: all transitions, no row that only reset, each with its columns."""
        storage, reference = self.filled(script), self._reference(script)
        self.fill(reference, script)
        expected = _samples(_prepared(reference).generate_batches(1, None))
        rows = len(storage)
        assert sum(expected.values()) == int(reference.rollout().valid.sum())
        sizes: list[tuple[int | None, int | None]] = [(1, None), (2, None), (3, None)]
        sizes += [(None, rows), (None, rows * script.num_envs)]
        sizes += [(None, self._length(script, rows)), (None, rows + self._length(script, rows))]
        for num_mini_batch, mini_batch_size in sizes:
            batches = list(_prepared(storage).generate_batches(num_mini_batch, mini_batch_size, 2))
            assert _samples(batches) == Counter({key: 2 * n for key, n in expected.items()})

    def test_there_are_as_many_minibatches_as_asked_for(self, script: TransitionScript) -> None:
        """And each has something to learn from, however the numbers divide."""
        storage = _prepared(self.filled(script))
        length = self._length(script, len(storage))
        assert storage.steps_per_sample == length
        units = script.num_envs * len(storage) // length
        for count in (1, 2, 3, units - 1, units):
            batches = list(storage.generate_batches(count, None))
            assert len(batches) == count
            filled = [batch.mask.numel() for batch in batches]
            assert max(filled) - min(filled) == 0
        if not script.recurrent:
            largest = max(len(batch.mask) for batch in storage.generate_batches(None, 5))
            assert largest <= 5

    def test_no_minibatch_is_nearly_empty(self) -> None:
        """Their numbers of samples differ by one at most, or their steps would weigh unequally."""
        script = next(s for s in self.scripts.values() if s.autoreset == "same_step")
        storage = _prepared(self.filled(script))
        samples = len(storage) * script.num_envs
        for count in (2, 5, 7, samples - 1):
            filled = [int(batch.mask.sum()) for batch in storage.generate_batches(count, None)]
            assert max(filled) - min(filled) <= 1
            assert sum(filled) == samples

    def test_a_memory_reads_in_the_batch_what_it_read_before(
        self, script: TransitionScript
    ) -> None:
        """Sequences are in order, and begin with the state that was there."""
        if not script.recurrent:
            pytest.skip("no recurrent state")
        transitions = script.transitions(30)
        storage = self.allocated(script)
        rows = storage.rollout_steps
        assert rows is not None
        for transition in transitions[rows : 2 * rows]:
            storage.insert_transition(transition)
        assert bool(storage.rollout().state["memory"].any()), "the script begins at zero"
        before = {
            tuple(vector): tuple(memory)
            for transition in transitions[rows : 2 * rows]
            for vector, memory in zip(
                _vectors(transition.observation).tolist(),
                _at_episode_starts_zero(transition.state["memory"], transition.episode_start),
                strict=True,
            )
        }
        seen = 0
        for batch in _prepared(storage).generate_batches(2, None):
            vectors = _vectors(batch.observation)
            memory = batch.state["memory"]
            for vector, start, mask in zip(vectors, batch.episode_start, batch.mask, strict=True):
                known = _at_episode_starts_zero(memory, start)
                for column in mask.nonzero().flatten().tolist():
                    assert tuple(known[column]) == before[tuple(vector[column].tolist())]
                    seen += 1
                memory = torch.tensor(known) + vector
        assert seen == int(storage.rollout().valid.sum())

    def test_sizes_that_contradict_each_other_are_refused(self, script: TransitionScript) -> None:
        """With the numbers in the message."""
        storage = _prepared(self.filled(script))
        samples = len(storage) * script.num_envs
        units = samples // self._length(script, len(storage))
        for sizes in ((None, None), (2, len(storage)), (units + 1, None), (None, samples + 1)):
            with pytest.raises(ConfigError, match="mini_batch"):
                list(storage.generate_batches(*sizes))
        if script.recurrent:
            length = self._length(script, len(storage))
            if length > 1:
                with pytest.raises(ConfigError, match="mini_batch_size"):
                    list(storage.generate_batches(None, length - 1))

    def test_a_full_rollout_takes_no_more(self, script: TransitionScript) -> None:
        """Overwriting would mix two policies in one rollout."""
        storage = self.filled(script)
        before = stored(storage)
        with pytest.raises(ConfigError, match="full"):
            storage.insert_transition(script.transitions(1)[0])
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
        """Episodes that were running at the checkpoint count as cut, and others do not change."""
        count = 3
        saved = self.filled(script, count=count)
        storage = self.allocated(script)
        storage.load_state_dict(saved.state_dict())
        before, after = script.transitions(count), script.transitions(len(self.filled(script)))
        for transition in after[: len(after) - count]:
            storage.insert_transition(transition)
        rollout = storage.rollout()
        last = before[-1]
        flags = [torch.as_tensor(value) for value in (last.terminated, last.truncated, last.valid)]
        terminated, truncated, valid = flags
        running = valid & ~terminated & ~truncated
        assert running.any(), "the script leaves no episode open"
        assert torch.equal(rollout.terminated[count - 1], terminated)
        assert torch.equal(rollout.truncated[count - 1], truncated | running)
        successors = _vectors(_successors(rollout))[count - 1]
        assert torch.equal(successors[running], _vectors(last.next_observation)[running])

    def test_slices_of_two_collectors_do_not_run_into_each_other(
        self, script: TransitionScript
    ) -> None:
        """The first one's episodes are cut; a memory would need another state, so it refuses."""
        transitions = script.transitions(60)
        workers = [self.allocated(script) for _ in range(2)]
        storage = self.allocated(script)
        rows = storage.rollout_steps
        assert rows is not None
        middle = next(t for t in range(rows, 40) if not transitions[t].episode_start.any())
        for worker, first in zip(workers, (0, middle), strict=True):
            for transition in transitions[first : first + rows]:
                worker.insert_transition(transition)
        storage.insert_data_slice(workers[0].get_data_slice(0, 3))
        if script.recurrent:
            with pytest.raises(DataError, match="another episode"):
                storage.insert_data_slice(workers[1].get_data_slice(0, rows - 3))
            assert len(storage) == 3
            return
        storage.insert_data_slice(workers[1].get_data_slice(0, rows - 3))
        rollout = storage.rollout()
        ended = rollout.terminated[2] | rollout.truncated[2] | ~rollout.valid[2]
        assert ended.all()
        successors = _vectors(_successors(rollout))[2]
        goes_on = rollout.valid[2] & ~rollout.terminated[2]
        expected = _vectors(_successors(workers[0].rollout()))[2]
        assert torch.equal(successors[goes_on], expected[goes_on])

    def test_consecutive_slices_are_one_rollout(self, script: TransitionScript) -> None:
        """Of one collector, in their order; a hole between them cuts, or is refused."""
        worker, reference = self.filled(script), self._reference(script)
        self.fill(reference, script)
        rows = len(worker)
        storage, oracle = self.allocated(script), self._reference(script)
        for start, end in ((0, 3), (3, 4), (4, rows)):
            storage.insert_data_slice(worker.get_data_slice(start, end))
            oracle.insert_data_slice(reference.get_data_slice(start, end))
        _check_same_rollout(storage.rollout(), oracle.rollout())
        _check_same_rollout(storage.rollout(), worker.rollout())

    def test_slices_with_a_hole_between_them_are_not(self, script: TransitionScript) -> None:
        """Episodes that were running are cut, even where they are taken up again later."""
        worker, reference = self.filled(script), self._reference(script)
        self.fill(reference, script)
        rows = len(worker)
        storage, oracle = self.allocated(script), self._reference(script)
        starts = [bool(t.episode_start.all()) for t in script.transitions(rows)]
        hole = next(t for t in range(3, rows) if not starts[t])
        for each, source in ((storage, worker), (oracle, reference)):
            each.insert_data_slice(source.get_data_slice(0, 2))
            if script.recurrent:
                with pytest.raises(DataError, match="another episode"):
                    each.insert_data_slice(source.get_data_slice(hole, rows))
                continue
            each.insert_data_slice(source.get_data_slice(hole, rows))
            each.insert_data_slice(source.get_data_slice(0, hole - 2))
        if not script.recurrent:
            _check_same_rollout(storage.rollout(), oracle.rollout())
            ended = storage.rollout().terminated[1] | storage.rollout().truncated[1]
            assert torch.equal(ended, storage.rollout().valid[1])

    def test_a_cut_ends_running_episodes(self, script: TransitionScript) -> None:
        """What is inserted next is of others, whatever it looks like."""
        storage, oracle = self.allocated(script), self._reference(script)
        rows = oracle.num_steps
        transitions = script.transitions(40 + rows)
        first = next(t for t in range(3, 40) if not transitions[t].episode_start.any())
        for each in (storage, oracle):
            for transition in transitions[:3]:
                each.insert_transition(transition)
            each.cut()
        if script.recurrent:
            with pytest.raises(DataError, match="another episode"):
                storage.insert_transition(transitions[first])
            return
        for transition in transitions[first : first + rows - 3]:
            for each in (storage, oracle):
                each.insert_transition(transition)
        _check_same_rollout(storage.rollout(), oracle.rollout())
        assert bool(storage.rollout().truncated[2].any())

    def _length(self, script: TransitionScript, num_steps: int) -> int:
        """Return how many rows one unit of a minibatch has."""
        return (self.sequence_length or num_steps) if script.recurrent else 1

    def _reference(self, script: TransitionScript) -> ReferenceRolloutStorage:
        rows = self.make_storage().rollout_steps
        assert rows is not None
        reference = ReferenceRolloutStorage(rows, self.sequence_length)
        reference.allocate(script.spec(), seeded())
        return reference


def _prepared(storage: AnyStorage) -> AnyStorage:
    """Attach columns in which every number occurs once."""
    reward = storage.get_all_buffer_data()["reward"]
    number = torch.arange(reward.numel(), dtype=torch.float32).view_as(reward)
    columns = {name: number + 1000 * i for i, name in enumerate(PREPARED_COLUMNS)}
    storage.attach({**columns, "weights": torch.stack([number, -number], dim=-1)})
    return storage


def _samples(batches: Iterable[object]) -> Counter[SampleKey]:
    """Count every sample that is learned from, with all its columns."""
    counts: Counter[SampleKey] = Counter()
    for batch in cast("Iterable[RolloutBatch]", batches):
        axes = batch.mask.dim()
        columns = {
            name: column.flatten(0, axes - 1)
            for name, column in sorted(columns_of(batch).items())
            if not name.startswith("state/")
        }
        for row in batch.mask.flatten().nonzero().flatten().tolist():
            counts[
                tuple((name, *column[row].flatten().tolist()) for name, column in columns.items())
            ] += 1
    return counts


def _vectors(observation: ArrayObservation) -> Tensor:
    """Return the part of a script's observation that tells where it came from."""
    return torch.as_tensor(
        observation["vector"] if isinstance(observation, Mapping) else observation
    )


def _at_episode_starts_zero(memory: Tensor, start: object) -> list[list[float]]:
    return torch.where(torch.as_tensor(start).unsqueeze(-1), 0.0, memory).tolist()


def _successors(rollout: Rollout) -> Observation:
    """Return what every step led to, `(T, B, ...)`; those of terminated ones mean nothing."""

    def follow(rows: Tensor, after: Tensor, finals: Tensor) -> Tensor:
        successors = torch.cat([rows[1:], after.unsqueeze(0)])
        step, env = rollout.final_index.unbind(1)
        successors[step, env] = finals
        return successors

    rows, after, finals = (
        rollout.observation,
        rollout.next_observation,
        rollout.final_observation,
    )
    if isinstance(rows, Tensor):
        assert isinstance(after, Tensor)
        assert isinstance(finals, Tensor)
        return follow(rows, after, finals)
    assert not isinstance(after, Tensor)
    assert not isinstance(finals, Tensor)
    return {key: follow(rows[key], after[key], finals[key]) for key in rows}


def _check_same_rollout(actual: Rollout, expected: Rollout) -> None:
    got, wanted = columns_of(actual), columns_of(expected)
    for name in wanted:
        if not name.startswith("final_"):
            check_same_state(got[name], wanted[name], name)
    matters = expected.valid & ~expected.terminated
    both = [_successors(rollout) for rollout in (actual, expected)]
    for successors in both:
        if isinstance(successors, Tensor):
            successors[~matters] = 0
        else:
            for part in successors.values():
                part[~matters] = 0
    check_same_state(both[0], both[1], "successor")
