"""A single action, for policies that do not sample."""

from dataclasses import dataclass
from typing import ClassVar, Self, final

from torch import Tensor

from rl_core.errors import ConfigError
from rl_core.nn.distributions.base import Distribution
from rl_core.nn.distributions.noise import NoiseKind


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

    def sample_with_log_prob(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Raise ConfigError."""
        raise _no_density("log-probability")

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


def _no_density(what: str) -> ConfigError:
    return ConfigError(
        f"a deterministic policy has no {what}; use an algorithm that does not need one, or a "
        "stochastic policy"
    )
