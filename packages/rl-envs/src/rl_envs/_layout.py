"""How the batched observations of one environment are laid out, and what is done to them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

import numpy as np
from gymnasium import spaces

from rl_core.env import observation_problem
from rl_core.errors import DataError
from rl_core.spaces import LEAF_TYPES, Space, flatten_observation, leaf_spaces
from rl_core.types import Array, ArrayLike, ArrayObservation
from rl_envs._arrays import Arrays, Column, Rows


class Layout:
    """The leaves of an observation space as columns of `B` rows.

    Args:
        space: the space of a single observation.
        num_envs: rows.
        arrays: what is done to each leaf.
    """

    def __init__(self, space: Space, num_envs: int, arrays: Arrays) -> None:
        self.space = space
        self.num_envs = num_envs
        self.arrays = arrays
        self.leaves = leaf_spaces(space)
        self.only = (
            None if isinstance(self.leaves, dict) else Column.of_leaf("", self.leaves, num_envs)
        )
        self.columns = (
            {key: Column.of_leaf(key, leaf, num_envs) for key, leaf in self.leaves.items()}
            if isinstance(self.leaves, dict)
            else {}
        )
        self._is_flat = isinstance(space, spaces.Dict) and all(
            isinstance(child, LEAF_TYPES) for child in space.spaces.values()
        )

    def take(self, raw: object) -> ArrayObservation:
        """Flatten, cast and copy what the environment answered.

        Raises:
            EnvironmentFaultError: when it is not of the declared space.
        """
        if self.only is not None:
            return cast("ArrayLike", self.arrays.take(raw, self.only))
        flat = self._flat(raw, None)
        return {key: self.arrays.take(flat[key], column) for key, column in self.columns.items()}

    def select(
        self, mask: Rows, where_true: ArrayObservation, where_false: ArrayObservation
    ) -> ArrayObservation:
        """Take each row from one of two observations."""
        select = self.arrays.select
        if self.only is not None:
            return cast("ArrayLike", select(mask, where_true, where_false))
        left = cast("Mapping[str, Rows]", where_true)
        right = cast("Mapping[str, Rows]", where_false)
        return {key: select(mask, left[key], right[key]) for key in self.columns}

    def empty(self) -> ArrayObservation:
        """Return new arrays whose rows are still to be written."""
        if self.only is not None:
            return np.empty(self.only.shape, self.only.numpy_dtype)
        return {
            key: np.empty(column.shape, column.numpy_dtype) for key, column in self.columns.items()
        }

    def write(self, observation: ArrayObservation, index: int, given: object) -> None:
        """Write one row.

        Args:
            observation: shape `(B, ...)`, written to.
            index: the row.
            given: a single observation, as the environment answers it.

        Raises:
            EnvironmentFaultError: when it is not of the declared space.
        """
        if self.only is not None:
            self.arrays.set_row(observation, index, given, self.only)
            return
        parts = cast("Mapping[str, Rows]", observation)
        flat = self._flat(given, index)
        for key, column in self.columns.items():
            self.arrays.set_row(parts[key], index, flat[key], column)

    def with_rows(
        self,
        observation: ArrayObservation,
        indices: Iterable[int],
        given: Mapping[int, object] | Sequence[object] | Array,
    ) -> ArrayObservation:
        """Return a copy of an observation with some rows replaced.

        Args:
            observation: shape `(B, ...)`.
            indices: the rows to replace.
            given: one single observation per environment; only those of ``indices`` are read.

        Raises:
            EnvironmentFaultError: when one of them is not of the declared space.
        """
        rows: ArrayObservation
        if self.only is not None:
            rows = cast("ArrayLike", self.arrays.duplicate(observation))
        else:
            parts = cast("Mapping[str, Rows]", observation)
            rows = {key: self.arrays.duplicate(parts[key]) for key in self.columns}
        for index in indices:
            self.write(rows, index, given[index])
        return rows

    def check_values(self, observation: ArrayObservation, step: int) -> None:
        """Refuse NaN and infinity in floating-point leaves, and categories that do not exist."""
        if self.only is not None:
            self.arrays.check_values(observation, self.only, step)
            return
        parts = cast("Mapping[str, Rows]", observation)
        for key, column in self.columns.items():
            self.arrays.check_values(parts[key], column, step)

    def check_thoroughly(self, observation: ArrayObservation) -> None:
        """Compare with the declared space, ranges of categories included; waits for a device."""
        problem = observation_problem(self.leaves, observation, (self.num_envs,))
        if problem is not None:
            raise self.arrays.fault(problem, None)

    def _flat(self, raw: object, index: int | None) -> Mapping[str, object]:
        if self._is_flat and isinstance(raw, dict) and raw.keys() == self.columns.keys():
            return raw
        try:
            return cast("Mapping[str, object]", flatten_observation(self.space, raw))
        except DataError as error:
            raise self.arrays.fault(str(error), index) from error
