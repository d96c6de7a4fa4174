"""Normal distributions with independent components, plain and squashed, and their heads."""

import math
from dataclasses import dataclass
from typing import ClassVar, Self, final

import numpy as np
import torch
import torch.nn.functional as F
from gymnasium import spaces
from torch import Tensor, nn

from rl_core.errors import ConfigError, SpaceError
from rl_core.nn.distributions.base import (
    ActionHead,
    Distribution,
    NoiseKind,
    check_not_empty,
    env_dtype,
    flatten,
    unflatten,
)
from rl_core.nn.init import orthogonal_
from rl_core.spaces import is_bounded

_HALF_LOG_TAU = 0.5 * math.log(2.0 * math.pi)


@final
@dataclass(frozen=True, slots=True, eq=False)
class DiagonalGaussian(Distribution):
    """A normal distribution with independent components; the event is `(d,)`.

    Attributes:
        mean: shape `(*batch, d)`.
        log_std: shape `(*batch, d)` or `(d,)`.
    """

    noise_kind: ClassVar[NoiseKind] = "normal"
    mean: Tensor
    log_std: Tensor

    def sample(self, noise: Tensor) -> Tensor:
        """Shift and scale normal noise `(*batch, d)`."""
        return torch.addcmul(self.mean, self.log_std.exp(), noise)

    def sample_with_log_prob(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Sample; see `Distribution.sample_with_log_prob`."""
        return self.sample(noise), _normal_log_prob(noise, self.log_std)

    def mode(self) -> Tensor:
        """Return the mean."""
        return self.mean

    def log_prob(self, action: Tensor) -> Tensor:
        """Return the log-density of actions `(*batch, d)`."""
        return _normal_log_prob((action - self.mean) * torch.exp(-self.log_std), self.log_std)

    def entropy(self) -> Tensor:
        """Return the differential entropy."""
        return _normal_entropy(self.mean, self.log_std)

    def kl_divergence(self, other: Self) -> Tensor:
        """Return KL(self || other)."""
        self._check_same_class(other)
        return _normal_kl(self.mean, self.log_std, other.mean, other.log_std)


@final
@dataclass(frozen=True, slots=True, eq=False)
class SquashedGaussian(Distribution):
    r"""The hyperbolic tangent of a `DiagonalGaussian`; the event is `(d,)` in (-1, 1).

    With the normal variable $u$, $\log(1 - \tanh^2 u) = 2 (\log 2 - u - \mathrm{softplus}(-2u))$
    is computed in this form, which neither overflows nor rounds to log 0.

    Attributes:
        mean: shape `(*batch, d)`, before squashing.
        log_std: shape `(*batch, d)` or `(d,)`, before squashing.

    Source:
        Haarnoja et al. 2018, https://arxiv.org/abs/1801.01290, appendix C, Eq. (21).
    """

    noise_kind: ClassVar[NoiseKind] = "normal"
    mean: Tensor
    log_std: Tensor

    def sample(self, noise: Tensor) -> Tensor:
        """Shift, scale and squash normal noise `(*batch, d)`."""
        return torch.tanh(torch.addcmul(self.mean, self.log_std.exp(), noise))

    def sample_with_log_prob(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Sample; the density is computed before squashing, where nothing is lost to rounding."""
        unsquashed = torch.addcmul(self.mean, self.log_std.exp(), noise)
        log_prob = _normal_log_prob(noise, self.log_std)
        return torch.tanh(unsquashed), log_prob - _log_tanh_slope(unsquashed).sum(-1)

    def mode(self) -> Tensor:
        """Return the squashed mean, which is the median and not the peak of the density."""
        return torch.tanh(self.mean)

    def log_prob(self, action: Tensor) -> Tensor:
        """Return the log-density of actions `(*batch, d)`.

        Actions rounded to -1 or 1 count as the nearest number inside.
        """
        bound = 1.0 - torch.finfo(action.dtype).eps
        unsquashed = torch.atanh(action.clamp(-bound, bound))
        standard = (unsquashed - self.mean) * torch.exp(-self.log_std)
        log_prob = _normal_log_prob(standard, self.log_std)
        return log_prob - _log_tanh_slope(unsquashed).sum(-1)

    def entropy(self) -> Tensor:
        """Return the differential entropy by numerical integration.

        There is no closed form. The expected log-slope of the tangent is integrated by the
        trapezoid rule on 21 points over ±5 standard deviations of each component, and is
        differentiable. Its error is below 0.00002 nats per dimension up to a standard deviation
        of 1.6, 0.001 up to 2.7, 0.02 up to 4.5, and 0.07 up to 7.4, the largest of any head.
        """
        mean = self.mean
        grid = torch.linspace(-5.0, 5.0, 21, device=mean.device, dtype=mean.dtype)
        weight = torch.softmax(-0.5 * grid.square(), 0)
        points = mean.unsqueeze(-1) + self.log_std.exp().unsqueeze(-1) * grid  # (*batch, d, 21)
        slope = (_log_tanh_slope(points) * weight).sum((-2, -1))
        return _normal_entropy(mean, self.log_std) + slope

    def kl_divergence(self, other: Self) -> Tensor:
        """Return KL(self || other), which is that of the normals: squashing does not change it."""
        self._check_same_class(other)
        return _normal_kl(self.mean, self.log_std, other.mean, other.log_std)


def _normal_log_prob(standard: Tensor, log_std: Tensor) -> Tensor:
    """Log-density of `mean + exp(log_std) * standard`, summed over the last axis."""
    half_squares = torch.addcmul(log_std, standard, standard, value=0.5).sum(-1)
    return -_HALF_LOG_TAU * standard.shape[-1] - half_squares


def _normal_entropy(mean: Tensor, log_std: Tensor) -> Tensor:
    constant = (0.5 + _HALF_LOG_TAU) * mean.shape[-1]
    return (log_std.sum(-1) + constant).expand(mean.shape[:-1])


def _normal_kl(mean: Tensor, log_std: Tensor, other_mean: Tensor, other_log_std: Tensor) -> Tensor:
    shrink = other_log_std - log_std
    distance = (mean - other_mean) * torch.exp(-other_log_std)
    return (shrink + 0.5 * (torch.exp(-2.0 * shrink) + distance.square() - 1.0)).sum(-1)


def _log_tanh_slope(unsquashed: Tensor) -> Tensor:
    return 2.0 * (math.log(2.0) - unsquashed - F.softplus(-2.0 * unsquashed))


class ScaledHead(ActionHead):
    """The base of heads with actions in [-1, 1].

    Args:
        action_space: of one environment, of a floating-point dtype with finite bounds.

    Raises:
        SpaceError: if the Box is empty, of integers, or has an infinite bound.
    """

    low: Tensor
    high: Tensor
    center: Tensor
    half_width: Tensor

    def __init__(self, action_space: spaces.Box) -> None:
        super().__init__()
        size = box_size(action_space)
        self.action_shape, self.action_dtype = (size,), torch.float32
        self._env_shape = tuple(action_space.shape)
        self._is_flat = len(self._env_shape) == 1
        self._env_dtype = env_dtype(action_space)
        low, high = _flat_bounds(action_space)
        if not is_bounded(action_space).all():
            raise SpaceError(
                f"{action_space} has an infinite bound, or one beyond 1e30; squashed actions "
                "are scaled to the bounds and need finite ones: give the environment such bounds "
                "(gymnasium.wrappers.TransformAction), or use a policy that does not squash"
            )
        half_width = (high - low) / 2
        named = {"low": low, "high": high, "center": (low + high) / 2, "half_width": half_width}
        for name, bound in named.items():
            self.register_buffer(name, bound, persistent=False)

    def to_env_action(self, action: Tensor) -> Tensor:
        """Scale from [-1, 1] to the bounds and take the space's shape and dtype."""
        scaled = torch.addcmul(self.center, self.half_width, action.to(self._env_dtype))
        scaled = torch.clamp(scaled, self.low, self.high)
        return scaled if self._is_flat else unflatten(scaled, self._env_shape)

    def from_env_action(self, env_action: Tensor) -> Tensor:
        """Scale from the bounds to [-1, 1]; a number whose bounds coincide becomes 0."""
        distance = flatten(env_action, self._env_shape).to(self._env_dtype) - self.center
        width = torch.where(self.half_width > 0.0, self.half_width, 1.0)
        return (distance / width).clamp(-1.0, 1.0).to(torch.float32)


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
        gain: of the output layer's orthogonal weights; None leaves it as ``nn.Linear`` starts.

    Raises:
        SpaceError: if the Box is empty or of integers.
        ConfigError: if the initial log standard deviation lies outside ``log_std_range``.
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
        gain: float | None = 0.01,
    ) -> None:
        super().__init__()
        size = box_size(action_space)
        self.noise_kind, self.noise_shape = "normal", (size,)
        self.action_shape, self.action_dtype = (size,), torch.float32
        self._env_shape = tuple(action_space.shape)
        self._is_flat = len(self._env_shape) == 1
        self._env_dtype = env_dtype(action_space)
        low, high = _flat_bounds(action_space)
        self._is_bounded = bool(low.isfinite().any() or high.isfinite().any())
        self.register_buffer("low", low, persistent=False)
        self.register_buffer("high", high, persistent=False)
        self.log_std: nn.Parameter | None = None
        if state_dependent_std:
            self._log_std_range = log_std_range
            start = _checked_start(initial_log_std, log_std_range)
            self.linear = _mean_and_log_std_layer(in_features, size, start, gain)
        else:
            start = _checked_start(initial_log_std, (-math.inf, math.inf))
            self.log_std = nn.Parameter(torch.full((size,), start))
            self.linear = orthogonal_(nn.Linear(in_features, size), gain)

    def forward(self, features: Tensor, mask: Tensor | None = None) -> DiagonalGaussian:
        """Return the distribution; see `ActionHead.forward`."""
        if mask is not None:
            raise self.no_masks()
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
        return action if self._is_flat else unflatten(action, self._env_shape)

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
        gain: of the output layer's orthogonal weights; None leaves it as ``nn.Linear`` starts.

    Raises:
        SpaceError: if the Box is empty, of integers, or has an infinite bound.
        ConfigError: if the initial log standard deviation lies outside ``log_std_range``.
    """

    def __init__(
        self,
        action_space: spaces.Box,
        in_features: int,
        *,
        initial_log_std: float = 0.0,
        log_std_range: tuple[float, float] = LOG_STD_RANGE,
        gain: float | None = 0.01,
    ) -> None:
        super().__init__(action_space)
        (size,) = self.action_shape
        self.noise_kind, self.noise_shape = "normal", (size,)
        self._log_std_range = log_std_range
        start = _checked_start(initial_log_std, log_std_range)
        self.linear = _mean_and_log_std_layer(in_features, size, start, gain)

    def forward(self, features: Tensor, mask: Tensor | None = None) -> SquashedGaussian:
        """Return the distribution; see `ActionHead.forward`."""
        if mask is not None:
            raise self.no_masks()
        mean, log_std = F.linear(features, self.linear.weight, self.linear.bias).chunk(2, -1)
        return SquashedGaussian(mean, log_std.clamp(*self._log_std_range))


def _mean_and_log_std_layer(
    in_features: int, size: int, initial_log_std: float, gain: float | None
) -> nn.Linear:
    layer = orthogonal_(nn.Linear(in_features, 2 * size), gain)
    nn.init.constant_(layer.bias[size:], initial_log_std)
    return layer


def _checked_start(initial_log_std: float, log_std_range: tuple[float, float]) -> float:
    low, high = log_std_range
    if not (math.isfinite(initial_log_std) and low <= initial_log_std <= high):
        raise ConfigError(
            f"initial_log_std is {initial_log_std}; expected a finite number from {low} to {high}, "
            "the range of log standard deviations; scale the actions down if the noise should be "
            "larger relative to them"
        )
    return initial_log_std


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


def _flat_bounds(space: spaces.Box) -> tuple[Tensor, Tensor]:
    """Return copies of the bounds as vectors of the space's dtype."""
    return torch.tensor(space.low).reshape(-1), torch.tensor(space.high).reshape(-1)
