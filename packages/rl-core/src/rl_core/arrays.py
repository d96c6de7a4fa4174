"""From an environment's arrays to tensors, and back."""

from typing import cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rl_core.types import ArrayLike, ArrayObservation, Observation


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


def _tensor(value: ArrayLike, device: torch.device) -> Tensor:
    tensor = value if isinstance(value, Tensor) else torch.from_numpy(value)
    return tensor if tensor.device == device else tensor.to(device)
