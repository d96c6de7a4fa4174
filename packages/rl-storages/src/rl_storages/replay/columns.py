"""The memory of a replay storage: one tensor per column, allocated once."""

import errno
import os
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_core.arrays import to_flags
from rl_core.batch import Transition
from rl_core.errors import ConfigError, DataError
from rl_core.storage import OBSERVATION_COLUMN, StorageSpec, TensorSpec, observation_columns
from rl_core.types import Array, ArrayLike, ArrayObservation
from rl_storages.replay.rows import Mask

Rows = list[tuple[str, ArrayLike]]
"""One row of all environments by column."""

_MASKS = ("episode_start", "terminated", "truncated", "valid")
_BOOL = np.dtype(np.bool_)


class TransitionFitter:
    """Compares transitions with what was allocated, and brings them to where they are written.

    Args:
        fit: compares one row of a column; see `fitted`.
        names: the columns.
        num_envs: how many environments step together.
        observation_names: the columns that are the observation.

    Raises:
        DataError: by every method, when something is missing, or of another shape or dtype.
    """

    def __init__(
        self,
        fit: Callable[[str, ArrayLike], ArrayLike],
        names: Iterable[str],
        num_envs: int,
        observation_names: tuple[str, ...],
    ) -> None:
        names = list(names)
        self._fit = fit
        self._shape = (num_envs,)
        self._names = observation_names
        self._keys = _below(f"{OBSERVATION_COLUMN}/", observation_names)
        self._state_names = _below("state/", names)
        self._extras_names = _below("extras/", names)

    def observation(self, field: str, observation: ArrayObservation) -> Rows:
        """Fit the observation that a transition has in a field."""
        if isinstance(observation, np.ndarray | Tensor):
            if self._keys:
                raise DataError(f"transition.{field}: got an array; expected a dict of arrays")
            return [(OBSERVATION_COLUMN, self._fit(OBSERVATION_COLUMN, observation))]
        if sorted(observation) != sorted(self._keys):
            raise DataError(
                f"transition.{field}: got the keys {sorted(observation)}; expected "
                + (str(sorted(self._keys)) if self._keys else "an array")
            )
        return [
            (name, self._fit(name, observation[key]))
            for name, key in zip(self._names, self._keys, strict=True)
        ]

    def values(self, transition: Transition) -> Rows:
        """Fit action, reward, states and extras."""
        fit = self._fit
        values = [
            ("action", fit("action", transition.action)),
            ("reward", fit("reward", transition.reward)),
        ]
        if self._state_names:
            values += self._mapping("state", self._state_names, transition.state)
        if self._extras_names:
            values += self._mapping("extras", self._extras_names, transition.extras)
        return values

    def masks(self, transition: Transition) -> list[Mask]:
        """Return where episodes start, terminate and are truncated, and which rows are valid."""
        masks = []
        for name in _MASKS:
            value = getattr(transition, name)
            mask = value if type(value) is np.ndarray else to_flags(value)
            if mask.shape != self._shape or mask.dtype != _BOOL:
                raise DataError(
                    f"transition.{name}: got {mask.dtype} of shape {mask.shape}; expected bool of "
                    f"shape {self._shape}"
                )
            masks.append(mask)
        return masks

    def _mapping(self, field: str, names: list[str], values: Mapping[str, Tensor]) -> Rows:
        if missing := [name for name in names if name not in values]:
            raise DataError(f"transition.{field} lacks {missing}; it has {sorted(values)}")
        return [(f"{field}/{name}", self._fit(f"{field}/{name}", values[name])) for name in names]


def fitted(
    name: str,
    value: ArrayLike,
    shape: tuple[int, ...],
    dtype: np.dtype[np.generic] | torch.dtype,
    device: torch.device | None = None,
) -> Array | Tensor:
    """Compare one row of a column with what was allocated; nothing is copied on the CPU.

    Args:
        name: the column's.
        value: what is given.
        shape: expected.
        dtype: expected; that of an array makes an array of the value, the other a tensor.
        device: where a tensor is brought; None leaves it.

    Raises:
        DataError: when shape or dtype is another one.
    """
    if type(dtype) is torch.dtype:
        value = torch.as_tensor(value, device=device)
    elif isinstance(value, Tensor):
        value = value.numpy(force=True)
    elif type(value) is not np.ndarray:
        value = np.asarray(value)
    if value.shape == shape and value.dtype == dtype:
        return value
    raise DataError(
        f"transition.{name}: got {value.dtype} of shape {tuple(value.shape)}; expected {dtype} of "
        f"shape {shape}, as the storage was allocated for; let the environment answer what its "
        "spaces declare, or make a new storage and Trainer if its spaces have changed"
    )


def _below(prefix: str, names: Iterable[str]) -> list[str]:
    return [name.removeprefix(prefix) for name in names if name.startswith(prefix)]


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
        given: what `fit` expects of columns that hold only part of it.

    Attributes:
        by_row: each column `(R, B, ...)`.
        by_slot: each column `(R * B, ...)`.
        rows: each column `(R, B, ...)`, to write what `fit` returned to: arrays on the CPU, which
            are faster than tensors for little data, and tensors elsewhere.
        slots: the same, `(R * B, ...)`.

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
        self.specs = dict(specs)
        self.device = device
        self._directory = directory
        self.by_row = {
            name: self._allocate(name, (rows, num_envs, *spec.shape), spec.dtype)
            for name, spec in self.specs.items()
        }
        self.by_slot = {name: column.flatten(0, 1) for name, column in self.by_row.items()}
        self.rows: Mapping[str, Any] = {name: _fast(name, c) for name, c in self.by_row.items()}
        self.slots: Mapping[str, Any] = {name: _fast(name, c) for name, c in self.by_slot.items()}
        self._expected = {
            name: (tuple(column.shape[1:]), column.dtype) for name, column in self.rows.items()
        } | {
            name: ((num_envs, *spec.shape), self.rows[name].dtype)
            for name, spec in (given or {}).items()
        }

    @property
    def nbytes(self) -> int:
        """What all columns take when they are full."""
        return sum(column.nbytes for column in self.by_row.values())

    def fit(self, name: str, value: ArrayLike) -> ArrayLike:
        """Bring one row of all environments to where it is written, without copying on the CPU.

        Raises:
            DataError: when shape or dtype is not what was allocated.
        """
        shape, dtype = self._expected[name]
        return fitted(name, value, shape, dtype, self.device)

    def _allocate(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        size = torch.Size(shape).numel()
        if self._directory is not None:
            raw = _mapped_file(self._directory, max(size * dtype.itemsize, 1))
            return torch.from_numpy(raw)[: size * dtype.itemsize].view(dtype).view(shape)
        if self.device.type != "cpu" and name not in HOST_COLUMNS:
            return torch.zeros(shape, dtype=dtype, device=self.device)
        # Other than torch.zeros this asks the system for zero pages, which cost nothing yet.
        return torch.from_numpy(np.zeros(size * dtype.itemsize, np.uint8)).view(dtype).view(shape)


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
