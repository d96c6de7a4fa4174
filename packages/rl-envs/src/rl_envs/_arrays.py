"""The array operations of the adapter, once for NumPy and once for torch."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor

from rl_core.env import as_numpy
from rl_core.env.checks import category_range
from rl_core.errors import EnvironmentFaultError, in_brief
from rl_core.spaces import Space, event_shape, tensor_dtype
from rl_core.types import ArrayLike

Fault: TypeAlias = Callable[[str, int | None], EnvironmentFaultError]
"""Builds an error from a message and the environment's index, where one is to blame."""

Rows: TypeAlias = Any
"""An array or a tensor with a leading axis `B`; mypy has no type for what both can do."""

DEFERRED_STEPS = 32
"""How many steps of an accelerator go by between two looks at the finite checks."""


@dataclass(frozen=True, slots=True)
class Column:
    """What one array of every step must look like."""

    field: str
    shape: tuple[int, ...]
    torch_dtype: torch.dtype
    numpy_dtype: "np.dtype[np.generic]"
    least: Rows = None
    greatest: Rows = None

    @classmethod
    def of_leaf(cls, key: str, space: Space, num_envs: int) -> "Column":
        """Describe the observations of one leaf space."""
        field = f"observation '{key}'" if key else "the observation"
        column = cls.make(field, (num_envs, *event_shape(space)), tensor_dtype(space))
        least, greatest = category_range(space)
        return replace(column, least=least, greatest=greatest)

    @classmethod
    def of_rewards(cls, num_envs: int) -> "Column":
        """Describe the rewards."""
        return cls.make("the reward", (num_envs,), torch.float32)

    @classmethod
    def make(cls, field: str, shape: tuple[int, ...], dtype: torch.dtype) -> "Column":
        """Describe a column by its torch dtype."""
        return cls(field, shape, dtype, torch.empty(0, dtype=dtype).numpy().dtype)


class Arrays(ABC):
    """What the adapter does to arrays of shape `(B, ...)`.

    Args:
        num_envs: rows.
        fault: builds the errors.
    """

    def __init__(self, num_envs: int, fault: Fault) -> None:
        self.num_envs = num_envs
        self.fault = fault

    @abstractmethod
    def take(self, raw: object, column: Column) -> Rows:
        """Return a copy of the environment's own array in the column's dtype.

        Raises:
            EnvironmentFaultError: when shape or kind of dtype are not the column's.
        """

    @abstractmethod
    def action(self, action: ArrayLike) -> Rows:
        """Convert what a policy answers to what the environment understands."""

    @abstractmethod
    def every_row(self) -> Rows:
        """Return a new mask that holds everywhere."""

    @abstractmethod
    def select(self, mask: Rows, where_true: Rows, where_false: Rows) -> Rows:
        """Take each row from one of two arrays, or from an array and a number."""

    @abstractmethod
    def duplicate(self, rows: Rows) -> Rows:
        """Return a copy."""

    @abstractmethod
    def may_hold(self, mask: Rows) -> bool:
        """Whether a mask holds anywhere; True when only waiting for a device could tell."""

    @abstractmethod
    def indices(self, mask: Rows) -> list[int]:
        """Return the rows where a mask holds."""

    @abstractmethod
    def set_row(self, rows: Rows, index: int, value: object, column: Column) -> None:
        """Write one row, refusing a value of another shape."""

    @abstractmethod
    def check_values(self, rows: Rows, column: Column, step: int) -> None:
        """Refuse NaN and infinity, now or within the next `DEFERRED_STEPS` steps.

        In NumPy's arrays categories that do not exist are refused too.
        """

    @abstractmethod
    def settle(self) -> None:
        """Raise what a deferred check found."""


class NumpyArrays(Arrays):
    """Operations on NumPy arrays.

    Args:
        num_envs: rows.
        fault: builds the errors.
        is_fresh: the environment answers arrays that nothing else refers to, so they need no copy.
    """

    def __init__(self, num_envs: int, fault: Fault, *, is_fresh: bool) -> None:
        super().__init__(num_envs, fault)
        self.is_fresh = is_fresh
        self._every_row = np.ones(num_envs, np.bool_)

    def take(self, raw: object, column: Column) -> Rows:
        if raw.__class__ is not np.ndarray:
            raw = self._array(raw, column, None)
        assert isinstance(raw, np.ndarray)
        dtype = column.numpy_dtype
        if raw.shape != column.shape:
            raise self.fault(f"{column.field} has shape {raw.shape}; expected {column.shape}", None)
        if raw.dtype == dtype:
            return raw if self.is_fresh and raw.flags.c_contiguous else raw.copy()
        if not _fits(raw.dtype, dtype):
            raise self.fault(f"{column.field} has dtype {raw.dtype}; expected {dtype}", None)
        return raw.astype(dtype, order="C")

    def action(self, action: ArrayLike) -> Rows:
        return action if isinstance(action, np.ndarray) else as_numpy(action)

    def every_row(self) -> Rows:
        return self._every_row.copy()

    def select(self, mask: Rows, where_true: Rows, where_false: Rows) -> Rows:
        return np.where(mask.reshape(-1, *[1] * (where_true.ndim - 1)), where_true, where_false)

    def duplicate(self, rows: Rows) -> Rows:
        return rows.copy()

    def may_hold(self, mask: Rows) -> bool:
        return bool(np.count_nonzero(mask))

    def indices(self, mask: Rows) -> list[int]:
        return cast("list[int]", mask.nonzero()[0].tolist())

    def set_row(self, rows: Rows, index: int, value: object, column: Column) -> None:
        array = value if isinstance(value, np.ndarray) else self._array(value, column, index)
        if array.shape != column.shape[1:] or not _fits(array.dtype, column.numpy_dtype):
            raise self.fault(_row_problem(column, array.shape, array.dtype), index)
        rows[index] = array

    def check_values(self, rows: Rows, column: Column, step: int) -> None:
        # The dot product with itself is the cheapest look at all entries. A large but finite entry
        # can overflow it, which the second look sorts out.
        if column.greatest is not None:
            fits = (rows >= column.least) & (rows <= column.greatest)
            problem = _category_problem
        elif rows.dtype.kind != "f" or math.isfinite(np.vdot(rows, rows)):
            return
        else:
            fits, problem = np.isfinite(rows), _finite_problem
        if not fits.all():
            index = int(np.flatnonzero(~fits.reshape(len(rows), -1).all(axis=1))[0])
            raise self.fault(problem(column, rows[index]), index)

    def settle(self) -> None:
        pass

    def _array(self, raw: object, column: Column, index: int | None) -> Rows:
        try:
            return as_numpy(raw)
        except (TypeError, ValueError) as error:
            raise self.fault(f"{column.field} is no array: {in_brief(error)}", index) from error


class TorchArrays(Arrays):
    """Operations on tensors, which on an accelerator do not wait for it.

    Args:
        num_envs: rows.
        fault: builds the errors.
        device: where the environment's tensors are.
    """

    def __init__(self, num_envs: int, fault: Fault, device: torch.device) -> None:
        super().__init__(num_envs, fault)
        self.device = device
        self.waits = device.type == "cpu"
        self._first_bad: dict[str, Tensor] = {}
        self._looked_at = 0

    def take(self, raw: object, column: Column) -> Rows:
        tensor = raw if isinstance(raw, Tensor) else self._tensor(raw, column, None)
        if tensor.shape != column.shape:
            raise self.fault(
                f"{column.field} has shape {tuple(tensor.shape)}; expected {column.shape}", None
            )
        if tensor.is_complex() or tensor.is_floating_point() > column.torch_dtype.is_floating_point:
            raise self.fault(
                f"{column.field} has dtype {tensor.dtype}; expected {column.torch_dtype}", None
            )
        return tensor.detach().to(
            column.torch_dtype, copy=True, memory_format=torch.contiguous_format
        )

    def action(self, action: ArrayLike) -> Rows:
        return torch.as_tensor(action, device=self.device)

    def every_row(self) -> Rows:
        return torch.ones(self.num_envs, dtype=torch.bool, device=self.device)

    def select(self, mask: Rows, where_true: Rows, where_false: Rows) -> Rows:
        return torch.where(mask.reshape(-1, *[1] * (where_true.dim() - 1)), where_true, where_false)

    def duplicate(self, rows: Rows) -> Rows:
        return rows.clone()

    def may_hold(self, mask: Rows) -> bool:
        return bool(mask.any()) if self.waits else True

    def indices(self, mask: Rows) -> list[int]:
        return cast("list[int]", mask.nonzero().flatten().tolist())

    def set_row(self, rows: Rows, index: int, value: object, column: Column) -> None:
        tensor = self._tensor(value, column, index)
        if tensor.shape != column.shape[1:]:
            raise self.fault(_row_problem(column, tuple(tensor.shape), tensor.dtype), index)
        rows[index] = tensor

    def check_values(self, rows: Rows, column: Column, step: int) -> None:
        if not rows.is_floating_point():
            return
        bad = ~torch.isfinite(rows).reshape(len(rows), -1).all(dim=1)
        if column.field not in self._first_bad:
            never = torch.full((self.num_envs,), -1, dtype=torch.int64, device=self.device)
            self._first_bad[column.field] = never
        first = self._first_bad[column.field]
        first.masked_fill_(bad & (first < 0), step)
        if self.waits or step - self._looked_at >= DEFERRED_STEPS:
            self._looked_at = step
            self.settle()

    def settle(self) -> None:
        for field, first_bad in self._first_bad.items():
            steps = first_bad.tolist()
            for index, step in enumerate(steps):
                if step >= 0:
                    self._first_bad.clear()
                    raise self.fault(f"{field} was not finite in step {step}", index)

    def _tensor(self, raw: object, column: Column, index: int | None) -> Tensor:
        try:
            return torch.as_tensor(raw, device=self.device)
        except (RuntimeError, TypeError, ValueError) as error:
            raise self.fault(f"{column.field} is no array: {in_brief(error)}", index) from error


@cache
def _fits(given: "np.dtype[Any]", wanted: "np.dtype[Any]") -> bool:
    if np.can_cast(given, wanted, "same_kind"):
        return True
    # Flags given as integers, and categories given as unsigned ones, are what they seem to be.
    return given.kind in "biu" and wanted.kind in "bi" and wanted.itemsize in (1, 8)


def _row_problem(column: Column, shape: tuple[int, ...], dtype: object) -> str:
    return (
        f"{column.field} has shape {shape} and dtype {dtype}; expected {column.shape[1:]} and "
        f"{column.torch_dtype}"
    )


def _finite_problem(column: Column, row: "np.ndarray[Any, np.dtype[Any]]") -> str:
    if row.ndim == 0:
        return f"{column.field} is {row}; expected a finite number"
    place = tuple(int(axis) for axis in np.argwhere(~np.isfinite(row))[0])
    return f"{column.field} is {row[place]} at {list(place)}; expected finite numbers"


def _category_problem(column: Column, row: "np.ndarray[Any, np.dtype[Any]]") -> str:
    return (
        f"{column.field} is {row.tolist()}; expected {np.asarray(column.least).tolist()} to "
        f"{np.asarray(column.greatest).tolist()}"
    )
