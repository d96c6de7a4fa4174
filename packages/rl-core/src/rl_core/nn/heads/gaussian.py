"""Heads for real numbers, clipped to the bounds or squashed into them."""

import math
from typing import final

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from gymnasium import spaces
from torch import Tensor, nn

from rl_core.errors import ConfigError, SpaceError
from rl_core.nn.distributions import DiagonalGaussian, SquashedGaussian
from rl_core.nn.heads._layout import check_not_empty, flatten, tensor_dtype, unflatten
from rl_core.nn.heads.base import ActionHead
from rl_core.nn.init import orthogonal_

LOG_STD_RANGE = (-20.0, 2.0)
"""Where log standard deviations that are outputs of a network are kept."""


@final
class GaussianHead(ActionHead):
    """Normal numbers, clipped on their way to a Box of any shape.

    The spread is a parameter of its own, or with ``state_dependent_std`` an output of the network.

    Args:
        action_space: of one environment, of a floating-point dtype; bounds may be infinite.
        in_features: number of features.
        state_dependent_std: the log standard deviations are outputs.
        initial_log_std: where the log standard deviations start.
        log_std_range: where they are kept when they are outputs.
        gain: of the output layer's initialisation.

    Raises:
        SpaceError: when the Box is empty or of integers.
        ConfigError: when ``log_std_range`` is not increasing.
    """

    low: Tensor
    high: Tensor

    def __init__(
        self,
        action_space: spaces.Box,
        in_features: int,
        *,
        state_dependent_std: bool = False,
        initial_log_std: float = 0.0,
        log_std_range: tuple[float, float] = LOG_STD_RANGE,
        gain: float = 0.01,
    ) -> None:
        super().__init__()
        size = _box_size(action_space)
        self.noise_kind, self.noise_shape = "normal", (size,)
        self.action_shape, self.action_dtype = (size,), torch.float32
        self._env_shape = tuple(action_space.shape)
        self._env_dtype = tensor_dtype(action_space)
        low, high = _flat_bounds(action_space)
        self._is_bounded = bool(np.isfinite(low).any() or np.isfinite(high).any())
        self.register_buffer("low", torch.from_numpy(low), persistent=False)
        self.register_buffer("high", torch.from_numpy(high), persistent=False)
        self.log_std: nn.Parameter | None = None
        if state_dependent_std:
            self._log_std_range = _checked_range(log_std_range)
            self.linear = _mean_and_log_std_layer(in_features, size, initial_log_std, gain)
        else:
            self.log_std = nn.Parameter(torch.full((size,), initial_log_std))
            self.linear = orthogonal_(nn.Linear(in_features, size), gain)

    def forward(self, features: Tensor, mask: Tensor | None = None) -> DiagonalGaussian:
        """Return the distribution; see `ActionHead.forward`."""
        self._refuse_mask(mask)
        output = F.linear(features, self.linear.weight, self.linear.bias)
        if self.log_std is not None:
            return DiagonalGaussian(output, self.log_std)
        mean, log_std = output.chunk(2, -1)
        return DiagonalGaussian(mean, log_std.clamp(*self._log_std_range))

    def to_env_action(self, action: Tensor) -> Tensor:
        """Clip to the bounds and take the space's shape and dtype."""
        # In the space's dtype before clipping: float32 may round a float64 bound to the outside.
        action = action.to(self._env_dtype)
        if self._is_bounded:
            action = torch.clamp(action, self.low, self.high)
        return unflatten(action, self._env_shape)

    def from_env_action(self, env_action: Tensor) -> Tensor:
        """Flatten to float32."""
        return flatten(env_action, self._env_shape).to(torch.float32)


@final
class SquashedGaussianHead(ActionHead):
    """Normal numbers, squashed into (-1, 1) and scaled to the bounds of a Box of any shape.

    The log standard deviations are outputs of the network.

    Args:
        action_space: of one environment, of a floating-point dtype with finite bounds.
        in_features: number of features.
        initial_log_std: where the log standard deviations start.
        log_std_range: where they are kept.
        gain: of the output layer's initialisation.

    Raises:
        SpaceError: when the Box is empty, of integers, or has an infinite bound.
        ConfigError: when ``log_std_range`` is not increasing.
    """

    low: Tensor
    high: Tensor
    centre: Tensor
    half_width: Tensor

    def __init__(
        self,
        action_space: spaces.Box,
        in_features: int,
        *,
        initial_log_std: float = 0.0,
        log_std_range: tuple[float, float] = LOG_STD_RANGE,
        gain: float = 0.01,
    ) -> None:
        super().__init__()
        size = _box_size(action_space)
        self.noise_kind, self.noise_shape = "normal", (size,)
        self.action_shape, self.action_dtype = (size,), torch.float32
        self._env_shape = tuple(action_space.shape)
        self._env_dtype = tensor_dtype(action_space)
        self._log_std_range = _checked_range(log_std_range)
        low, high = _flat_bounds(action_space)
        if not (np.isfinite(low).all() and np.isfinite(high).all()):
            raise SpaceError(
                f"{action_space} has an infinite bound; squashed actions are scaled to the bounds "
                "and need finite ones: rescale the actions, or do not squash"
            )
        # Halved first, because the width of a space with huge bounds is infinite.
        named = {
            "low": low,
            "high": high,
            "centre": low / 2 + high / 2,
            "half_width": high / 2 - low / 2,
        }
        for name, array in named.items():
            self.register_buffer(name, torch.from_numpy(array), persistent=False)
        self.linear = _mean_and_log_std_layer(in_features, size, initial_log_std, gain)

    def forward(self, features: Tensor, mask: Tensor | None = None) -> SquashedGaussian:
        """Return the distribution; see `ActionHead.forward`."""
        self._refuse_mask(mask)
        mean, log_std = F.linear(features, self.linear.weight, self.linear.bias).chunk(2, -1)
        return SquashedGaussian(mean, log_std.clamp(*self._log_std_range))

    def to_env_action(self, action: Tensor) -> Tensor:
        """Scale from [-1, 1] to the bounds and take the space's shape and dtype."""
        scaled = torch.addcmul(self.centre, self.half_width, action.to(self._env_dtype))
        return unflatten(torch.clamp(scaled, self.low, self.high), self._env_shape)

    def from_env_action(self, env_action: Tensor) -> Tensor:
        """Scale from the bounds to [-1, 1]; a number whose bounds coincide becomes 0."""
        distance = flatten(env_action, self._env_shape).to(self._env_dtype) - self.centre
        width = torch.where(self.half_width > 0.0, self.half_width, 1.0)
        return (distance / width).clamp(-1.0, 1.0).to(torch.float32)


def _mean_and_log_std_layer(
    in_features: int, size: int, initial_log_std: float, gain: float
) -> nn.Linear:
    layer = orthogonal_(nn.Linear(in_features, 2 * size), gain)
    nn.init.constant_(layer.bias[size:], initial_log_std)
    return layer


def _checked_range(log_std_range: tuple[float, float]) -> tuple[float, float]:
    low, high = log_std_range
    if not low < high:
        raise ConfigError(f"log_std_range is {log_std_range}; expected (low, high) with low < high")
    return low, high


def _box_size(space: spaces.Box) -> int:
    if np.dtype(space.dtype).kind != "f":
        raise SpaceError(
            f"action space {space} is a Box of dtype {space.dtype}; expected a floating-point "
            "one: declare whole numbers as MultiDiscrete"
        )
    size = math.prod(space.shape)
    check_not_empty(space, size)
    return size


def _flat_bounds(space: spaces.Box) -> tuple[npt.NDArray[np.floating], npt.NDArray[np.floating]]:
    dtype = np.dtype(space.dtype)
    low: npt.NDArray[np.floating] = space.low.reshape(-1).astype(dtype)
    high: npt.NDArray[np.floating] = space.high.reshape(-1).astype(dtype)
    return low, high
