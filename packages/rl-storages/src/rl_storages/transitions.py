"""Transitions, compared with what a storage was allocated for before any of it is written."""

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter

import numpy as np
import torch
from torch import Tensor

from rl_core.batch import Transition
from rl_core.errors import DataError
from rl_core.storage import OBSERVATION_COLUMN
from rl_core.types import ArrayLike, ArrayObservation, to_flags
from rl_storages.replay.flags import Mask

Rows = list[tuple[str, ArrayLike]]
"""One row of all environments by column."""

Expected = Mapping[str, tuple[tuple[int, ...], np.dtype[np.generic] | torch.dtype]]
"""Shape `(B, ...)` and dtype of one row of each column; NumPy's dtype where arrays are written."""

_ARRAYS = (np.ndarray, Tensor)  # checked faster than a union
_BOOL = np.dtype(np.bool_)
_MASKS = ("episode_start", "terminated", "truncated", "valid")
_masks_of = attrgetter(*_MASKS)


class TransitionFitter:
    """Compares transitions with the allocated columns, without copying them on the CPU.

    Args:
        expected: shape and dtype of one row of each column.
        num_envs: how many environments step together.
        observation_names: the columns that hold the observation.
        device: where tensors are moved to; None leaves them where they are.

    Raises:
        DataError: by every method, when something is missing, or of another shape or dtype.
    """

    def __init__(
        self,
        expected: Expected,
        num_envs: int,
        observation_names: tuple[str, ...],
        device: torch.device | None = None,
    ) -> None:
        self._expected = expected
        self._device = device
        self._shape = (num_envs,)
        self._keys = names_below(f"{OBSERVATION_COLUMN}/", observation_names)
        self._states = names_below("state/", expected)
        self._extras = names_below("extras/", expected)
        self._whole: tuple[object, ...] | None = None
        if not (self._keys or self._states or self._extras):  # three arrays and the masks
            names = (OBSERVATION_COLUMN, "action", "reward")
            shapes, dtypes = zip(*(expected[name] for name in names), strict=True)
            self._whole = (*dtypes, *shapes)

    def fit(self, name: str, value: ArrayLike) -> ArrayLike:
        """Return one row of a column as an array, or as a tensor where tensors are written."""
        shape, dtype = self._expected[name]
        if type(value) is np.ndarray and value.dtype is dtype and value.shape == shape:
            return value  # the common case
        if type(dtype) is torch.dtype:
            value = torch.as_tensor(value, device=self._device)
        elif isinstance(value, Tensor):
            value = value.numpy(force=True)
        elif type(value) is not np.ndarray:
            value = np.asarray(value)
        if value.shape == shape and value.dtype == dtype:
            return value
        raise DataError(
            f"transition.{name}: got {value.dtype} of shape {tuple(value.shape)}; expected {dtype} "
            f"of shape {shape}, as the storage was allocated for; let the environment return what "
            "its spaces declare, or make a new storage and Trainer if its spaces have changed"
        )

    def observation(self, field: str, observation: ArrayObservation) -> Rows:
        """Fit the observation in one of a transition's fields."""
        if isinstance(observation, _ARRAYS):
            if self._keys:
                raise DataError(f"transition.{field}: got an array; expected a dict of arrays")
            return [(OBSERVATION_COLUMN, self.fit(OBSERVATION_COLUMN, observation))]
        if sorted(observation) != sorted(self._keys):
            raise DataError(
                f"transition.{field}: got the keys {sorted(observation)}; expected "
                + (str(sorted(self._keys)) if self._keys else "an array")
            )
        return [(name, self.fit(name, observation[key])) for key, name in self._keys.items()]

    def step(self, transition: Transition) -> tuple[Rows, Rows]:
        """Fit action, reward, states and extras, and the next observation."""
        after, action, reward = transition.next_observation, transition.action, transition.reward
        # In the common case, comparing all at once is faster than one after the other.
        if type(after) is type(action) is type(reward) is np.ndarray and self._whole == (
            (after.dtype, action.dtype, reward.dtype, after.shape, action.shape, reward.shape)
        ):
            return [("action", action), ("reward", reward)], [(OBSERVATION_COLUMN, after)]
        return self.values(transition), self.observation("next_observation", after)

    def values(self, transition: Transition) -> Rows:
        """Fit action, reward, states and extras."""
        values = [
            ("action", self.fit("action", transition.action)),
            ("reward", self.fit("reward", transition.reward)),
        ]
        if self._states:
            values += self._mapping("state", self._states, transition.state)
        if self._extras:
            values += self._mapping("extras", self._extras, transition.extras)
        return values

    def masks(self, transition: Transition) -> Sequence[Mask]:
        """Return where episodes start, terminate and are truncated, and which rows are valid."""
        masks: tuple[Mask, ...] = _masks_of(transition)
        starts, terminated, truncated, valid = masks
        if (
            starts.dtype is terminated.dtype is truncated.dtype is valid.dtype is _BOOL
            and starts.shape == terminated.shape == truncated.shape == valid.shape == self._shape
        ):
            return masks  # the common case
        return [self._mask(*named) for named in zip(_MASKS, masks, strict=True)]

    def _mask(self, name: str, value: ArrayLike) -> Mask:
        mask = to_flags(value)
        if mask.shape != self._shape or mask.dtype != _BOOL:
            raise DataError(
                f"transition.{name}: got {mask.dtype} of shape {mask.shape}; expected bool of "
                f"shape {self._shape}"
            )
        return mask

    def _mapping(self, field: str, names: Mapping[str, str], values: Mapping[str, Tensor]) -> Rows:
        if missing := [key for key in names if key not in values]:
            raise DataError(f"transition.{field} lacks {missing}; it has {sorted(values)}")
        return [(name, self.fit(name, values[key])) for key, name in names.items()]


def names_below(prefix: str, names: Iterable[str]) -> dict[str, str]:
    """Return the names of columns with a prefix, by what follows it."""
    return {name.removeprefix(prefix): name for name in names if name.startswith(prefix)}
