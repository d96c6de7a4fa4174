"""What distributions over actions and the heads that make them have in common."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from typing import ClassVar, Literal, Self, get_args

import gymnasium
import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rl_core.errors import ConfigError, DataError, SpaceError, nearest

NoiseKind = Literal["gumbel", "normal", "logistic", "none"]
"""The kind of noise that a distribution turns into samples."""


class Distribution(ABC):
    """A distribution over actions, with batch axes `(*batch)` and one event per batch entry.

    Attributes:
        noise_kind: the noise that `sample` takes.
    """

    __slots__ = ()
    noise_kind: ClassVar[NoiseKind]

    @abstractmethod
    def sample(self, noise: Tensor) -> Tensor:
        """Turn noise into actions.

        Args:
            noise: shape of the parameters, `(*batch, n)`, from `draw_noise`.

        Returns:
            Shape `(*batch, *event)`; differentiable in the parameters where actions are real.
        """

    def sample_with_log_prob(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Turn noise into actions, and compute their log-probabilities.

        Args:
            noise: shape of the parameters, `(*batch, n)`, from `draw_noise`.

        Returns:
            Actions `(*batch, *event)` and their log-probability or log-density `(*batch,)`.
        """
        action = self.sample(noise)
        return action, self.log_prob(action)

    @abstractmethod
    def mode(self) -> Tensor:
        """Return the action of a deterministic policy, shape `(*batch, *event)`."""

    @abstractmethod
    def log_prob(self, action: Tensor) -> Tensor:
        """Return the log-probability or log-density, shape `(*batch,)`.

        Args:
            action: shape `(*batch, *event)`.
        """

    @abstractmethod
    def entropy(self) -> Tensor:
        """Return the entropy in nats, shape `(*batch,)`."""

    @abstractmethod
    def kl_divergence(self, other: Self) -> Tensor:
        """Return KL(self || other) in nats, shape `(*batch,)`.

        Args:
            other: of the same class.

        Raises:
            DataError: if it is of another class.
        """

    def detach(self) -> Self:
        """Return the same distribution as a constant, for a dataclass of tensors."""
        assert is_dataclass(self)
        parts = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(
            self, **{name: p.detach() for name, p in parts.items() if isinstance(p, Tensor)}
        )

    def _check_same_class(self, other: "Distribution") -> None:
        if type(self) is not type(other):
            raise DataError(
                f"KL divergence of {type(self).__name__} and {type(other).__name__}; expected two "
                "of the same class"
            )


def draw_noise(
    kind: NoiseKind,
    shape: Sequence[int],
    generator: torch.Generator,
    *,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Draw independent standard noise.

    Args:
        kind: standard Gumbel, normal or logistic; ``"none"`` draws nothing and returns zeros.
        shape: of the result.
        generator: on the device of the result.
        dtype: of the result; floating-point.

    Returns:
        Finite numbers of the given shape.

    Raises:
        ConfigError: for an unknown kind.
    """
    device = generator.device
    if kind == "normal":
        return torch.randn(tuple(shape), generator=generator, device=device, dtype=dtype)
    noise = torch.zeros(tuple(shape), device=device, dtype=dtype)
    if kind == "gumbel":
        # Without the bound a draw of 0 would be infinite, and could choose a forbidden action.
        smallest = torch.finfo(dtype).tiny
        return noise.exponential_(generator=generator).clamp_(min=smallest).log_().neg_()
    if kind == "logistic":
        return noise.uniform_(generator=generator).logit_(eps=torch.finfo(dtype).eps)
    if kind != "none":
        raise ConfigError(f"noise: unknown kind '{kind}'{nearest(kind, get_args(NoiseKind))}")
    return noise


class ActionHead(nn.Module, ABC):
    """Turns features into a distribution over actions.

    The actor's action is what the distribution samples: log-probabilities refer to it, and storages
    keep it. The environment's action is derived from it.

    Attributes:
        noise_kind: the noise that the distribution turns into samples.
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
            ConfigError: if the head does not support masks and gets one.
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

    def draw_noise(self, batch_shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Draw what the distribution's `sample` takes, `(*batch_shape, *noise_shape)`."""
        return draw_noise(self.noise_kind, (*batch_shape, *self.noise_shape), generator)

    def no_masks(self) -> ConfigError:
        """Return the error for a mask that the head does not support."""
        return ConfigError(
            f"{type(self).__name__} does not support action masks; they are for Discrete and "
            "MultiDiscrete action spaces: leave it out of the observation"
        )


def check_not_empty(space: gymnasium.Space[npt.NDArray[np.generic]], size: int) -> None:
    """Refuse an empty action space.

    Raises:
        SpaceError: if ``size`` is 0.
    """
    if size == 0:
        raise SpaceError(f"action space {space} is empty; expected at least one number")


def env_dtype(space: spaces.Space[object]) -> torch.dtype:
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
