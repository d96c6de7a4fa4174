"""Observations and actions in [-1, 1], where their spaces have bounds."""

from functools import partial
from typing import Any, TypeAlias

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.wrappers import TransformAction, TransformObservation

from rl_core.errors import SpaceError
from rl_core.spaces import is_bounded
from rl_core.types import Array

_Reals: TypeAlias = npt.NDArray[np.floating[Any]]


def rescaled_observation(env: gymnasium.Env) -> gymnasium.Env:
    """Map observations from the bounds of their space to [-1, 1].

    Entries without bounds, or with equal ones, stay as they are.

    Raises:
        SpaceError: if the observations are not a Box, or nothing in them is bounded.
    """
    space = env.observation_space
    if not isinstance(space, spaces.Box) or space.dtype.kind != "f":
        raise SpaceError(f"the observation space is {space}; expected a Box of floating-point")
    bounded = is_bounded(space) & (space.low < space.high)
    if not bounded.any():
        raise SpaceError(
            f"no entry of {space} is bounded; leave rescale_observation out, or normalize by "
            "running statistics with the actor's normalize_observations"
        )
    # Where it is not bounded, [-1, 1] is mapped to itself.
    low = np.where(bounded, space.low, -1.0).astype(np.float64)
    high = np.where(bounded, space.high, 1.0).astype(np.float64)
    scaled = spaces.Box(
        np.where(bounded, -1.0, space.low).astype(space.dtype),
        np.where(bounded, 1.0, space.high).astype(space.dtype),
        dtype=space.dtype.type,
    )
    center, radius = (low + high) / 2, (high - low) / 2
    function = partial(_to_unit, center=center, radius=radius, dtype=space.dtype)
    return TransformObservation(env, function, scaled)


def rescaled_action(env: gymnasium.Env) -> gymnasium.Env:
    """Let actions be in [-1, 1], and map them to the bounds of their space.

    Raises:
        SpaceError: if the actions are not a bounded Box of floating-point numbers.
    """
    space = env.action_space
    if not isinstance(space, spaces.Box) or space.dtype.kind != "f" or not is_bounded(space).all():
        raise SpaceError(
            f"the action space is {space}; rescale_action needs a Box of floating-point with bounds"
        )
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    center, radius = (low + high) / 2, (high - low) / 2
    function = partial(_from_unit, center=center, radius=radius, dtype=space.dtype)
    return TransformAction(env, function, spaces.Box(-1.0, 1.0, space.shape, space.dtype.type))


def _to_unit(value: object, center: _Reals, radius: _Reals, dtype: "np.dtype[Any]") -> Array:
    scaled: Array = ((np.asarray(value) - center) / radius).astype(dtype)
    return scaled


def _from_unit(value: _Reals, center: _Reals, radius: _Reals, dtype: "np.dtype[Any]") -> Array:
    action: Array = (center + radius * value).astype(dtype)
    return action
