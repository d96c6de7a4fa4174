"""A single action, for policies that do not sample, and the head that makes it."""

from dataclasses import dataclass
from typing import ClassVar, Self, final

import torch
import torch.nn.functional as F
from gymnasium import spaces
from torch import Tensor, nn

from rl_core.errors import ConfigError
from rl_core.nn.distributions.base import Distribution, NoiseKind
from rl_core.nn.distributions.gaussian import ScaledHead
from rl_core.nn.init import orthogonal_


@final
@dataclass(frozen=True, slots=True, eq=False)
class Deterministic(Distribution):
    """A single action, for policies that explore with noise of their own.

    It has no density: `log_prob`, `entropy` and `kl_divergence` raise `ConfigError`.

    Attributes:
        action: shape `(*batch, *event)`.
    """

    noise_kind: ClassVar[NoiseKind] = "none"
    action: Tensor

    def sample(self, noise: Tensor) -> Tensor:
        """Return the action; the noise is ignored."""
        return self.action

    def mode(self) -> Tensor:
        """Return the action."""
        return self.action

    def log_prob(self, action: Tensor) -> Tensor:
        """Raise ConfigError."""
        raise _no_density("log-probability")

    def entropy(self) -> Tensor:
        """Raise ConfigError."""
        raise _no_density("entropy")

    def kl_divergence(self, other: Self) -> Tensor:
        """Raise ConfigError."""
        raise _no_density("KL divergence")


@final
class DeterministicHead(ScaledHead):
    """One action for each observation: the hyperbolic tangent of a linear layer.

    Such policies explore with noise that the algorithm adds.

    Args:
        action_space: of one environment, of a floating-point dtype with finite bounds.
        in_features: number of features.
        gain: of the output layer's orthogonal weights; None leaves it as ``nn.Linear`` starts.

    Raises:
        SpaceError: if the Box is empty, of integers, or has an infinite bound.
    """

    def __init__(
        self, action_space: spaces.Box, in_features: int, *, gain: float | None = 0.01
    ) -> None:
        super().__init__(action_space)
        (size,) = self.action_shape
        self.noise_kind, self.noise_shape = "none", (size,)
        self.linear = orthogonal_(nn.Linear(in_features, size), gain)

    def forward(self, features: Tensor, mask: Tensor | None = None) -> Deterministic:
        """Return the action as a distribution; see `ActionHead.forward`."""
        if mask is not None:
            raise self.no_masks()
        output = F.linear(features, self.linear.weight, self.linear.bias)
        return Deterministic(torch.tanh(output))


def _no_density(what: str) -> ConfigError:
    return ConfigError(
        f"a deterministic policy has no {what}; use an algorithm that does not need one, or a "
        "stochastic policy"
    )
