"""A storage of Python lists, and what one environment did in one step as its row."""

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from rl_core.batch import Transition
from rl_core.errors import CheckpointError, ConfigError, DataError
from rl_core.stateful import StateFields, StateReader
from rl_core.storage import (
    DataSlice,
    HasSlices,
    StorageSpec,
    TensorSpec,
    check_slice,
    columns_below,
    join_observation,
    observation_columns,
)
from rl_core.types import ArrayLike, ArrayObservation, StateDict

BatchT = TypeVar("BatchT", covariant=True)
AssembledT = TypeVar("AssembledT")


INSERTED, _NOTHING = (0, -1), (0, 0)
"""Sources of rows: a transition that was inserted here, and what no row continues."""


@dataclass(slots=True)
class Row:
    """What one environment did in one step.

    Attributes:
        columns: those of a data slice, by name. Below ``next/`` stands what the environment showed
            next, and below ``successor/`` what the action led to: another observation where an
            episode ended and the environment reset in the same step.
        source: the storage that gave it, and its place there; `INSERTED` for a transition.
        place: its number in its own storage; where two rows continue each other, one apart.
        step: how many rows of its environment were inserted before it.
        begins: it does not continue the row before it.
    """

    columns: dict[str, Tensor]
    source: tuple[int, int] = INSERTED
    place: int = 0
    step: int = 0
    begins: bool = True

    @property
    def successor(self) -> dict[str, Tensor]:
        """What the action led to, by column."""
        return columns_below("successor/", self.columns)

    @property
    def is_last(self) -> bool:
        """Whether its episode ended, or has ended before."""
        columns = self.columns
        return bool(columns["terminated"] or columns["truncated"] or not columns["valid"])

    def breaks_off(self, following: "Row") -> bool:
        """Whether its episode has not ended, and the following row does not continue it."""
        starts = bool(following.columns["episode_start"])
        return not self.is_last and (starts or following.place != self.place + 1)


class Places(StateFields):
    """Numbers the rows of a storage, and leaves a number out wherever they do not continue.

    What is known of rows decides, not what they look like: a transition continues the transition
    inserted before it, and a row of a slice that of the place before it in the same storage.

    Args:
        num_envs: how many environments.
    """

    state_fields = ("_next", "_expected")

    def __init__(self, num_envs: int) -> None:
        self._next = np.zeros(num_envs, np.int64)
        self._expected = np.zeros((num_envs, 2), np.int64)  # source of what continues each
        self.cut()

    def number(self, added: list[list[Row]]) -> None:
        """Give new rows of each environment their places."""
        for env, rows in enumerate(added):
            for row in rows:
                self._next[env] += not self.follows([row], env)
                row.place = int(self._next[env])
                self._next[env] += 1
                storage, place = row.source
                self._expected[env] = INSERTED if row.source == INSERTED else (storage, place + 1)

    def follows(self, rows: list[Row], env: int) -> bool:
        """Whether the first of some new rows continues what was numbered last."""
        return rows[0].source == tuple(self._expected[env])

    def cut(self) -> None:
        """Let nothing continue, neither here nor where this storage's rows are sent."""
        self.storage = uuid.uuid4().int >> 66
        self._expected[:] = _NOTHING


class RowStorage(HasSlices[BatchT]):
    """What the reference storages share: one list of rows per environment, copied one by one."""

    state_fields = ("generator",)

    def __init__(self) -> None:
        self._rows: list[list[Row]] = []
        self._inserted = 0

    def allocate(self, spec: StorageSpec, generator: torch.Generator) -> None:
        """Remember what will be inserted."""
        super().allocate(spec, generator)
        self._inserted = 0
        self._places = Places(spec.num_envs)
        self.reset()

    def insert_transition(self, transition: Transition) -> None:
        """Take in one row of each environment.

        Raises:
            ConfigError: when nothing was allocated.
            DataError: when a column has another shape or dtype than was allocated.
        """
        rows = _rows_of_slice(_slice_of_transition(transition), self.check_allocated())
        for (row,) in rows:
            row.source = INSERTED
        self._insert(rows)

    def insert_data_slice(self, data: DataSlice) -> None:
        """Append the rows of a slice.

        Raises:
            ConfigError: when nothing was allocated.
            DataError: when columns are missing, of other shape or dtype, or of unequal length.
        """
        self._insert(_rows_of_slice(data, self.check_allocated()))

    def get_data_slice(self, start: int, end: int) -> DataSlice:
        """Copy rows; every column is `(L, B, ...)`.

        Raises:
            ConfigError: when the rows are not all stored.
        """
        self.check_allocated()
        if not 0 <= start <= end <= len(self):
            raise ConfigError(f"rows {start} to {end} are not within the {len(self)} stored ones")
        return self._slice([rows[start:end] for rows in self._rows], self._places.storage)

    def mark_boundary(self) -> None:
        """Let what is inserted next begin anew."""
        self._places.cut()

    def reset(self) -> None:
        """Forget the rows; those to come continue to be numbered."""
        self._rows = [[] for _ in range(self.num_envs)]

    def __len__(self) -> int:
        """Return how many rows of each environment are stored."""
        return len(self._rows[0]) if self._rows else 0

    def state_dict(self) -> StateDict:
        """Return the stored rows, how many there have been, and the generator's state."""
        return {
            **super().state_dict(),
            "data": dict(self._slice(self._rows)),
            "places": self._places.state_dict(),
            "inserted": self._inserted,
        }

    def load_state_dict(self, state: StateDict) -> None:
        """Take over a state returned by `state_dict`; the storage must be allocated.

        Raises:
            CheckpointError: when the rows do not fit this storage.
        """
        spec = self.check_allocated()
        saved = StateReader(state, "storage")
        saved.expect(self.state_dict())
        try:
            added = _rows_of_slice(saved.tensors("data"), spec)
        except DataError as error:
            raise CheckpointError(f"the saved rows do not fit: {error}") from error
        inserted, count = saved.count("inserted"), len(added[0])
        if not count <= min(inserted, self._share()):
            raise CheckpointError(
                f"{count} rows are saved of {inserted}; expected up to {self._share()}"
            )
        places = Places(spec.num_envs)
        places.load_state_dict(saved.tree("places"))
        self.load_fields(saved)
        for rows in added:
            for row in rows:
                row.place = row.source[1]
        self.reset()
        self._inserted = inserted - count
        self._append(added)
        self._places = places

    def _share(self) -> int:
        """Return how many rows of each environment are kept, the newest ones."""
        raise NotImplementedError

    def _insert(self, added: list[list[Row]]) -> None:
        self._places.number(added)
        self._append(added)

    def _append(self, added: list[list[Row]]) -> None:
        for rows, new in zip(self._rows, added, strict=True):
            for step, row in enumerate(new, start=self._inserted):
                row.step = step
                row.begins = not rows or rows[-1].is_last or rows[-1].breaks_off(row)
                rows.append(row)
            del rows[: -self._share()]
        self._inserted += len(added[0])

    def _slice(self, rows_of_envs: list[list[Row]], storage: int = 0) -> DataSlice:
        """Copy rows, as many of each environment, to columns; 0 is no storage in particular."""
        spec = self.check_allocated()
        if not rows_of_envs[0]:
            return {
                name: torch.zeros(shape, dtype=dtype, device=spec.device)
                for name, (shape, dtype) in _slice_columns(spec, 0).items()
            }
        columns = [stack([row.columns for row in rows], 0) for rows in rows_of_envs]
        places = torch.tensor([[row.place for row in rows] for rows in rows_of_envs]).T
        origin = {"origin/storage": torch.full_like(places, storage), "origin/place": places}
        return {**stack(columns, 1), **origin}


def stack(rows: list[dict[str, Tensor]], axis: int) -> dict[str, Tensor]:
    """Stack rows to columns along an axis."""
    return {name: torch.stack([row[name] for row in rows], axis) for name in rows[0]}


def assembled(kind: Callable[..., AssembledT], columns: Mapping[str, Tensor]) -> AssembledT:
    """Build a batch or a rollout from its columns; one without ``start`` is not of sequences."""
    names = [field.name for field in fields(kind) if field.name != "start"]  # type: ignore[arg-type]  # dataclasses
    return kind(**{name: join_observation(columns, name) for name in names})


def _slice_of_transition(transition: Transition) -> DataSlice:
    """Name a transition's columns as a data slice of one row; nothing is copied or checked."""
    following, final = transition.next_observation, transition.final_observation
    nowhere = torch.zeros(len(transition.episode_start), dtype=torch.int64)
    columns = {
        **_named(transition.observation, "observation"),
        **_named(following, "next/observation"),
        **_named(following if final is None else final, "successor/observation"),
        "action": transition.action,
        "reward": transition.reward,
        "terminated": transition.terminated,
        "truncated": transition.truncated,
        "valid": transition.valid,
        "episode_start": transition.episode_start,
        **{f"state/{name}": state for name, state in transition.state.items()},
        **{f"extras/{name}": extra for name, extra in transition.extras.items()},
        "origin/storage": nowhere,
        "origin/place": nowhere,
    }
    return {name: torch.as_tensor(column).unsqueeze(0) for name, column in columns.items()}


def _named(observation: ArrayObservation, prefix: str) -> dict[str, ArrayLike]:
    if isinstance(observation, Mapping):
        return {f"{prefix}/{key}": value for key, value in observation.items()}
    return {prefix: observation}


def _rows_of_slice(data: DataSlice, spec: StorageSpec) -> list[list[Row]]:
    """Copy a data slice to rows, one list per environment.

    Raises:
        DataError: when columns are missing, of other shape or dtype, or of unequal length.
    """
    length = len(data["reward"]) if "reward" in data and data["reward"].dim() else 0
    expected = _slice_columns(spec, length)
    check_slice(data, expected)
    origins = torch.stack([data["origin/storage"], data["origin/place"]], 2).tolist()
    copies = {
        name: data[name].to(spec.device, copy=True)
        for name in expected
        if not name.startswith("origin/")
    }
    return [
        [
            Row({name: copy[t, env] for name, copy in copies.items()}, tuple(origins[t][env]))
            for t in range(length)
        ]
        for env in range(spec.num_envs)
    ]


def _slice_columns(
    spec: StorageSpec, length: int
) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Return shape and dtype of every column of a data slice."""
    columns = {"action": spec.action, "reward": TensorSpec((), torch.float32)}
    for prefix in ("observation", "next/observation", "successor/observation"):
        columns |= observation_columns(spec.observation, prefix)
    for name in ("terminated", "truncated", "valid", "episode_start"):
        columns[name] = TensorSpec((), torch.bool)
    for name in ("origin/storage", "origin/place"):
        columns[name] = TensorSpec((), torch.int64)
    for name, size in spec.state_sizes.items():
        columns[f"state/{name}"] = TensorSpec((size,), torch.float32)
    columns |= {f"extras/{name}": extra for name, extra in spec.extras.items()}
    shape = (length, spec.num_envs)
    return {name: ((*shape, *leaf.shape), leaf.dtype) for name, leaf in columns.items()}
