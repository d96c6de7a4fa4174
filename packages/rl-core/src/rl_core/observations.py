"""From an environment's arrays to tensors on a device."""

from collections.abc import Mapping

import torch
from torch import Tensor

from rl_core.types import ArrayLike, ArrayObservation, Observation


def to_tensors(observation: ArrayObservation, device: torch.device) -> Observation:
    """Turn arrays into tensors, sharing memory where the device is the CPU."""
    if isinstance(observation, Mapping):
        return {key: _tensor(value, device) for key, value in observation.items()}
    return _tensor(observation, device)


def _tensor(value: ArrayLike, device: torch.device) -> Tensor:
    tensor = value if isinstance(value, Tensor) else torch.from_numpy(value)
    return tensor if tensor.device == device else tensor.to(device)
