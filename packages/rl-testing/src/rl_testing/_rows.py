"""What one environment did in one step, and the columns that such rows make."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import TypeVar

import torch
from torch import Tensor

from rl_core.batch import Transition
from rl_core.errors import CheckpointError, DataError
from rl_core.stateful import StateReader
from rl_core.storage import DataSlice, StorageSpec, observation_columns
from rl_core.types import ArrayLike, ArrayObservation, StateDict

ColumnT = TypeVar("ColumnT")

_SUCCESSORS = ("next/", "successor/")

_ORIGIN = ("origin/storage", "origin/place")
"""The columns `(L, B)` that tell which storage gave a row, and which of its rows it was."""


@dataclass(slots=True)
class Row:
    """What one environment did in one step.

    Attributes:
        columns: observation, action, reward, flags, states and extras by name.
        next_observation: what the environment showed next, by column.
        successor: what the action led to, by column: another observation than the next one where
            an episode ended and the environment reset in the same step.
        prepared: what the algorithm attached.
        step: how many rows of its environment were inserted before it.
        begins: no transition before it goes on in it.
        source: the storage that gave it, and its place there; None where it was inserted as a
            transition.
        place: of the row in its own storage, where two that go on are one apart, and others more.
    """

    columns: dict[str, Tensor]
    next_observation: dict[str, Tensor]
    successor: dict[str, Tensor]
    prepared: dict[str, Tensor] = field(default_factory=dict)
    step: int = 0
    begins: bool = True
    source: tuple[int, int] | None = None
    place: int = 0


class Places:
    """Numbers the rows of a storage, and leaves a number out wherever they do not go on.

    Whether they do is told by what is known of them, not by what they look like: a transition goes
    on from the transition inserted before it, and a row of a slice from that of the place before
    it in the same storage.

    Args:
        num_envs: how many environments.
    """

    def __init__(self, num_envs: int) -> None:
        self.storage = uuid.uuid4().int >> 66
        self._next = [0] * num_envs
        # Source of what goes on in each environment; None is a transition, and (0, 0) nothing.
        self._expected: list[tuple[int, int] | None] = [(0, 0)] * num_envs

    def number(self, added: list[list[Row]]) -> None:
        """Give new rows of each environment their places."""
        for env, rows in enumerate(added):
            for row in rows:
                self._next[env] += row.source != self._expected[env]
                row.place = self._next[env]
                self._next[env] += 1
                self._expected[env] = row.source and (row.source[0], row.source[1] + 1)

    def follows(self, rows: list[Row], env: int) -> bool:
        """Whether the first of some new rows goes on from what was numbered last."""
        return rows[0].source == self._expected[env]

    def cut(self) -> None:
        """Let nothing go on, neither here nor where this storage's rows are sent."""
        self.storage = uuid.uuid4().int >> 66
        self._expected = [(0, 0)] * len(self._expected)

    def state_dict(self) -> StateDict:
        """Return what goes on, as source and place of each environment."""
        pairs = [(0, -1) if pair is None else pair for pair in self._expected]
        return {"next": torch.tensor(self._next), "expected": torch.tensor(pairs)}

    def load_state_dict(self, state: StateDict) -> None:
        """Take over a state returned by `state_dict`.

        Raises:
            CheckpointError: when it does not fit.
        """
        saved = StateReader(state, "storage/places")
        saved.expect(("next", "expected"))
        like = torch.zeros((len(self._next), 2), dtype=torch.int64)
        numbers = saved.tensor("next", like[:, 0]).tolist()
        pairs = saved.tensor("expected", like).tolist()
        self.cut()
        self._next = numbers
        self._expected = [None if pair == [0, -1] else (pair[0], pair[1]) for pair in pairs]


def restored_rows(data: DataSlice, spec: StorageSpec) -> list[list[Row]]:
    """Copy the rows of a state, which keep the places they had.

    Raises:
        CheckpointError: when they do not fit.
    """
    try:
        rows_of_envs = rows_of_slice(data, spec)
    except DataError as error:
        raise CheckpointError(f"the saved rows do not fit: {error}") from error
    for row in chain.from_iterable(rows_of_envs):
        assert row.source is not None
        _, row.place = row.source
    return rows_of_envs


def breaks_off(row: Row, following: Row) -> bool:
    """Whether an unfinished episode is followed by a row of another one."""
    columns = row.columns
    if columns["terminated"] or columns["truncated"] or not columns["valid"]:
        return False
    return bool(following.columns["episode_start"]) or following.place != row.place + 1


def rows_of_transition(transition: Transition, spec: StorageSpec) -> list[list[Row]]:
    """Copy a transition to a row per environment.

    Raises:
        DataError: when a column has another shape or dtype than was allocated.
    """
    rows = rows_of_slice(slice_of_transition(transition), spec)
    for (row,) in rows:
        row.source = None
    return rows


def slice_of_transition(transition: Transition) -> DataSlice:
    """Name a transition's columns as a data slice of one row; nothing is copied or checked."""
    final = transition.final_observation
    columns = {
        **_named(transition.observation, "observation"),
        **_named(transition.next_observation, "next/observation"),
        **_named(transition.next_observation if final is None else final, "successor/observation"),
        "action": transition.action,
        "reward": transition.reward,
        "terminated": transition.terminated,
        "truncated": transition.truncated,
        "valid": transition.valid,
        "episode_start": transition.episode_start,
        **put_below("state/", transition.state),
        **put_below("extras/", transition.extras),
    }
    nowhere = torch.zeros(1, len(transition.episode_start), dtype=torch.int64)
    return {
        **{name: torch.as_tensor(column).unsqueeze(0) for name, column in columns.items()},
        **dict.fromkeys(_ORIGIN, nowhere),
    }


def slice_of_rows(rows_of_envs: list[list[Row]], spec: StorageSpec, storage: int = 0) -> DataSlice:
    """Copy rows, as many of each environment, to columns `(L, B, ...)`.

    Args:
        rows_of_envs: the rows of each environment.
        spec: what they consist of.
        storage: which one gives them; 0 where it stays among its own.
    """
    if not rows_of_envs[0]:
        return {
            name: torch.zeros((0, spec.num_envs, *shape), dtype=dtype, device=spec.device)
            for name, (shape, dtype) in slice_columns(spec).items()
        }
    following = [[row.next_observation for row in rows] for rows in rows_of_envs]
    successors = [[row.successor for row in rows] for rows in rows_of_envs]
    return {
        **stack_steps([[row.columns for row in rows] for rows in rows_of_envs]),
        **put_below("next/", stack_steps(following)),
        **put_below("successor/", stack_steps(successors)),
        "origin/storage": torch.full((len(rows_of_envs[0]), len(rows_of_envs)), storage),
        "origin/place": torch.tensor([[row.place for row in rows] for rows in rows_of_envs]).T,
    }


def rows_of_slice(data: DataSlice, spec: StorageSpec) -> list[list[Row]]:
    """Copy a data slice to rows, one list per environment.

    Raises:
        DataError: when columns are missing, of other shape or dtype, or of unequal length.
    """
    length = len(data["reward"]) if "reward" in data else 0
    columns: dict[str, tuple[Tensor, ...]] = {}
    for name, (shape, dtype) in slice_columns(spec).items():
        column = data.get(name)
        if column is None:
            raise DataError(f"column '{name}' is missing")
        if column.dtype != dtype or column.shape != (length, spec.num_envs, *shape):
            raise DataError(
                f"column '{name}': {column.dtype} of {tuple(column.shape)}; "
                f"expected {dtype} of {(length, spec.num_envs, *shape)}"
            )
        columns[name] = column.to(spec.device, copy=True).flatten(0, 1).unbind()
    beside = (*_SUCCESSORS, "origin/")
    own = {name: column for name, column in columns.items() if not name.startswith(beside)}
    following, successors = below("next/", columns), below("successor/", columns)
    rows = [
        Row(
            _row_at(own, place),
            _row_at(following, place),
            _row_at(successors, place),
            source=(int(columns[_ORIGIN[0]][place]), int(columns[_ORIGIN[1]][place])),
        )
        for place in range(length * spec.num_envs)
    ]
    return [rows[env :: spec.num_envs] for env in range(spec.num_envs)]


def slice_columns(spec: StorageSpec) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Return event shape and dtype of every column of a data slice."""
    observation = observation_columns(spec.observation)
    expected = {name: (leaf.shape, leaf.dtype) for name, leaf in observation.items()}
    expected |= {
        f"{prefix}/{name}": (leaf.shape, leaf.dtype)
        for prefix in ("next", "successor")
        for name, leaf in observation.items()
    }
    expected["action"] = (spec.action.shape, spec.action.dtype)
    expected["reward"] = ((), torch.float32)
    for name in ("terminated", "truncated", "valid", "episode_start"):
        expected[name] = ((), torch.bool)
    for name in _ORIGIN:
        expected[name] = ((), torch.int64)
    for name, size in spec.state_sizes.items():
        expected[f"state/{name}"] = ((size,), torch.float32)
    for name, extra in spec.extras.items():
        expected[f"extras/{name}"] = (extra.shape, extra.dtype)
    return expected


def stack(rows: list[dict[str, Tensor]], axis: int) -> dict[str, Tensor]:
    """Stack rows to columns along an axis."""
    return {name: torch.stack([row[name] for row in rows], axis) for name in rows[0]}


def stack_steps(rows_of_envs: list[list[dict[str, Tensor]]]) -> dict[str, Tensor]:
    """Stack the rows of each environment to columns `(T, B, ...)`."""
    return stack([stack(rows, 0) for rows in rows_of_envs], 1)


def below(prefix: str, columns: Mapping[str, ColumnT]) -> dict[str, ColumnT]:
    """Return the columns whose names have a prefix, without it."""
    return {
        name.removeprefix(prefix): column
        for name, column in columns.items()
        if name.startswith(prefix)
    }


def put_below(prefix: str, columns: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Put a prefix before the names of columns."""
    return {prefix + name: column for name, column in columns.items()}


def _named(observation: ArrayObservation, prefix: str) -> dict[str, ArrayLike]:
    if isinstance(observation, Mapping):
        return {f"{prefix}/{key}": value for key, value in observation.items()}
    return {prefix: observation}


def _row_at(columns: Mapping[str, tuple[Tensor, ...]], place: int) -> dict[str, Tensor]:
    return {name: rows[place] for name, rows in columns.items()}
