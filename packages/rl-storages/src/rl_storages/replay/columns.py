"""The memory of a replay storage: one tensor per column, allocated once."""

import errno
import math
import os
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_core.errors import ConfigError
from rl_core.storage import StorageSpec, TensorSpec, observation_columns
from rl_core.types import Array

DEPTH = "depth"
"""The column that says how many rows before a row hold older frames of its stack."""

FIRST = "first/"
"""The prefix of a slice's columns `(1, B, k, ...)` with the stacks of its first row."""

HOST_COLUMNS = ("reward", "flags", DEPTH)
"""Columns that are on the CPU wherever the others are."""


def replay_columns(
    spec: StorageSpec, *, stacked: Collection[str] = (), with_state: bool = False
) -> dict[str, TensorSpec]:
    """Name what is stored of each row.

    Args:
        spec: what is given.
        stacked: columns of the observation that are stacks, of which one frame is stored.
        with_state: store the recurrent states.
    """
    observation = {
        name: TensorSpec(leaf.shape[1:], leaf.dtype) if name in stacked else leaf
        for name, leaf in observation_columns(spec.observation).items()
    }
    states = spec.state_sizes if with_state else {}
    return {
        **observation,
        **({DEPTH: TensorSpec((), torch.uint8)} if stacked else {}),
        "action": spec.action,
        "reward": TensorSpec((), torch.float32),
        "flags": TensorSpec((), torch.uint8),
        **{f"state/{name}": TensorSpec((n,), torch.float32) for name, n in states.items()},
        **{f"extras/{name}": extra for name, extra in spec.extras.items()},
    }


class Columns:
    """Columns `(R, B, ...)`, also as `(R * B, ...)`.

    Flags and rewards are always on the CPU, where it is decided what is drawn and how far a window
    goes; the rest may be elsewhere. Memory is not touched before it is written to, so what is not
    used yet costs nothing.

    Args:
        specs: what one entry of each column is.
        rows: R.
        num_envs: B.
        device: where observations, actions, states and extras are.
        directory: where files are made, one per column, whose names are gone as soon as they are
            mapped, so that nothing is left of them however the process ends; None keeps columns
            in memory.
        given: what is given of columns that hold only part of it.

    Attributes:
        by_row: each column `(R, B, ...)`.
        by_slot: each column `(R * B, ...)`.
        rows: each column `(R, B, ...)`, to write to: arrays on the CPU, which are faster than
            tensors for little data, and tensors elsewhere.
        slots: the same, `(R * B, ...)`.
        expected: shape and dtype of what is given of each column in one step.

    Raises:
        ConfigError: when the disk has no room, or NumPy does not know a dtype.
    """

    def __init__(
        self,
        specs: Mapping[str, TensorSpec],
        rows: int,
        num_envs: int,
        device: torch.device,
        directory: Path | None = None,
        given: Mapping[str, TensorSpec] | None = None,
    ) -> None:
        self.device = device
        self._directory = directory
        self.by_row = {
            name: self._allocate(name, spec, rows, num_envs) for name, spec in specs.items()
        }
        self.by_slot = {name: column.flatten(0, 1) for name, column in self.by_row.items()}
        self.rows: Mapping[str, Any] = {name: _fast(name, c) for name, c in self.by_row.items()}
        self.slots: Mapping[str, Any] = {name: _fast(name, c) for name, c in self.by_slot.items()}
        self.expected = {
            name: (tuple(column.shape[1:]), column.dtype) for name, column in self.rows.items()
        } | {
            name: ((num_envs, *spec.shape), self.rows[name].dtype)
            for name, spec in (given or {}).items()
        }

    @property
    def nbytes(self) -> int:
        """What all columns take when they are full."""
        return sum(column.nbytes for column in self.by_row.values())

    def _allocate(self, name: str, spec: TensorSpec, *rows: int) -> Tensor:
        shape = (*rows, *spec.shape)
        if self._directory is not None:
            size = math.prod(rows) * spec.nbytes
            raw = _mapped_file(self._directory, max(size, 1))
            return torch.from_numpy(raw)[:size].view(spec.dtype).view(shape)
        if self.device.type != "cpu" and name not in HOST_COLUMNS:
            return torch.zeros(shape, dtype=spec.dtype, device=self.device)
        return spec.zeros(*rows)


def _mapped_file(directory: Path, size: int) -> Array:
    """Map a new file without a name, for which the disk has room.

    A disk that is full later would end the process when one of its pages is first written to.

    Raises:
        ConfigError: when there is no room.
    """
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            _reserve(file.fileno(), size)
            mapped: Array = np.memmap(file, np.uint8, "r+", shape=(size,))
    except OSError as error:
        raise ConfigError(
            f"storage.mmap_dir: {directory} takes no file of {size} bytes ({error.strerror}); free "
            "some of the disk, choose a directory on another one, or set storage.size to less"
        ) from error
    return mapped


def _reserve(descriptor: int, size: int) -> None:
    """Make a file so long; its disk holds room for it, where the system can do that."""
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(descriptor, 0, size)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS):
                raise
        else:
            return
    os.truncate(descriptor, size)


def _fast(name: str, column: Tensor) -> Array | Tensor:
    if column.device.type != "cpu":
        return column
    try:
        return column.numpy()
    except TypeError as error:
        raise ConfigError(f"storage column '{name}': NumPy has no {column.dtype}") from error
