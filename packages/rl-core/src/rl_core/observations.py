"""From an environment's arrays to tensors on a device."""

import numpy as np
import torch
from torch import Tensor

from rl_core.types import ArrayLike, ArrayObservation, Observation


def to_tensors(observation: ArrayObservation, device: torch.device) -> Observation:
    """Turn arrays into tensors, sharing memory where the device is the CPU."""
    if isinstance(observation, np.ndarray | Tensor):  # the common case, and the cheaper check
        return _tensor(observation, device)
    return {key: _tensor(value, device) for key, value in observation.items()}


def _tensor(value: ArrayLike, device: torch.device) -> Tensor:
    tensor = value if isinstance(value, Tensor) else torch.from_numpy(value)
    return tensor if tensor.device == device else tensor.to(device)
