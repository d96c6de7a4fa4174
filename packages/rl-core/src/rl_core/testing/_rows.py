"""What one environment did in one step, and the columns that such rows make."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rl_core.storage import StorageSpec, observation_columns
from rl_core.types import ArrayLike, ArrayObservation


@dataclass(slots=True)
class Row:
    """What one environment did in one step.

    Attributes:
        columns: observation, action, reward, flags, states and extras by name.
        next_observation: what the environment showed next, by column.
        successor: what the action led to, by column: another observation than the next one where
            an episode ended and the environment reset in the same step.
        prepared: what the algorithm attached.
    """

    columns: dict[str, Tensor]
    next_observation: dict[str, Tensor]
    successor: dict[str, Tensor]
    prepared: dict[str, Tensor] = field(default_factory=dict)


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


def row_of(
    observation: ArrayObservation, env: int, device: torch.device | None = None
) -> dict[str, Tensor]:
    """Copy one environment's part of an observation, by column."""
    named: Mapping[str, ArrayLike] = (
        {f"observation/{key}": value for key, value in observation.items()}
        if isinstance(observation, Mapping)
        else {"observation": observation}
    )
    return {name: torch.as_tensor(value[env]).clone().to(device) for name, value in named.items()}


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


def row_at(columns: Mapping[str, Tensor], step: int, env: int) -> dict[str, Tensor]:
    """Copy one environment's entry of one step."""
    return {name: column[step, env].clone() for name, column in columns.items()}


def below(prefix: str, columns: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the columns whose names have a prefix, without it."""
    return {
        name.removeprefix(prefix): column
        for name, column in columns.items()
        if name.startswith(prefix)
    }


def put_below(prefix: str, columns: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Put a prefix before the names of columns."""
    return {prefix + name: column for name, column in columns.items()}
