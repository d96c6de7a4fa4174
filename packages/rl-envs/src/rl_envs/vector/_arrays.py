"""Batches of what environments return: copied, converted and checked, with NumPy or torch."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from rl_core.env import as_numpy, category_problem, keeps_integers, observation_problem
from rl_core.errors import DataError, EnvironmentFaultError, SpaceError, in_brief
from rl_core.spaces import (
    Space,
    category_range,
    event_shape,
    flatten_observation,
    leaf_spaces,
    tensor_dtype,
)
from rl_core.types import ArrayObservation, numpy_dtype

Fault: TypeAlias = Callable[[str, int | None], EnvironmentFaultError]
"""Builds an error from a message and the index of the environment at fault, if it is one."""

Rows: TypeAlias = Any
"""An array or a tensor with a leading axis `B`; mypy has no type for what both can do."""


Info: TypeAlias = dict[str, object]
"""The info of one environment's step."""


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """The field, shape and dtype of one array of every step; for categories also their range."""

    field: str
    shape: tuple[int, ...]
    torch_dtype: torch.dtype
    numpy_dtype: "np.dtype[Any]"
    space: Space | None = None
    least: Rows = None
    greatest: Rows = None

    @classmethod
    def make(
        cls, field: str, num_envs: int, dtype: torch.dtype, space: Space | None = None
    ) -> "ArraySpec":
        """Describe one scalar, or one value of a leaf space, per environment."""
        if space is None:
            return cls(field, (num_envs,), dtype, numpy_dtype(dtype))
        shape = (num_envs, *event_shape(space))
        return cls(field, shape, dtype, numpy_dtype(dtype), space, *category_range(space))


class Arrays(ABC):
    """Array operations on batches of shape `(B, ...)`, and on observations made of them.

    Args:
        space: of a single observation.
        num_envs: ``B``.
        fault: builds the errors.

    Raises:
        SpaceError: if the space is not supported, or empty.
    """

    array_type: ClassVar[Literal["numpy", "torch"]]
    kind: type
    convert: Callable[[object], Rows]
    """Converts any array to this kind."""

    copy: Callable[[Rows], Rows]
    where: Callable[[Rows, Rows, Rows], Rows]
    _every_row: Rows

    def __init__(self, space: Space, num_envs: int, fault: Fault) -> None:
        self.space = space
        self.num_envs = num_envs
        self.fault = fault
        self.reward = ArraySpec.make("the reward", num_envs, torch.float32)
        self.terminated = ArraySpec.make("terminated", num_envs, torch.bool)
        self.truncated = ArraySpec.make("truncated", num_envs, torch.bool)
        self._leaves = leaves = leaf_spaces(space)
        # An observation is one array, described by `leaf`, or a dict described by `leaf_specs`.
        self.leaf: ArraySpec | None = None
        self.leaf_specs: dict[str, ArraySpec] = {}
        if isinstance(leaves, dict):
            for key, leaf in leaves.items():
                name = f"observation '{key}'"
                self.leaf_specs[key] = ArraySpec.make(name, num_envs, tensor_dtype(leaf), leaf)
        else:
            self.leaf = ArraySpec.make("the observation", num_envs, tensor_dtype(leaves), leaves)
        specs = self.leaf_specs.values() if self.leaf is None else [self.leaf]
        if not any(math.prod(spec.shape) for spec in specs):
            raise SpaceError(f"the observation space {space} is empty; expected at least a number")
        self._is_flat_dict = isinstance(space, spaces.Dict) and set(space) == set(self.leaf_specs)
        self._is_space_checked = False
        # By field, the first step in which each row was not finite, -1 for none.
        self._first_bad: dict[str, Tensor] = {}

    @abstractmethod
    def take(self, spec: ArraySpec, raw: object) -> Rows:
        """Return a copy of an environment's own array in the spec's dtype.

        Raises:
            EnvironmentFaultError: if shape or kind of dtype differ from the spec.
        """

    @abstractmethod
    def find_ended(self, terminated: Rows, truncated: Rows) -> Rows:
        """Return the mask of ended rows, or None if there are none and no wait for a device."""

    @abstractmethod
    def check_values(self, spec: ArraySpec, rows: Rows, step: int) -> None:
        """Refuse NaN and infinity, now or within the next so many steps.

        NumPy arrays are also searched for categories that do not exist.
        """

    @abstractmethod
    def _fits(self, array: Rows, spec: ArraySpec) -> bool:
        """Whether the kind of an array's dtype is that of a spec."""

    def every_row(self) -> Rows:
        """Return a new mask that holds everywhere."""
        return self.copy(self._every_row)

    def indices(self, mask: Rows) -> list[int]:
        """Return the rows where a mask holds."""
        return as_numpy(mask).nonzero()[0].tolist()

    def take_observation(self, raw: object) -> Rows:
        """Flatten, convert and copy a batch of observations.

        Raises:
            EnvironmentFaultError: if it does not fit the declared space.
        """
        if self.leaf is not None:
            return self.take(self.leaf, raw)
        flat = self._flat(raw, None)
        return {key: self.take(spec, flat[key]) for key, spec in self.leaf_specs.items()}

    def select(
        self, mask: Rows, where_true: ArrayObservation, where_false: ArrayObservation
    ) -> Rows:
        """Take each row from one of two observations."""

        def select(_: ArraySpec, left: Rows, right: Rows) -> Rows:
            return self.where(mask.reshape(-1, *[1] * (left.ndim - 1)), left, right)

        return self._map(select, where_true, where_false)

    def write_row(self, observation: Rows, index: int, raw: object) -> None:
        """Write one environment's observation into a row of a batch.

        Raises:
            EnvironmentFaultError: if it does not fit the declared space.
        """
        if self.leaf is not None:
            observation[index] = self._checked(self.leaf, raw, index)
            return
        flat = self._flat(raw, index)
        for key, spec in self.leaf_specs.items():
            observation[key][index] = self._checked(spec, flat[key], index)

    def replace_rows(self, observation: ArrayObservation, rows: Mapping[int, object]) -> Rows:
        """Return a copy of a batch of observations with some rows replaced.

        Raises:
            EnvironmentFaultError: if one of them does not fit the declared space.
        """
        replaced = self._map(lambda _, array: self.copy(array), observation)
        for index, raw in rows.items():
            self.write_row(replaced, index, raw)
        return replaced

    def check_observation(self, observation: Rows, step: int) -> None:
        """Check the values of every array of an observation; see `check_values`."""
        if self.leaf is not None:
            self.check_values(self.leaf, observation, step)
            return
        for key, spec in self.leaf_specs.items():
            self.check_values(spec, observation[key], step)

    def check_step(
        self,
        observation: ArrayObservation,
        reward: Rows,
        final_observation: ArrayObservation | None,
        step: int,
        check: bool,
    ) -> None:
        """Check what a step returned: the first one's space and, if asked to, all values."""
        if not self._is_space_checked:
            self.check_space(observation)
            self._is_space_checked = True
        if check:
            self.check_values(self.reward, reward, step)
            self.check_observation(observation, step)
            if final_observation is not None:
                self.check_observation(final_observation, step)

    def check_space(self, observation: ArrayObservation) -> None:
        """Compare with the declared space, including category ranges; waits for a device."""
        problem = observation_problem(self._leaves, observation, (self.num_envs,))
        if problem is not None:
            raise self.fault(problem, None)

    def raise_deferred(self) -> None:
        """Raise what a deferred check found."""
        for field, first_bad in self._first_bad.items():
            for index, step in enumerate(first_bad.tolist()):
                if step >= 0:
                    self._first_bad.clear()
                    raise self.fault(f"{field} was not finite in step {step}", index)

    def _map(self, function: Callable[..., Rows], *observations: Rows) -> Rows:
        """Call a function with the spec and the arrays of each leaf."""
        if self.leaf is not None:
            return function(self.leaf, *observations)
        return {
            key: function(spec, *[one[key] for one in observations])
            for key, spec in self.leaf_specs.items()
        }

    def _flat(self, raw: Rows, index: int | None) -> Rows:
        if self._is_flat_dict and isinstance(raw, dict) and raw.keys() == self.leaf_specs.keys():
            return raw
        try:
            return flatten_observation(self.space, raw)
        except DataError as error:
            raise self.fault(str(error), index) from error

    def _checked(self, spec: ArraySpec, raw: Rows, index: int | None) -> Rows:
        """Return an array that fits a spec, or one row of it, without a copy."""
        try:
            array: Rows = raw if raw.__class__ is self.kind else self.convert(raw)
        except (RuntimeError, TypeError, ValueError) as error:
            raise self.fault(f"{spec.field} is not an array: {in_brief(error)}", index) from error
        expected = spec.shape if index is None else spec.shape[1:]
        if array.shape != expected:
            shape = tuple(array.shape)
            raise self.fault(f"{spec.field} has shape {shape}; expected {expected}", index)
        if not self._fits(array, spec):
            dtypes = f"{array.dtype}; expected {spec.numpy_dtype}, or what it holds without loss"
            raise self.fault(f"{spec.field} has dtype {dtypes}", index)
        return array


class NumpyArrays(Arrays):
    """Operations on NumPy arrays.

    Args:
        space: of a single observation.
        num_envs: ``B``.
        fault: builds the errors.
        is_fresh: the environment keeps no reference to the arrays it returns, so that they need
            no copy.
    """

    array_type = "numpy"

    def __init__(self, space: Space, num_envs: int, fault: Fault, *, is_fresh: bool) -> None:
        super().__init__(space, num_envs, fault)
        self.kind, self.convert = np.ndarray, as_numpy
        self.copy, self.where = np.ndarray.copy, np.where
        self._every_row = np.ones(num_envs, np.bool_)
        self._is_one_real_array = self.leaf is not None and self.leaf.torch_dtype.is_floating_point
        self.is_fresh = is_fresh

    def take(self, spec: ArraySpec, raw: Rows) -> Rows:
        """See `Arrays.take`."""
        dtype = spec.numpy_dtype
        if raw.__class__ is np.ndarray and raw.shape == spec.shape:
            if raw.dtype == dtype:
                return raw if self.is_fresh and raw.flags.c_contiguous else raw.copy()
            if self._fits(raw, spec):
                return raw.astype(dtype, order="C")
        return self._checked(spec, raw, None).astype(dtype, order="C")

    def fitting_dtype(self, observation: object) -> "np.dtype[Any] | None":
        """Return the dtype of one array if every value of it can be written; None otherwise."""
        if self.leaf is None or not isinstance(observation, np.ndarray):
            return None
        given, wanted = observation.dtype, self.leaf.numpy_dtype
        return given if wanted.kind not in "iu" or np.can_cast(given, wanted) else None

    def empty_observation(self) -> Rows:
        """Return new arrays whose rows are still to be written."""
        if self.leaf is not None:
            return np.empty(self.leaf.shape, self.leaf.numpy_dtype)
        return {
            key: np.empty(spec.shape, spec.numpy_dtype) for key, spec in self.leaf_specs.items()
        }

    def find_ended(self, terminated: Rows, truncated: Rows) -> Rows:
        """See `Arrays.find_ended`."""
        if 1 in terminated.tobytes() or 1 in truncated.tobytes():  # the fastest look at a few flags
            return terminated | truncated
        return None

    def check_step(
        self,
        observation: ArrayObservation,
        reward: Rows,
        final_observation: ArrayObservation | None,
        step: int,
        check: bool,
    ) -> None:
        """See `Arrays.check_step`."""
        # The dot product with itself is the cheapest look at all entries. Large finite entries can
        # overflow it, of which only `vdot` does not warn; the second look finds no fault then.
        if not (
            self._is_space_checked
            and final_observation is None
            and self._is_one_real_array
            and math.isfinite(np.vdot(observation, observation))  # type: ignore[arg-type]
            and math.isfinite(np.vdot(reward, reward))
        ):
            super().check_step(observation, reward, final_observation, step, check)

    def check_values(self, spec: ArraySpec, rows: Rows, step: int) -> None:
        """See `Arrays.check_values`."""
        if spec.greatest is not None:
            fits = (rows >= spec.least) & (rows <= spec.greatest)
        elif spec.torch_dtype.is_floating_point:
            fits = np.isfinite(rows)
        else:
            return
        if not fits.all():
            index = int(np.flatnonzero(~fits.reshape(len(rows), -1).all(axis=1))[0])
            raise self.fault(_value_problem(spec, rows[index]), index)

    def _fits(self, array: Rows, spec: ArraySpec) -> bool:
        dtype = spec.numpy_dtype
        return _can_cast(array.dtype, dtype) and keeps_integers(array, dtype)


@cache
def _can_cast(given: "np.dtype[Any]", wanted: "np.dtype[Any]") -> bool:
    if np.can_cast(given, wanted, "same_kind"):
        return True
    # Flags may come as integers, and categories as unsigned ones.
    return given.kind in "biu" and (wanted.kind == "b" or wanted == np.int64)


def _value_problem(spec: ArraySpec, row: "np.ndarray[Any, np.dtype[Any]]") -> str:
    if spec.greatest is not None and spec.space is not None:
        return str(category_problem(spec.field, spec.space, row))
    if row.ndim == 0:
        return f"{spec.field} is {row}; expected a finite number in {row.dtype}"
    place = tuple(int(axis) for axis in np.argwhere(~np.isfinite(row))[0])
    return f"{spec.field} is {row[place]} at {list(place)}; expected finite numbers in {row.dtype}"
