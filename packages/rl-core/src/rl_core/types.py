"""Types that all packages share, and the few functions over them.

Axes: ``T`` time, ``B`` environments, ``N`` flattened samples, ``D`` features. A rollout is
``(T, B, ...)``, a replay batch ``(N, ...)``, a sequence batch ``(T, N, ...)``.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rl_core.config._types import Json as Json

Array: TypeAlias = npt.NDArray[np.generic]
"""A NumPy array of any dtype."""

ArrayLike: TypeAlias = Array | Tensor
"""What a vectorized environment may hand out: a NumPy array or a tensor."""

Observation: TypeAlias = Tensor | Mapping[str, Tensor]
"""One tensor, or for a dict space one tensor per key (nested keys are joined with ``/``)."""

ArrayObservation: TypeAlias = ArrayLike | Mapping[str, ArrayLike]
"""An observation as an environment gives it."""

State: TypeAlias = Mapping[str, Tensor]
"""Recurrent state by network name, each ``(N, S)``; empty for feed-forward networks."""

StateValue: TypeAlias = (
    "bool | int | float | str | Tensor | Array | Sequence[StateValue] | StateDict | None"
)
"""A leaf or branch of a state dict: tensors, arrays, numbers, strings, lists and dicts only."""

StateDict: TypeAlias = "Mapping[str, StateValue]"
"""What `Stateful.state_dict` returns."""


def map_observation(function: Callable[[Tensor], Tensor], observation: Observation) -> Observation:
    """Apply a function to the tensor, or to each tensor, of an observation."""
    if isinstance(observation, Tensor):
        return function(observation)
    return {key: function(value) for key, value in observation.items()}


def to_tensors(observation: ArrayObservation, device: torch.device) -> Observation:
    """Turn arrays into tensors, sharing memory where the device is the CPU."""
    if isinstance(observation, np.ndarray | Tensor):  # the common case, and the cheaper check
        return _tensor(observation, device)
    return {key: _tensor(value, device) for key, value in observation.items()}


def to_numbers(value: ArrayLike) -> npt.NDArray[np.float32]:
    """Bring an environment's rewards to NumPy."""
    array = value.cpu().numpy() if isinstance(value, Tensor) else value
    return cast("npt.NDArray[np.float32]", array)


def to_flags(value: ArrayLike) -> npt.NDArray[np.bool_]:
    """Bring an environment's flags to NumPy."""
    array = value.cpu().numpy() if isinstance(value, Tensor) else value
    return cast("npt.NDArray[np.bool_]", array)


def numpy_dtype(dtype: torch.dtype) -> "np.dtype[Any]":
    """Return NumPy's dtype for the same numbers."""
    return torch.empty(0, dtype=dtype).numpy().dtype


def _tensor(value: ArrayLike, device: torch.device) -> Tensor:
    tensor = value if isinstance(value, Tensor) else torch.from_numpy(value)
    return tensor if tensor.device == device else tensor.to(device)
