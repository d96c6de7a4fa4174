"""Heads for real numbers, clipped to the bounds or squashed into them."""

import math
from typing import final

import numpy as np
import torch
import torch.nn.functional as F
from gymnasium import spaces
from torch import Tensor, nn

from rl_core.errors import ConfigError, SpaceError
from rl_core.nn.distributions import Deterministic, DiagonalGaussian, SquashedGaussian
from rl_core.nn.heads._layout import box_size, flat_bounds, flatten, tensor_dtype, unflatten
from rl_core.nn.heads.base import ActionHead
from rl_core.nn.init import orthogonal_


class ScaledHead(ActionHead):
    """The base of heads with actions in [-1, 1].

    Args:
        action_space: of one environment, of a floating-point dtype with finite bounds.

    Raises:
        SpaceError: if the Box is empty, of integers, or has an infinite bound.
    """

    low: Tensor
    high: Tensor
    centre: Tensor
    half_width: Tensor

    def __init__(self, action_space: spaces.Box) -> None:
        super().__init__()
        size = box_size(action_space)
        self.action_shape, self.action_dtype = (size,), torch.float32
        self._env_shape = tuple(action_space.shape)
        self._env_dtype = tensor_dtype(action_space)
        low, high = flat_bounds(action_space)
        if not (np.isfinite(low).all() and np.isfinite(high).all()):
            raise SpaceError(
                f"{action_space} has an infinite bound; squashed actions are scaled to the bounds "
                "and need finite ones: give the environment such bounds "
                "(gymnasium.wrappers.TransformAction), or use a policy that does not squash"
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

    def to_env_action(self, action: Tensor) -> Tensor:
        """Scale from [-1, 1] to the bounds and take the space's shape and dtype."""
        scaled = torch.addcmul(self.centre, self.half_width, action.to(self._env_dtype))
        return unflatten(torch.clamp(scaled, self.low, self.high), self._env_shape)

    def from_env_action(self, env_action: Tensor) -> Tensor:
        """Scale from the bounds to [-1, 1]; a number whose bounds coincide becomes 0."""
        distance = flatten(env_action, self._env_shape).to(self._env_dtype) - self.centre
        width = torch.where(self.half_width > 0.0, self.half_width, 1.0)
        return (distance / width).clamp(-1.0, 1.0).to(torch.float32)


@final
class DeterministicHead(ScaledHead):
    """One action for each observation: the hyperbolic tangent of a linear layer.

    Such policies explore with noise that the algorithm adds.

    Args:
        action_space: of one environment, of a floating-point dtype with finite bounds.
        in_features: number of features.
        gain: of the output layer's initialisation.

    Raises:
        SpaceError: if the Box is empty, of integers, or has an infinite bound.
    """

    def __init__(self, action_space: spaces.Box, in_features: int, *, gain: float = 0.01) -> None:
        super().__init__(action_space)
        (size,) = self.action_shape
        self.noise_kind, self.noise_shape = "none", (size,)
        self.linear = orthogonal_(nn.Linear(in_features, size), gain)

    def forward(self, features: Tensor, mask: Tensor | None = None) -> Deterministic:
        """Return the action as a distribution; see `ActionHead.forward`."""
        self._refuse_mask(mask)
        output = nn.functional.linear(features, self.linear.weight, self.linear.bias)
        return Deterministic(torch.tanh(output))


LOG_STD_RANGE = (-20.0, 2.0)
"""Bounds of log standard deviations that are outputs of a network."""


@final
class GaussianHead(ActionHead):
    """A normal distribution, clipped to a Box of any shape by `to_env_action`.

    The standard deviation is a parameter, or with ``state_dependent_std`` a network output.

    Args:
        action_space: of one environment, of a floating-point dtype; bounds may be infinite.
        in_features: number of features.
        state_dependent_std: the log standard deviations are network outputs.
        initial_log_std: initial log standard deviation.
        log_std_range: bounds of log standard deviations that are outputs.
        gain: of the output layer's initialisation.

    Raises:
        SpaceError: if the Box is empty or of integers.
        ConfigError: if ``log_std_range`` is not increasing, or the start lies outside.
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
        size = box_size(action_space)
        self.noise_kind, self.noise_shape = "normal", (size,)
        self.action_shape, self.action_dtype = (size,), torch.float32
        self._env_shape = tuple(action_space.shape)
        self._env_dtype = tensor_dtype(action_space)
        low, high = flat_bounds(action_space)
        self._is_bounded = bool(np.isfinite(low).any() or np.isfinite(high).any())
        self.register_buffer("low", torch.from_numpy(low), persistent=False)
        self.register_buffer("high", torch.from_numpy(high), persistent=False)
        self.log_std: nn.Parameter | None = None
        if state_dependent_std:
            self._log_std_range = _checked_range(log_std_range)
            start = _checked_start(initial_log_std, self._log_std_range)
            self.linear = _mean_and_log_std_layer(in_features, size, start, gain)
        else:
            start = _checked_start(initial_log_std, (-math.inf, math.inf))
            self.log_std = nn.Parameter(torch.full((size,), start))
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
class SquashedGaussianHead(ScaledHead):
    """A normal distribution, squashed into (-1, 1) and scaled to the bounds of a Box of any shape.

    The log standard deviations are outputs of the network.

    Args:
        action_space: of one environment, of a floating-point dtype with finite bounds.
        in_features: number of features.
        initial_log_std: initial log standard deviation.
        log_std_range: bounds of the log standard deviations.
        gain: of the output layer's initialisation.

    Raises:
        SpaceError: if the Box is empty, of integers, or has an infinite bound.
        ConfigError: if ``log_std_range`` is not increasing, or the start lies outside.
    """

    def __init__(
        self,
        action_space: spaces.Box,
        in_features: int,
        *,
        initial_log_std: float = 0.0,
        log_std_range: tuple[float, float] = LOG_STD_RANGE,
        gain: float = 0.01,
    ) -> None:
        super().__init__(action_space)
        (size,) = self.action_shape
        self.noise_kind, self.noise_shape = "normal", (size,)
        self._log_std_range = _checked_range(log_std_range)
        start = _checked_start(initial_log_std, self._log_std_range)
        self.linear = _mean_and_log_std_layer(in_features, size, start, gain)

    def forward(self, features: Tensor, mask: Tensor | None = None) -> SquashedGaussian:
        """Return the distribution; see `ActionHead.forward`."""
        self._refuse_mask(mask)
        mean, log_std = F.linear(features, self.linear.weight, self.linear.bias).chunk(2, -1)
        return SquashedGaussian(mean, log_std.clamp(*self._log_std_range))


def _mean_and_log_std_layer(
    in_features: int, size: int, initial_log_std: float, gain: float
) -> nn.Linear:
    layer = orthogonal_(nn.Linear(in_features, 2 * size), gain)
    nn.init.constant_(layer.bias[size:], initial_log_std)
    return layer


def _checked_start(initial_log_std: float, log_std_range: tuple[float, float]) -> float:
    low, high = log_std_range
    if not (math.isfinite(initial_log_std) and low <= initial_log_std <= high):
        raise ConfigError(
            f"initial_log_std is {initial_log_std}; expected a finite number from {low} to {high}, "
            "the range of log standard deviations; rescale the actions to a smaller range for "
            "relatively larger ones"
        )
    return initial_log_std


def _checked_range(log_std_range: tuple[float, float]) -> tuple[float, float]:
    low, high = log_std_range
    if not low < high:
        raise ConfigError(f"log_std_range is {log_std_range}; expected (low, high) with low < high")
    return low, high
