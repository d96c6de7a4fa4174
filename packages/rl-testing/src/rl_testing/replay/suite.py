"""The tests of storages of replayed transitions, and of replayed sequences."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from itertools import cycle, islice
from typing import ClassVar, cast

import numpy as np
import pytest
import torch
from torch import Tensor

from rl_core.batch import ReplayBatch
from rl_core.errors import CheckpointError, ConfigError, DataError, RLError
from rl_core.storage import AnyStorage, HasTrajectories, Storage
from rl_core.types import StateDict, StateValue
from rl_testing.replay.checks import (
    check_sequences,
    check_trajectories,
    check_transitions,
    must_hold,
)
from rl_testing.replay.reference import ReferenceReplayStorage, ReferenceSequenceStorage
from rl_testing.stateful import RESTORE_HINT, check_same_state, copy_state
from rl_testing.storages import StorageSuite, columns_of, insert_all, seeded, ship, stored
from rl_testing.transitions import TransitionScript, misfits

Pair = tuple[AnyStorage, ReferenceReplayStorage]

LIVES: Mapping[str, TransitionScript] = {
    "same_step": TransitionScript(seed=1, num_envs=1),
    "same_step_dict_box": TransitionScript(
        seed=2, num_envs=5, observation="dict", action="box", extras=True
    ),
    "same_step_interrupted": TransitionScript(seed=3, num_envs=2, interrupted=True, extras=True),
    "same_step_recurrent": TransitionScript(seed=4, num_envs=2, recurrent=True, arrays="torch"),
    "next_step": TransitionScript(seed=5, num_envs=1, autoreset="next_step"),
    "next_step_dict_torch": TransitionScript(
        seed=6,
        num_envs=2,
        autoreset="next_step",
        observation="dict",
        arrays="torch",
        extras=True,
    ),
    "next_step_interrupted": TransitionScript(
        seed=7, num_envs=5, autoreset="next_step", action="box", interrupted=True
    ),
    "next_step_recurrent": TransitionScript(
        seed=8, num_envs=2, autoreset="next_step", recurrent=True, observation="image"
    ),
    "disabled_image": TransitionScript(
        seed=9, num_envs=2, autoreset="disabled", observation="image"
    ),
    "disabled_interrupted": TransitionScript(
        seed=10, num_envs=5, autoreset="disabled", interrupted=True, arrays="torch"
    ),
    "same_step_alike": TransitionScript(seed=11, num_envs=2, interrupted=True, alike=True),
    "next_step_alike": TransitionScript(
        seed=12, num_envs=2, autoreset="next_step", recurrent=True, alike=True
    ),
}
"""What replay storages are filled with: all ways to reset, and every kind of column."""


class ReplaySuite(StorageSuite[AnyStorage]):
    """What storages of transitions and of sequences have in common; subclass the suite of yours.

    What ``size`` promises: of each of ``B`` environments, the storage has ``size // B`` rows. A
    transition takes one, and every episode one more for the observation after its last transition;
    so does the piece of an episode that is still running, or that was left at a reset. What fits of
    the newest is there, and nothing older than ``size // B`` steps is, but for one sequence.

    Attributes:
        lives: what storages are filled with, by name; leave out what yours does not store.
        is_uniform: whether all samples are drawn alike, with weight 1.
        slack: rows by which each environment's may be fewer or more than promised.
        per_episode: rows that an episode may take beside those of its transitions; more than 1
            for storages that keep what came before an episode's first observation.
        n_steps: rewards per transition, at most; tests that need one number take the first.
        counts: steps after which storages are saved and restored.
        share: rows of each environment in storages that wrap around.
        steps: those after which they have wrapped around several times.
    """

    lives: ClassVar[Mapping[str, TransitionScript]] = LIVES
    is_uniform: ClassVar[bool] = True
    slack: ClassVar[int] = 4
    per_episode: ClassVar[int] = 1
    n_steps: ClassVar[tuple[int, ...]] = (3, 1, 5)
    counts: ClassVar[tuple[int, ...]] = (7, 91, 0, 45)
    share: ClassVar[int] = 30
    steps: ClassVar[int] = 130

    def storages(self, num_envs: int, n_step: int, rows: int) -> Pair:
        """Return a storage with so many rows of each environment, and an oracle."""
        raise NotImplementedError

    def check(self, batch: ReplayBatch, oracle: ReferenceReplayStorage) -> list[int]:
        """Compare a batch with the oracle; return with which of its places samples begin."""
        raise NotImplementedError

    @classmethod
    def pytest_generate_tests(cls, metafunc: pytest.Metafunc) -> None:
        """Run each test with each life, and windows of several lengths among these."""
        super().pytest_generate_tests(metafunc)
        for name, values in (("n_step", cls.n_steps), ("count", cls.counts)):
            if name in metafunc.fixturenames:
                cases = cls.cases(values)
                metafunc.parametrize(("life", name), cases.values(), ids=cases)
                return
        if "life" in metafunc.fixturenames:
            metafunc.parametrize("life", cls.lives.values(), ids=cls.lives)

    @classmethod
    def cases(cls, numbers: Sequence[int]) -> dict[str, tuple[TransitionScript, int]]:
        """Return each life with one of some numbers, taken in turn, by name.

        Of fewer lives than there are numbers, some come with several.
        """
        count = max(len(cls.lives), len(numbers))
        pairs = islice(zip(cycle(cls.lives), cycle(numbers), strict=False), count)
        return {f"{name}-{number}": (cls.lives[name], number) for name, number in pairs}

    def pair(self, life: TransitionScript, n_step: int = 0, seed: int = 0, rows: int = 0) -> Pair:
        """Return an empty storage, and an oracle that knows all it may hold."""
        pair = self.storages(life.num_envs, n_step or self.n_steps[0], rows or self.share)
        for each, its_seed in zip(pair, (seed, 0), strict=True):
            each.allocate(life.spec(), seeded(its_seed))
        return pair

    def filled_pair(self, life: TransitionScript, n_step: int = 0) -> Pair:
        """Return a storage that has wrapped around, and its oracle."""
        pair = self.pair(life, n_step)
        insert_all(life.transitions(self.steps), *pair)
        return pair

    def must_hold(self, oracle: ReferenceReplayStorage) -> list[int]:
        """Return which of the oracle's places a storage must hold."""
        return must_hold(oracle, self.share - self.slack, self.per_episode)

    def check_complete(self, storage: AnyStorage, oracle: ReferenceReplayStorage) -> None:
        """Assert that a storage draws all that it must hold, and nothing that it may not."""
        expected = set(self.must_hold(oracle))
        if not expected:
            return
        found = self.check(draw_one(storage, 20 * self.share * oracle.num_envs), oracle)
        ends = [len(episode) - start for _, episode, start in oracle.places()]
        seen = {i + k for i in set(found) for k in range(min(oracle.learned, ends[i]))}
        assert expected <= seen, (
            f"{len(expected - seen)} of {len(expected)} transitions were never drawn"
        )

    def test_every_sample_is_what_happened(self, life: TransitionScript, n_step: int) -> None:
        """Samples end at episode boundaries and at the newest row; nothing is stale."""
        storage, oracle = self.pair(life, n_step)
        room = self.share + self.slack + oracle.learned + oracle.burn_in
        for count, transition in enumerate(life.transitions(self.steps)):
            insert_all([transition], storage, oracle)
            if count % 11 == 0:
                assert 1 <= len(storage) <= room
                self.check(draw_one(storage, 100), oracle)

    def test_nothing_is_missing(self, life: TransitionScript, n_step: int) -> None:
        """Neither the newest transition nor the oldest that there is room for."""
        storage, oracle = self.pair(life, n_step)
        for count, transition in enumerate(life.transitions(self.steps), start=1):
            insert_all([transition], storage, oracle)
            if count in (1, self.share // 2, self.share + 1, self.steps):
                self.check_complete(storage, oracle)

    def test_all_samples_are_drawn_alike(self, life: TransitionScript) -> None:
        """Counted over many draws, by Pearson's test; no weight corrects what needs no mending."""
        if not self.is_uniform:
            pytest.skip("not uniform")
        storage, oracle = self.filled_pair(life)
        places = oracle.places()
        expected = [i for i in self.must_hold(oracle) if places[i][2] % oracle.learned == 0]
        batch = draw_one(storage, 100 * len(expected) * oracle.learned)
        assert bool((batch.weight == 1.0).all())
        counts = Counter(self.check(batch, oracle))
        drawn = torch.tensor([float(counts[place]) for place in expected])
        statistic = float(((drawn - drawn.mean()) ** 2 / drawn.mean()).sum())
        freedom = len(expected) - 1
        assert statistic < freedom + 6.0 * (2.0 * freedom) ** 0.5

    def test_an_index_names_one_sample(self, life: TransitionScript) -> None:
        """As long as it is stored, and none that is stored later in the same place."""
        storage, oracle = self.pair(life)
        index_of: dict[object, object] = {}
        for count, transition in enumerate(life.transitions(self.steps)):
            insert_all([transition], storage, oracle)
            if count % 7 == 0:
                batch = draw_one(storage, 200)
                actions = batch.action if batch.start is None else batch.action[0]
                for action, index in zip(actions.tolist(), batch.index.tolist(), strict=True):
                    known = index_of.setdefault(str(action), tuple(index))
                    assert known == tuple(index), (
                        f"the sample with action {action} had index {known}, and now has "
                        f"{tuple(index)}; gather() must give a sample the same index every time"
                    )
        assert len(set(index_of.values())) == len(index_of), (
            "two samples have the same index; count in its second number how often the place was "
            "overwritten"
        )

    def test_a_restored_storage_goes_on_alike(self, life: TransitionScript, count: int) -> None:
        """Also in the middle of an episode and of the memory, with the same draws."""
        saved, oracle = self.pair(life)
        transitions = life.transitions(self.steps)
        insert_all(transitions[:count], saved, oracle)
        state = cast("StateDict", copy_state(saved.state_dict()))
        restored, _ = self.pair(life, seed=9)
        insert_all(transitions[-3:], restored)
        restored.load_state_dict(state)
        assert len(restored) == len(saved)
        for start in range(count, self.steps, 17):
            if oracle.places():
                expected, actual = draw_one(saved, 64), draw_one(restored, 64)
                check_same_state(columns_of(actual), columns_of(expected), "batch", restored=True)
                self.check(actual, oracle)
            insert_all(transitions[start : start + 17], saved, restored, oracle)

    def test_a_live_parameter_that_was_changed_is_saved(self) -> None:
        """A resumed run goes on with what was set, not with what it was built with."""
        life = next(iter(self.lives.values()))
        saved, _ = self.filled_pair(life)
        for name, value in saved.live_parameters().items():
            saved.update_storage_parameter(name, 0.5 * value)
        restored = self._restored(saved, life)
        for name, value in saved.live_parameters().items():
            got = restored.live_parameters()[name]
            assert got == value, (
                f"live parameter '{name}' was set to {value} and is {got} after a restore; "
                f"{RESTORE_HINT}"
            )

    def test_what_changes_while_learning_is_saved(self, life: TransitionScript) -> None:
        """Whatever `after_gradients` and `note_returns` change, a restored storage draws alike."""
        saved, _ = self.filled_pair(life)
        generator = seeded(3)
        _learn(generator, saved)
        restored = self._restored(saved, life)
        metrics = dict(saved.metrics())
        check_same_state(dict(restored.metrics()), metrics, "metrics", restored=True)
        for _ in range(3):
            expected, actual = _learn(generator, saved, restored)
            check_same_state(actual, expected, "batch", restored=True)
        check_same_state(restored.state_dict(), saved.state_dict(), restored=True)

    def _restored(self, saved: AnyStorage, life: TransitionScript) -> AnyStorage:
        """Return a new storage that took over the state of another one."""
        restored, _ = self.pair(life, seed=9)
        restored.load_state_dict(cast("StateDict", copy_state(saved.state_dict())))
        return restored

    def test_slices_bring_the_same_samples(self, life: TransitionScript, n_step: int) -> None:
        """No sample leaves its slice, where what follows is of another place or time."""
        pair = self.pair(life, n_step)
        generator = np.random.default_rng(0)
        transitions = life.transitions(2 * self.steps)
        start = 0
        for number in range(15):
            end = start + int(generator.integers(1, 12))
            if number % 3 == 1:
                insert_all(transitions[start:end], *pair)
            else:
                workers = self.pair(life, n_step)
                insert_all(transitions[start:end], *workers)
                ship(workers, pair)
            self.check_complete(*pair)
            start = end + int(generator.integers(1, 4))

    def test_nothing_is_shared(self, life: TransitionScript) -> None:
        """An actor may write to its outputs again, and an algorithm to its batch."""
        storage, oracle = self.pair(life)
        for transition in deepcopy(life.transitions(self.share)):
            insert_all([transition], oracle, storage)
            for part in (transition.action, *transition.extras.values()):
                torch.as_tensor(part).zero_()
            for batch in storage.generate_batches(2, 16):
                self.check(batch, oracle)
                assert bool((batch.weight > 0.0).all()), "a weight is not above 0"
                for column in columns_of(batch).values():
                    column.zero_()


class ReplayStorageSuite(ReplaySuite):
    """Tests of storages that replay transitions, with `ReferenceReplayStorage` as the oracle.

    Subclass it, supply `make_storage`, and inherit the tests. `ReplaySuite` says what storages
    promise and what can be set.
    """

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

    def storages(self, num_envs: int, n_step: int, rows: int) -> Pair:
        """Return a storage with so many rows of each environment, and an oracle with some more."""
        size = rows * num_envs + num_envs - 1  # what does not divide is no use
        oracle = ReferenceReplayStorage((rows + self.slack) * num_envs, n_step)
        return self.make_storage(size=size, n_step=n_step), oracle

    def check(self, batch: ReplayBatch, oracle: ReferenceReplayStorage) -> list[int]:
        """Compare a batch with the oracle; return which of its places were drawn."""
        return check_transitions(batch, oracle)

    def test_it_gives_replayed_transitions(self) -> None:
        """An algorithm that learns from replay asks for just this type, and for sizes."""
        storage, _ = self.filled_pair(next(iter(self.lives.values())))
        assert storage.batch_type is ReplayBatch
        assert storage.rollout_steps is None
        batches = cast("list[ReplayBatch]", list(storage.generate_batches(3, 7)))
        assert [len(batch.mask) for batch in batches] == [7, 7, 7]

    def test_slices_go_on_where_they_follow_each_other(
        self, life: TransitionScript, n_step: int
    ) -> None:
        """In one storage, one after the other; not after a hole, nor another worker's."""
        pair, workers = self.pair(life, n_step), [self.pair(life, n_step) for _ in range(2)]
        whole = self.share // 3  # is stored, however short episodes are
        for number, worker in enumerate(workers):
            insert_all(life.transitions(2 * whole)[number * whole :][:whole], *worker)
        for number, start, end in ((0, 0, 2), (0, 2, 5), (1, 1, 4), (1, 4, 7), (1, 8, whole)):
            ship(workers[number], pair, start, end)
            self.check_complete(*pair)

    def test_a_slice_goes_on_after_its_storage_was_emptied(
        self, life: TransitionScript, n_step: int
    ) -> None:
        """A worker may send what it has and forget it; one that was cut is at another place."""
        pair, worker = self.pair(life, n_step), self.pair(life, n_step)
        transitions = life.transitions(2 * self.share)
        for number, start in enumerate(range(0, self.share, 3)):
            for each in worker:
                each.reset()
                if number % 3 == 0:
                    each.mark_boundary()
            start += 3 * (number // 3)
            insert_all(transitions[start : start + 3], *worker)
            ship(worker, pair)
            self.check_complete(*pair)

    def test_nothing_goes_on_after_a_cut(self, life: TransitionScript, n_step: int) -> None:
        """Neither here nor after a checkpoint, whatever is observed next."""
        storage, oracle = self.pair(life, n_step)
        transitions = life.transitions(self.steps)
        for start in range(0, self.steps, 10):
            insert_all(transitions[start : start + 7], storage, oracle)
            storage.mark_boundary()
            oracle.mark_boundary()
            if start % 20:
                state = storage.state_dict()
                storage, _ = self.pair(life, n_step)
                storage.load_state_dict(state)
            self.check_complete(storage, oracle)

    @pytest.mark.parametrize("factor", [1, 4])
    def test_a_slice_may_fill_the_storage(self, life: TransitionScript, factor: int) -> None:
        """Copied from one that has wrapped around, or longer than there is room for."""
        worker, source = self.pair(life, rows=factor * self.share)
        count = self.steps if factor == 1 else factor * self.share // 2
        insert_all(life.transitions(count), worker, source)
        storage, oracle = self.pair(life)
        ship([worker], [storage])
        ship([source], [oracle], len(source) - len(worker))
        self.check_complete(storage, oracle)

    def test_trajectories_are_what_happened(self, life: TransitionScript) -> None:
        """All that there must be room for, and nothing that never happened."""
        storage, oracle = self.filled_pair(life, n_step=1)
        if not isinstance(storage, HasTrajectories):
            pytest.skip("it has no trajectories")
        held = check_trajectories(storage.trajectories(), oracle)
        assert set(self.must_hold(oracle)) <= set(held), "steps are missing from the trajectories"
        assert storage.num_transitions == len(held), "num_transitions is not what is there"

    def test_after_a_reset_nothing_older_is_drawn(
        self, life: TransitionScript, n_step: int
    ) -> None:
        """Not even by a window that begins before the reset, nor after a checkpoint.

        An empty storage draws nothing, and its error is one that users can mend.
        """
        storage, _ = self.filled_pair(life, n_step)
        storage.reset()
        for empty in (storage, self.pair(life, n_step)[0]):
            assert len(empty) == 0
            with pytest.raises(RLError):
                draw_one(empty, 4)
        restored, oracle = self.pair(life, n_step)
        for transition in life.transitions(self.steps + 20)[self.steps :]:
            insert_all([transition], storage, oracle)
            if oracle.places():
                self.check(draw_one(storage, 64), oracle)
        restored.load_state_dict(storage.state_dict())
        check_same_state(restored.state_dict(), storage.state_dict(), restored=True)
        self.check(draw_one(restored, 64), oracle)

    def test_new_observations_are_returned_once(self, life: TransitionScript) -> None:
        """Those that were acted on, however they came in; also after a checkpoint."""
        rows = 2 * self.share
        storage, oracle = self.pair(life, rows=rows)
        if type(storage).new_observations is Storage.new_observations:
            pytest.skip("does not tell what is new in it")
        transitions = life.transitions(self.steps)
        for start in range(0, self.steps, 13):
            insert_all(transitions[start : start + 6], storage, oracle)
            worker = self.pair(life)
            insert_all(transitions[start + 6 : start + 13], *worker)
            ship(worker, (storage, oracle))
            restored, _ = self.pair(life, rows=rows)
            restored.load_state_dict(storage.state_dict())
            expected = _acted_on(oracle)
            assert _acted_on(storage) == expected
            assert _acted_on(restored) == expected, (
                f"new_observations() returns others after a restore; {RESTORE_HINT}"
            )
            assert _acted_on(storage) == []

    def test_an_update_forgets_nothing(self, life: TransitionScript) -> None:
        """Replayed transitions are learned from more than once."""
        storage, _ = self.filled_pair(life)
        before = stored(storage)
        storage.before_gradients()
        draw_one(storage, 8)
        storage.after_update()
        check_same_state(stored(storage), before)

    def test_a_damaged_state_is_refused(self, life: TransitionScript) -> None:
        """Whatever is missing, of another kind, or too short."""
        state = self.filled_pair(life)[0].state_dict()
        for damaged in _damaged_states(state):
            with pytest.raises(CheckpointError):
                self.pair(life)[0].load_state_dict(damaged)

    @pytest.mark.parametrize("sizes", [(None, 4), (2, None), (0, 4), (2, 0)])
    def test_batches_need_both_sizes(self, sizes: tuple[int | None, int | None]) -> None:
        """There is no epoch that could be cut by one of them."""
        storage, _ = self.filled_pair(next(iter(self.lives.values())), n_step=1)
        with pytest.raises(ConfigError):
            list(storage.generate_batches(*sizes))

    @pytest.mark.parametrize(("size", "steps"), [(0, 1), (20, 0), (1, 1)])
    def test_sizes_without_room_are_refused(self, size: int, steps: int) -> None:
        """Each environment needs a row, and each transition a step."""
        life = max(self.lives.values(), key=lambda life: life.num_envs)
        if life.num_envs == 1 and (size, steps) == (1, 1):
            pytest.skip("all of its lives are of one environment, which has room in one row")
        with pytest.raises(ConfigError):
            self.make_storage(size=size, n_step=steps).allocate(life.spec(), seeded())

    def test_a_transition_that_does_not_fit_is_refused(self, life: TransitionScript) -> None:
        """Every column, before any is written."""
        storage, oracle = self.filled_pair(life)
        before = stored(storage)
        transition = life.transitions(self.steps + 1)[-1]
        for misfit in misfits(transition, with_state=storage.gives_sequences):
            with pytest.raises(DataError):
                storage.insert_transition(misfit)
        check_same_state(stored(storage), before)
        insert_all([transition], storage, oracle)
        self.check_complete(storage, oracle)


class SequenceReplaySuite(ReplaySuite):
    """Tests of storages that replay sequences, with `ReferenceSequenceStorage` as the oracle.

    Subclass it, supply `make_storage`, and inherit the tests. The newest transitions that fit are
    each learned from in one sequence; `ReplaySuite` says more, and what can be set.
    """

    lives: ClassVar[Mapping[str, TransitionScript]] = {
        name: LIVES[name]
        for name in (
            "same_step_dict_box",
            "same_step_recurrent",
            "same_step_alike",
            "next_step_interrupted",
            "next_step_alike",
        )
    }
    shapes: ClassVar[Mapping[int, tuple[int, int]]] = {1: (4, 3), 3: (3, 0), 2: (2, 5)}
    n_steps: ClassVar[tuple[int, ...]] = tuple(shapes)
    share: ClassVar[int] = 40
    steps: ClassVar[int] = 170

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

    def storages(self, num_envs: int, n_step: int, rows: int) -> Pair:
        """Return a storage with so many rows of each environment, and an oracle with all."""
        learned, burn_in = self.shapes[n_step]
        storage = self.make_storage(
            size=rows * num_envs, n_step=n_step, learned=learned, burn_in=burn_in
        )
        return storage, ReferenceSequenceStorage(10**6, n_step, learned=learned, burn_in=burn_in)

    def check(self, batch: ReplayBatch, oracle: ReferenceReplayStorage) -> list[int]:
        """Compare a batch with the oracle; return with which of its places samples begin."""
        assert isinstance(oracle, ReferenceSequenceStorage)
        room = self.share + self.slack + oracle.learned + oracle.burn_in
        return check_sequences(batch, oracle, oldest=len(oracle) - room)

    def test_it_gives_sequences(self, life: TransitionScript) -> None:
        """A recurrent actor asks for just this; sizes count transitions to learn from."""
        storage, oracle = self.pair(life)
        assert storage.gives_sequences
        insert_all(life.transitions(30), storage, oracle)
        assert storage.steps_per_sample == oracle.burn_in + oracle.learned
        batches = list(storage.generate_batches(3, 2 * oracle.learned + 1))
        assert len(batches) == 3
        for batch in cast("list[ReplayBatch]", batches):
            assert len(batch.index) == 3
            self.check(batch, oracle)


def draw_one(storage: AnyStorage, minibatch_size: int) -> ReplayBatch:
    """Draw one batch."""
    (batch,) = storage.generate_batches(1, minibatch_size)
    assert isinstance(batch, ReplayBatch)
    return batch


def _learn(generator: torch.Generator, *storages: AnyStorage) -> list[StateValue]:
    """Let storages draw, and note the same errors and returns; return what each one drew."""
    batches = [draw_one(storage, 64) for storage in storages]
    error = torch.rand(batches[0].mask.shape, generator=generator)
    returns = torch.randn(15, generator=generator).tolist()
    for storage, batch in zip(storages, batches, strict=True):
        storage.after_gradients(batch, {"td_error": error.to(batch.mask.device)})
        storage.note_returns(returns)
    return [columns_of(batch) for batch in batches]


def _acted_on(storage: AnyStorage) -> list[str]:
    observation, counts = storage.new_observations()
    leaves = observation.values() if isinstance(observation, Mapping) else [observation]
    return sorted(map(str, zip(*(leaf[counts].tolist() for leaf in leaves), strict=True)))


def _damaged_states(state: StateDict) -> Iterator[StateDict]:
    """Yield a tree with one value missing, of another kind, or too short, for each value."""
    for key, value in state.items():
        yield {k: v for k, v in state.items() if k != key}
        others: list[StateValue] = [3 if isinstance(value, str) else "damaged"]
        if isinstance(value, Mapping):
            others += _damaged_states(value)
        elif isinstance(value, Tensor) and value.dim() and len(value):
            others.append(value[:-1])
        for other in others:
            yield {**state, key: other}
