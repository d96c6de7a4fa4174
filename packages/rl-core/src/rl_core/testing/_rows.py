"""What one environment did in one step, and the columns that such rows make."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor

from rl_core.batch import Transition
from rl_core.errors import DataError
from rl_core.storage import DataSlice, StorageSpec, observation_columns
from rl_core.types import ArrayLike, ArrayObservation

ColumnT = TypeVar("ColumnT")

_SUCCESSORS = ("next/", "successor/")


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
    """

    columns: dict[str, Tensor]
    next_observation: dict[str, Tensor]
    successor: dict[str, Tensor]
    prepared: dict[str, Tensor] = field(default_factory=dict)
    step: int = 0
    begins: bool = True


def breaks_off(row: Row, following: Mapping[str, Tensor]) -> bool:
    """Whether an unfinished episode is followed by a row of another one."""
    columns = row.columns
    if columns["terminated"] or columns["truncated"] or not columns["valid"]:
        return False
    return bool(following["episode_start"]) or is_elsewhere(row, following)


def is_elsewhere(row: Row, following: Mapping[str, Tensor]) -> bool:
    """Whether what follows a row neither goes on from it nor begins an episode."""
    return not following["episode_start"] and any(
        not torch.equal(value, following[name]) for name, value in row.next_observation.items()
    )


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
    return {name: torch.as_tensor(column).unsqueeze(0) for name, column in columns.items()}


def slice_of_rows(rows_of_envs: list[list[Row]], spec: StorageSpec) -> DataSlice:
    """Copy rows, as many of each environment, to columns `(L, B, ...)`."""
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
    own = {name: column for name, column in columns.items() if not name.startswith(_SUCCESSORS)}
    following, successors = below("next/", columns), below("successor/", columns)
    rows = [
        Row(_row_at(own, place), _row_at(following, place), _row_at(successors, place))
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
