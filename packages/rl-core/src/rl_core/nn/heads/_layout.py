"""Conversions between the actor's vector and the shape and dtype of the environment's action."""

import math

import gymnasium
import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces
from torch import Tensor

from rl_core.errors import SpaceError


def check_not_empty(space: gymnasium.Space[npt.NDArray[np.generic]], size: int) -> None:
    """Refuse an empty action space.

    Raises:
        SpaceError: if ``size`` is 0.
    """
    if size == 0:
        raise SpaceError(f"action space {space} is empty; expected at least one number")


def tensor_dtype(space: spaces.Space[object]) -> torch.dtype:
    """Return the dtype that the environment's actions have as tensors.

    Raises:
        SpaceError: if torch has no such dtype.
    """
    try:
        return torch.from_numpy(np.empty(0, dtype=space.dtype)).dtype
    except TypeError:
        raise SpaceError(
            f"action space {space} has dtype {space.dtype}, which torch does not have; expected "
            "a dtype such as float32 or int64"
        ) from None


def unflatten(action: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Reshape `(*batch, n)` to `(*batch, *shape)`."""
    return action if len(shape) == 1 else action.reshape((*action.shape[:-1], *shape))


def flatten(env_action: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Reshape `(*batch, *shape)` to `(*batch, n)`."""
    if len(shape) == 1:
        return env_action
    batch = env_action.shape[: env_action.dim() - len(shape)]
    return env_action.reshape((*batch, math.prod(shape)))


def box_size(space: spaces.Box) -> int:
    """Return the number of real numbers in an action.

    Raises:
        SpaceError: if there are none, or the dtype is an integer one.
    """
    if np.dtype(space.dtype).kind != "f":
        raise SpaceError(
            f"action space {space} is a Box of dtype {space.dtype}; expected a floating-point "
            "one: declare one whole number as Discrete, and several as MultiDiscrete, which only "
            "on-policy actors take, or as a floating-point Box that the environment rounds"
        )
    size = math.prod(space.shape)
    check_not_empty(space, size)
    return size


def flat_bounds(space: spaces.Box) -> tuple[npt.NDArray[np.floating], npt.NDArray[np.floating]]:
    dtype = np.dtype(space.dtype)
    low: npt.NDArray[np.floating] = space.low.reshape(-1).astype(dtype)
    high: npt.NDArray[np.floating] = space.high.reshape(-1).astype(dtype)
    return low, high
