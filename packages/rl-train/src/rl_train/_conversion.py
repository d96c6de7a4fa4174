"""Numbers that users give, as tensors."""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rl_core.types import Array


def to_tensor(array: Array, dtype: torch.dtype) -> tuple[Tensor, npt.NDArray[np.bool_]]:
    """Convert numbers to a dtype, and say which of them it holds.

    Args:
        array: numbers or flags, in any order in memory.
        dtype: a floating-point one if the array's is.

    Returns:
        The tensor, and flags of its shape: whether a number is finite, or, for an integer dtype,
        unchanged.
    """
    # Torch takes neither a view from back to front nor another order of bytes.
    native = np.require(array, array.dtype.newbyteorder("="), ["C", "W"])
    tensor = torch.from_numpy(native).to(dtype)
    found = tensor.numpy()
    return tensor, np.isfinite(found) if dtype.is_floating_point else found == native


def held_by(dtype: torch.dtype) -> str:
    """Describe the numbers that a dtype can hold, for an error."""
    return f"finite numbers in {dtype}" if dtype.is_floating_point else f"what {dtype} holds"
