"""Transitions on their way into columns."""

from collections.abc import Callable, Iterable, Mapping

import numpy as np
import torch
from torch import Tensor

from rl_core.arrays import to_flags
from rl_core.batch import Transition
from rl_core.errors import DataError
from rl_core.storage import OBSERVATION_COLUMN
from rl_core.types import Array, ArrayLike, ArrayObservation
from rl_storages.replay.flags import Mask

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
