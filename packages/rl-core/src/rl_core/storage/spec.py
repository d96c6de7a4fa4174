"""What a storage keeps of each step: columns by name, with their shapes and dtypes."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from rl_core.env import GoalFunctions
from rl_core.errors import DataError
from rl_core.spaces import Space, event_shape, named_leaves, tensor_dtype
from rl_core.types import Observation

ColumnT = TypeVar("ColumnT")

DataSlice = Mapping[str, Tensor]
"""Consecutive rows of a storage by column name; what workers exchange. Most are `(L, B, ...)`."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape and dtype of one entry of a column.

    Attributes:
        shape: without time and environment axes.
        dtype: of the tensor.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of one entry."""
        return math.prod(self.shape) * self.dtype.itemsize

    def zeros(self, *rows: int) -> Tensor:
        """Make a column of zeros `(*rows, *shape)` on the CPU.

        Raises:
            MemoryError: when there is no room for it. Its memory is taken as it is written to, so
                that one which fits may still become too large.
        """
        size = math.prod(rows) * self.nbytes
        # Unlike torch.zeros, this asks the system for zero pages, which cost nothing yet. One
        # byte at least, because PyTorch views no empty array of NumPy's as another dtype.
        memory = torch.from_numpy(np.zeros(max(size, 1), np.uint8))[:size]
        return memory.view(self.dtype).view((*rows, *self.shape))


def observation_spec(space: Space) -> TensorSpec | dict[str, TensorSpec]:
    """Return what is stored of observations of a space: one spec, or one per key of a dict."""
    specs = {
        key: TensorSpec(event_shape(leaf), tensor_dtype(leaf))
        for key, leaf in named_leaves(space).items()
    }
    return specs.get("", specs)


@dataclass(frozen=True, slots=True)
class StorageSpec:
    """All that a storage must know to allocate itself.

    Attributes:
        observation: see `observation_spec`.
        action: of the actor-space action.
        num_envs: how many environments step together.
        state_sizes: size of each recurrent state by name; empty when feed-forward.
        extras: what the algorithm's acting step adds, by name.
        device: where batches must be.
        goal_functions: ask the environments how goals are rewarded; they return None where they
            have no goals. None where nobody can be asked.
        scales_rewards: rewards are not the environment's own, but scaled.
    """

    observation: TensorSpec | Mapping[str, TensorSpec]
    action: TensorSpec
    num_envs: int
    state_sizes: Mapping[str, int]
    extras: Mapping[str, TensorSpec]
    device: torch.device
    goal_functions: Callable[[], GoalFunctions | None] | None = None
    scales_rewards: bool = False


OBSERVATION_COLUMN = "observation"
"""The column of a plain observation, and the prefix ``observation/`` of a dict's."""


def observation_columns(
    observation: TensorSpec | Mapping[str, TensorSpec], prefix: str = OBSERVATION_COLUMN
) -> dict[str, TensorSpec]:
    """Name the columns an observation is stored in."""
    if isinstance(observation, TensorSpec):
        return {prefix: observation}
    return {f"{prefix}/{key}": spec for key, spec in observation.items()}


def check_slice(
    data: DataSlice, expected: Mapping[str, tuple[tuple[int, ...], torch.dtype]]
) -> None:
    """Compare the columns of a slice with what a storage expects.

    Args:
        data: what another storage's ``get_data_slice`` returned.
        expected: shape, leading axes included, and dtype of each column.

    Raises:
        DataError: when a column is missing, or has another shape or dtype.
    """
    for name, (shape, dtype) in expected.items():
        given = data.get(name)
        if given is None:
            raise DataError(f"data slice lacks column '{name}'")
        if given.dtype != dtype or given.shape != shape:
            raise DataError(
                f"data slice column '{name}': expected {dtype} of shape {shape}, got "
                f"{given.dtype} of {tuple(given.shape)}"
            )


def join_observation(
    columns: Mapping[str, Tensor], prefix: str = OBSERVATION_COLUMN
) -> Observation:
    """Rebuild an observation from its columns."""
    return columns[prefix] if prefix in columns else columns_below(f"{prefix}/", columns)


def columns_below(prefix: str, columns: Mapping[str, ColumnT]) -> dict[str, ColumnT]:
    """Return the columns whose names begin with a prefix, under what follows it."""
    return {
        name.removeprefix(prefix): column
        for name, column in columns.items()
        if name.startswith(prefix)
    }
