"""Action heads: the last layer of a policy, and the bridge to the environment's action space."""

import math
from abc import ABC, abstractmethod
from typing import final

import gymnasium
import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from gymnasium import spaces
from torch import Tensor, nn

from rl_core.errors import ConfigError, SpaceError
from rl_core.nn.distributions import (
    Bernoulli,
    Categorical,
    DiagonalGaussian,
    Distribution,
    MultiCategorical,
    NoiseKind,
    SquashedGaussian,
)
from rl_core.nn.init import orthogonal_

LOG_STD_RANGE = (-20.0, 2.0)
"""Where log standard deviations that are outputs of a network are kept."""


class ActionHead(nn.Module, ABC):
    """Turns features into a distribution over actions.

    The actor's action is what the distribution samples, log-probabilities are of, and storages
    keep. The environment's action is derived from it.

    Attributes:
        noise_kind: what the distribution samples from.
        noise_shape: event shape of that noise.
        action_shape: event shape of the actor's action.
        action_dtype: of the actor's action.
    """

    noise_kind: NoiseKind
    noise_shape: tuple[int, ...]
    action_shape: tuple[int, ...]
    action_dtype: torch.dtype

    @abstractmethod
    def forward(self, features: Tensor, mask: Tensor | None = None) -> Distribution:
        """Return the distribution.

        Args:
            features: shape `(*batch, F)`.
            mask: shape `(*batch, *noise_shape)`, bool, True where an action is allowed; only
                heads of categorical actions take one.

        Raises:
            ConfigError: when a mask is given to a head that takes none.
        """

    @abstractmethod
    def to_env_action(self, action: Tensor) -> Tensor:
        """Map the actor's actions to the environment's.

        Args:
            action: shape `(*batch, *action_shape)`.

        Returns:
            Shape `(*batch, *space.shape)`, in the space's dtype and inside its bounds.
        """

    @abstractmethod
    def from_env_action(self, env_action: Tensor) -> Tensor:
        """Map the environment's actions, such as those of a data set, to the actor's.

        Args:
            env_action: shape `(*batch, *space.shape)`, inside the space.

        Returns:
            Shape `(*batch, *action_shape)`, in `action_dtype`, which `to_env_action` maps back.
        """


@final
class CategoricalHead(ActionHead):
    """One of n actions, for Discrete spaces.

    Args:
        action_space: of one environment.
        in_features: number of features.
        gain: of the output layer's initialisation.
    """

    def __init__(
        self, action_space: spaces.Discrete, in_features: int, *, gain: float = 0.01
    ) -> None:
        super().__init__()
        num_actions = int(action_space.n)
        self.noise_kind, self.noise_shape = "gumbel", (num_actions,)
        self.action_shape, self.action_dtype = (), torch.int64
        self._start = int(action_space.start)
        self._env_dtype = _tensor_dtype(action_space)
        self.linear = orthogonal_(nn.Linear(in_features, num_actions), gain)

    def forward(self, features: Tensor, mask: Tensor | None = None) -> Categorical:
        """Return the distribution; see `ActionHead.forward`."""
        return Categorical(F.linear(features, self.linear.weight, self.linear.bias), mask)

    def to_env_action(self, action: Tensor) -> Tensor:
        """Count from the space's start."""
        return (action + self._start if self._start else action).to(self._env_dtype)

    def from_env_action(self, env_action: Tensor) -> Tensor:
        """Count from 0."""
        return env_action.to(torch.int64) - self._start


@final
class MultiCategoricalHead(ActionHead):
    """Several independent choices, for MultiDiscrete spaces of any shape.

    Args:
        action_space: of one environment.
        in_features: number of features.
        gain: of the output layer's initialisation.
    """

    start: Tensor

    def __init__(
        self, action_space: spaces.MultiDiscrete, in_features: int, *, gain: float = 0.01
    ) -> None:
        super().__init__()
        self._nvec = tuple(int(n) for n in np.asarray(action_space.nvec).flat)
        _check_not_empty(action_space, len(self._nvec))
        self.noise_kind, self.noise_shape = "gumbel", (sum(self._nvec),)
        self.action_shape, self.action_dtype = (len(self._nvec),), torch.int64
        self._env_shape = tuple(action_space.shape)
        self._env_dtype = _tensor_dtype(action_space)
        start = torch.from_numpy(np.asarray(action_space.start).astype(np.int64).reshape(-1))
        self.register_buffer("start", start, persistent=False)
        self.linear = orthogonal_(nn.Linear(in_features, sum(self._nvec)), gain)

    def forward(self, features: Tensor, mask: Tensor | None = None) -> MultiCategorical:
        """Return the distribution; see `ActionHead.forward`."""
        logits = F.linear(features, self.linear.weight, self.linear.bias)
        return MultiCategorical(logits, self._nvec, mask)

    def to_env_action(self, action: Tensor) -> Tensor:
        """Count from the space's start and take its shape."""
        return _unflatten(action + self.start, self._env_shape).to(self._env_dtype)

    def from_env_action(self, env_action: Tensor) -> Tensor:
        """Count from 0 in one vector."""
        return _flatten(env_action, self._env_shape).to(torch.int64) - self.start


@final
class BernoulliHead(ActionHead):
    """Independent switches, for MultiBinary spaces of any shape.

    The actor's action is float32, 0 or 1.

    Args:
        action_space: of one environment.
        in_features: number of features.
        gain: of the output layer's initialisation.
    """

    def __init__(
        self, action_space: spaces.MultiBinary, in_features: int, *, gain: float = 0.01
    ) -> None:
        super().__init__()
        self._env_shape = tuple(action_space.shape)
        self._env_dtype = _tensor_dtype(action_space)
        size = math.prod(self._env_shape)
        _check_not_empty(action_space, size)
        self.noise_kind, self.noise_shape = "logistic", (size,)
        self.action_shape, self.action_dtype = (size,), torch.float32
        self.linear = orthogonal_(nn.Linear(in_features, size), gain)

    def forward(self, features: Tensor, mask: Tensor | None = None) -> Bernoulli:
        """Return the distribution; see `ActionHead.forward`."""
        _refuse_mask(self, mask)
        return Bernoulli(F.linear(features, self.linear.weight, self.linear.bias))

    def to_env_action(self, action: Tensor) -> Tensor:
        """Take the space's shape and dtype."""
        return _unflatten(action, self._env_shape).to(self._env_dtype)

    def from_env_action(self, env_action: Tensor) -> Tensor:
        """Flatten to float32."""
        return _flatten(env_action, self._env_shape).to(torch.float32)


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
        self._env_dtype = _tensor_dtype(action_space)
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
        _refuse_mask(self, mask)
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
        return _unflatten(action, self._env_shape)

    def from_env_action(self, env_action: Tensor) -> Tensor:
        """Flatten to float32."""
        return _flatten(env_action, self._env_shape).to(torch.float32)


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
        self._env_dtype = _tensor_dtype(action_space)
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
        _refuse_mask(self, mask)
        mean, log_std = F.linear(features, self.linear.weight, self.linear.bias).chunk(2, -1)
        return SquashedGaussian(mean, log_std.clamp(*self._log_std_range))

    def to_env_action(self, action: Tensor) -> Tensor:
        """Scale from [-1, 1] to the bounds and take the space's shape and dtype."""
        scaled = torch.addcmul(self.centre, self.half_width, action.to(self._env_dtype))
        return _unflatten(torch.clamp(scaled, self.low, self.high), self._env_shape)

    def from_env_action(self, env_action: Tensor) -> Tensor:
        """Scale from the bounds to [-1, 1]; a number whose bounds coincide becomes 0."""
        distance = _flatten(env_action, self._env_shape).to(self._env_dtype) - self.centre
        width = torch.where(self.half_width > 0.0, self.half_width, 1.0)
        return (distance / width).clamp(-1.0, 1.0).to(torch.float32)


def make_head(
    action_space: gymnasium.Space[object],
    in_features: int,
    *,
    squash: bool = False,
    state_dependent_std: bool = False,
    initial_log_std: float = 0.0,
    gain: float = 0.01,
) -> ActionHead:
    """Build the head that fits an action space.

    The three options about Gaussians concern Box spaces only.

    Args:
        action_space: Discrete, MultiDiscrete, MultiBinary, or a Box of floating-point numbers.
        in_features: number of features.
        squash: squash and scale to the bounds instead of clipping; the spread is then an output
            of the network in any case.
        state_dependent_std: the spread is an output of the network, not a parameter of its own.
        initial_log_std: where the log standard deviations start.
        gain: of the output layer's initialisation.

    Raises:
        SpaceError: when the space is none of these, or ``squash`` meets an infinite bound.
    """
    if isinstance(action_space, spaces.Discrete):
        return CategoricalHead(action_space, in_features, gain=gain)
    if isinstance(action_space, spaces.MultiDiscrete):
        return MultiCategoricalHead(action_space, in_features, gain=gain)
    if isinstance(action_space, spaces.MultiBinary):
        return BernoulliHead(action_space, in_features, gain=gain)
    if not isinstance(action_space, spaces.Box):
        raise SpaceError(
            f"action space {action_space} is not supported; expected Discrete, MultiDiscrete, "
            "MultiBinary or Box: wrap the environment so that its actions are one of these"
        )
    if squash:
        return SquashedGaussianHead(
            action_space, in_features, initial_log_std=initial_log_std, gain=gain
        )
    return GaussianHead(
        action_space,
        in_features,
        state_dependent_std=state_dependent_std,
        initial_log_std=initial_log_std,
        gain=gain,
    )


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


def _refuse_mask(head: ActionHead, mask: Tensor | None) -> None:
    if mask is not None:
        raise ConfigError(
            f"{type(head).__name__} takes no action mask; masks are for Discrete and "
            "MultiDiscrete action spaces: leave it out of the observation"
        )


def _box_size(space: spaces.Box) -> int:
    if np.dtype(space.dtype).kind != "f":
        raise SpaceError(
            f"action space {space} is a Box of dtype {space.dtype}; expected a floating-point "
            "one: declare whole numbers as MultiDiscrete"
        )
    size = math.prod(space.shape)
    _check_not_empty(space, size)
    return size


def _flat_bounds(space: spaces.Box) -> tuple[npt.NDArray[np.floating], npt.NDArray[np.floating]]:
    dtype = np.dtype(space.dtype)
    low: npt.NDArray[np.floating] = space.low.reshape(-1).astype(dtype)
    high: npt.NDArray[np.floating] = space.high.reshape(-1).astype(dtype)
    return low, high


def _check_not_empty(space: gymnasium.Space[npt.NDArray[np.generic]], size: int) -> None:
    if size == 0:
        raise SpaceError(f"action space {space} is empty; expected at least one number")


def _tensor_dtype(space: spaces.Space[object]) -> torch.dtype:
    try:
        return torch.from_numpy(np.empty(0, dtype=space.dtype)).dtype
    except TypeError:
        raise SpaceError(
            f"action space {space} has dtype {space.dtype}, which tensors do not have; expected "
            "a dtype such as float32 or int64"
        ) from None


def _unflatten(action: Tensor, shape: tuple[int, ...]) -> Tensor:
    return action if len(shape) == 1 else action.reshape((*action.shape[:-1], *shape))


def _flatten(env_action: Tensor, shape: tuple[int, ...]) -> Tensor:
    if len(shape) == 1:
        return env_action
    batch = env_action.shape[: env_action.dim() - len(shape)]
    return env_action.reshape((*batch, math.prod(shape)))
