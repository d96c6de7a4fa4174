"""The tests that every `Storage` must pass."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from typing import ClassVar, Generic, TypeVar, cast

import pytest
import torch
from torch import Tensor

from rl_core.batch import Transition
from rl_core.errors import CheckpointError, ConfigError, DataError
from rl_core.stateful import Stateful
from rl_core.storage import ORIGIN, AnyStorage, DataSlice, HasSlices, observation_columns
from rl_core.types import StateDict, StateValue
from rl_testing._generators import global_generators_untouched
from rl_testing.stateful import StatefulSuite, check_same_state, copy_state
from rl_testing.transitions import TransitionScript

SCRIPTS: Mapping[str, TransitionScript] = {
    "same_step": TransitionScript(extras=True),
    "next_step": TransitionScript(autoreset="next_step"),
    "same_step_dict_box": TransitionScript(observation="dict", action="box"),
    "next_step_dict_torch": TransitionScript(
        autoreset="next_step", observation="dict", arrays="torch", extras=True
    ),
    "same_step_recurrent": TransitionScript(recurrent=True, extras=True),
    "next_step_recurrent": TransitionScript(
        autoreset="next_step", recurrent=True, observation="dict", action="box"
    ),
    "same_step_alike": TransitionScript(alike=True),
}
"""What storages are filled with: both ways to reset, and every kind of column."""


StorageT = TypeVar("StorageT", bound=AnyStorage)


class StorageSuite(StatefulSuite, Generic[StorageT]):
    """What every `Storage` is tested for; subclass the suite of a kind of storage, not this one.

    Attributes:
        scripts: what storages are filled with, by name; leave out what yours does not store.
        num_steps: how many steps fill a storage without a fixed number of rows.
    """

    scripts: ClassVar[Mapping[str, TransitionScript]] = SCRIPTS
    num_steps: ClassVar[int] = 20

    def new_storage(self) -> StorageT:
        """Return a new storage, not allocated yet, with room for at least eight steps."""
        raise NotImplementedError

    def draw(self, storage: AnyStorage) -> list[object]:
        """Return the batches of one update; override it where sizes are given otherwise."""
        return list(storage.generate_batches(3, 4))

    def drawn(self, storage: AnyStorage) -> list[StateValue]:
        """Return the columns of the batches of one update, to compare."""
        return [columns_of(batch) for batch in self.draw(storage)]

    @classmethod
    def pytest_generate_tests(cls, metafunc: pytest.Metafunc) -> None:
        """Run each test with each script."""
        if "script" in metafunc.fixturenames:
            metafunc.parametrize("script", cls.scripts.values(), ids=cls.scripts)

    def make_part(self) -> Stateful:
        """Return an allocated storage to save and restore."""
        return self.allocated(next(iter(self.scripts.values())))

    def use_part(self, part: Stateful) -> StateValue:
        """Fill the storage, unless it is, and draw."""
        storage = cast("AnyStorage", part)
        if len(storage) == 0:
            self.fill(storage, next(iter(self.scripts.values())))
        return self.drawn(storage)

    def test_nothing_works_before_it_is_allocated(self, script: TransitionScript) -> None:
        """The error says so, instead of failing somewhere inside."""
        storage = self.new_storage()
        assert storage.spec is None
        assert len(storage) == 0
        state = self.filled(script).state_dict()
        calls: list[Callable[[], object]] = [
            lambda: storage.insert_transition(script.transitions(1)[0]),
            lambda: storage.load_state_dict(state),
            lambda: list(storage.generate_batches(1, None)),
        ]
        if isinstance(storage, HasSlices):
            calls.append(storage.get_all_buffer_data)
            calls.append(partial(storage.insert_data_slice, {}))
        for call in calls:
            with pytest.raises(ConfigError, match="not allocated"):
                call()
        storage.allocate(script.spec(), seeded())
        assert storage.spec is not None

    def test_batches_have_the_declared_type_shape_and_dtype(self, script: TransitionScript) -> None:
        """Nothing between storage and network casts or reshapes, or compiles a second graph."""
        storage, spec = self.filled(script), script.spec()
        expected = {**observation_columns(spec.observation), "action": spec.action}
        shapes = set()
        for batch in self.draw(storage):
            assert isinstance(batch, storage.batch_type)
            columns = columns_of(batch)
            shapes.add(str({name: column.shape for name, column in columns.items()}))
            for name, leaf in expected.items():
                column = columns[name]
                assert column.dtype == leaf.dtype, name
                assert column.shape[column.dim() - len(leaf.shape) :] == leaf.shape, name
        assert len(shapes) == 1, shapes

    def test_the_seed_decides_what_is_drawn(self, script: TransitionScript) -> None:
        """The same seed gives the same batches, another one others."""
        first, again, other = (self.drawn(self.filled(script, seed)) for seed in (1, 1, 2))
        check_same_state(again, first)
        with pytest.raises(AssertionError):
            check_same_state(other, first)

    def test_no_global_generator_is_touched(self, script: TransitionScript) -> None:
        """Every random index comes from the generator that was given."""
        filled = self.filled(script)
        with global_generators_untouched("sampling", "the generator that was given"):
            self.draw(filled)

    def test_a_state_brings_data_and_generator_back(self, script: TransitionScript) -> None:
        """Empty, half full and full."""
        rows = self.allocated(script).rollout_steps or self.num_steps
        for count in (0, rows // 2, rows):
            storage = self.filled(script, count=count)
            if count == rows:
                self.draw(storage)
            restored = self.allocated(script, seed=9)
            restored.load_state_dict(cast("StateDict", copy_state(storage.state_dict())))
            assert len(restored) == len(storage) == count
            check_same_state(restored.state_dict(), storage.state_dict(), restored=True)
            check_same_state(stored(restored), stored(storage), restored=True)
            insert_all(script.transitions(rows)[count:], storage, restored)
            check_same_state(stored(restored), stored(storage), restored=True)
            drawn = self.drawn(storage)
            check_same_state(self.drawn(restored), drawn, "what it draws", restored=True)

    def test_a_state_that_does_not_fit_is_refused(self) -> None:
        """A checkpoint of other spaces is found out when it is loaded, not when it is used."""
        first, *others = self.scripts.values()
        state = self.filled(first).state_dict()
        for other in others:
            if other.observation != first.observation:
                with pytest.raises(CheckpointError):
                    self.allocated(other).load_state_dict(state)

    def test_slices_make_the_same_storage(self, script: TransitionScript) -> None:
        """What is shipped in pieces, and in order, arrives as if it had been collected there.

        A slice contains the observation that follows its last row, so it can be shipped before the
        next step; slices of a worker that is emptied after each continue each other all the same.
        """
        storage, worker = self.filled(script, 3), self.allocated(script)
        whole, pieces = self.allocated(script, 3), self.allocated(script, 3)
        rows = len(storage)
        transitions = script.transitions(rows)
        for start, end in ((0, 0), (0, 3), (3, 4), (4, rows)):
            ship([storage], [whole], start, end)
            worker.reset()
            insert_all(transitions[start:end], worker)
            ship([worker], [pieces])
            assert len(whole) == len(pieces) == end
        drawn = self.drawn(storage)
        for received in (whole, pieces):
            check_same_state(stored(received), stored(storage))
            check_same_state(self.drawn(received), drawn)

    def test_a_slice_is_a_copy(self, script: TransitionScript) -> None:
        """Whoever holds a slice may write to it, before and after it is inserted."""
        storage, received = map(with_slices, (self.filled(script), self.allocated(script)))
        before = stored(storage)
        data = storage.get_all_buffer_data()
        received.insert_data_slice(data)
        for column in data.values():
            column.zero_()
        check_same_state(stored(storage), before)
        check_same_state(stored(received), before)

    def test_a_slice_that_does_not_fit_is_refused(self, script: TransitionScript) -> None:
        """By column, and without a trace."""
        data = with_slices(self.filled(script)).get_data_slice(0, 6)
        storage = with_slices(self.filled(script, count=2))
        before = stored(storage)
        for name, column in data.items():
            other = torch.float64 if column.dtype == torch.float32 else torch.float32
            wrong: list[DataSlice] = [
                {key: value for key, value in data.items() if key != name},
                {**data, name: column.to(other)},
                {**data, name: column.unsqueeze(-1)},
            ]
            if len(column):
                wrong.append({**data, name: column[:-1]})
            for spoilt in wrong:
                with pytest.raises(DataError):
                    storage.insert_data_slice(spoilt)
        check_same_state(stored(storage), before)

    def test_rows_that_are_not_stored_cannot_be_sliced(self, script: TransitionScript) -> None:
        """Half a slice would be mistaken for a whole one."""
        storage = with_slices(self.filled(script, count=5))
        for start, end in ((-1, 2), (0, 6), (3, 2)):
            with pytest.raises(ConfigError, match="5"):
                storage.get_data_slice(start, end)

    def test_a_reset_forgets_the_data(self, script: TransitionScript) -> None:
        """And the storage is as good as new."""
        storage = self.filled(script)
        storage.reset()
        assert len(storage) == 0
        self.fill(storage, script)
        check_same_state(stored(storage), stored(self.filled(script)))

    def test_allocating_again_starts_anew(self) -> None:
        """One object may serve several runs, of other shapes too."""
        storage = self.new_storage()
        for script in self.scripts.values():
            storage.allocate(script.spec(), seeded())
            assert len(storage) == 0
            self.fill(storage, script)
            check_same_state(stored(storage), stored(self.filled(script)))

    def test_an_unknown_parameter_is_refused(self) -> None:
        """Those that may change while running do, and no others."""
        storage = self.allocated(next(iter(self.scripts.values())))
        with pytest.raises(ConfigError, match="no_such_parameter"):
            storage.update_storage_parameter("no_such_parameter", 1.0)
        for name, value in storage.live_parameters().items():
            storage.update_storage_parameter(name, 0.5 * value)
            assert storage.live_parameters()[name] == pytest.approx(0.5 * value)

    def allocated(self, script: TransitionScript, seed: int = 0) -> StorageT:
        """Return a storage that waits for a script's transitions."""
        storage = self.new_storage()
        storage.allocate(script.spec(), seeded(seed))
        return storage

    def filled(self, script: TransitionScript, seed: int = 0, count: int | None = None) -> StorageT:
        """Return a storage that holds a script's first transitions, by default all it can."""
        storage = self.allocated(script, seed)
        self.fill(storage, script, count)
        return storage

    def fill(self, storage: AnyStorage, script: TransitionScript, count: int | None = None) -> None:
        """Insert a script's first transitions, by default as many as there is room for."""
        if count is None:
            count = storage.rollout_steps or self.num_steps
        insert_all(script.transitions(count), storage)


def insert_all(transitions: Iterable[Transition], *storages: AnyStorage) -> None:
    """Give transitions to some storages, each of them to all storages in their order."""
    for transition in transitions:
        for storage in storages:
            storage.insert_transition(transition)


def ship(
    sources: Sequence[AnyStorage],
    targets: Sequence[AnyStorage],
    start: int = 0,
    end: int | None = None,
) -> None:
    """Send rows of each source, by default all, to the target in the same place."""
    for source, target in zip(sources, targets, strict=True):
        data = with_slices(source).get_data_slice(start, len(source) if end is None else end)
        with_slices(target).insert_data_slice(data)


def with_slices(storage: AnyStorage) -> HasSlices[object]:
    """Return a storage that exchanges slices with others; for any other the test is skipped."""
    if not isinstance(storage, HasSlices):
        pytest.skip("it has no slices")
    return storage


def seeded(seed: int = 0) -> torch.Generator:
    """Return a generator for `Storage.allocate`."""
    return torch.Generator().manual_seed(seed)


def stored(storage: AnyStorage) -> StateDict:
    """Return the contents of a storage, to compare, but not which storage it is."""
    if not isinstance(storage, HasSlices):
        return {name: part for name, part in storage.state_dict().items() if name != "generator"}
    data = storage.get_all_buffer_data()
    return {name: part for name, part in data.items() if name.partition("/")[0] != ORIGIN}


def columns_of(batch: object) -> dict[str, Tensor]:
    """Name every tensor of a batch."""
    columns: dict[str, Tensor] = {}
    for field in fields(batch):  # type: ignore[arg-type]  # batches are dataclasses
        value = getattr(batch, field.name)
        if isinstance(value, Tensor):
            columns[field.name] = value
        elif isinstance(value, Mapping):
            columns |= {f"{field.name}/{key}": tensor for key, tensor in value.items()}
        elif is_dataclass(value):
            columns |= {f"{field.name}/{key}": tensor for key, tensor in columns_of(value).items()}
    return columns
