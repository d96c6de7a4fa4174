r"""Hybrid actions, continuous and categorical at once, and their head.

Real numbers $u$ and choices $c$ are independent factors, given the observation $s$:

(1) $\pi(u, c | s) = \pi(u | s) \prod_i \pi(c_i | s)$

so log-probabilities, entropies and divergences are sums.

Source: Neunert et al. 2020, https://arxiv.org/abs/2001.00449.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Self, final

import torch
from torch import Tensor

from rl_core.nn.distributions import (
    ActionHead,
    DiagonalGaussian,
    Distribution,
    MultiCategorical,
    MultiCategoricalHead,
    NoiseKind,
    SquashedGaussian,
    make_head,
)
from rl_core.spaces import HybridSpace


@final
@dataclass(frozen=True, slots=True, eq=False)
class Hybrid(Distribution):
    """Independent real numbers and choices; the event is `(d + k,)`, floating-point.

    Attributes:
        mean: shape `(*batch, d)`, before squashing.
        log_std: shape `(*batch, d)` or `(d,)`, before squashing.
        logits: shape `(*batch, sum(nvec))`, the choices' logits one after the other.
        nvec: the number of actions of each of the k choices.
        is_squashed: whether the real numbers are squashed into (-1, 1).
    """

    noise_kind: ClassVar[NoiseKind] = "normal"
    mean: Tensor
    log_std: Tensor
    logits: Tensor
    nvec: tuple[int, ...]
    is_squashed: bool

    @property
    def real(self) -> Distribution:
        """The first factor of Eq. (1)."""
        kind = SquashedGaussian if self.is_squashed else DiagonalGaussian
        return kind(self.mean, self.log_std)

    @property
    def choices(self) -> MultiCategorical:
        """The other factors of Eq. (1)."""
        return MultiCategorical(self.logits, self.nvec)

    def sample(self, noise: Tensor) -> Tensor:
        """Turn normal noise `(*batch, d + sum(nvec))` into actions."""
        real, other = self._split(noise)
        return torch.cat([self.real.sample(real), self.choices.sample(_gumbel(other))], -1)

    def mode(self) -> Tensor:
        """Return the mode of each factor."""
        return torch.cat([self.real.mode(), self.choices.mode()], -1)

    def log_prob(self, action: Tensor) -> Tensor:
        """Return the logarithm of Eq. (1) for actions `(*batch, d + k)`."""
        real, choices = self._split(action)
        # NaN is not an index; where an action is NaN, the density of its real numbers is too.
        whole = torch.nan_to_num(choices, 0.0, 0.0, 0.0).long()
        return self.real.log_prob(real) + self.choices.log_prob(whole)

    def entropy(self) -> Tensor:
        """Return the sum of the factors' entropies."""
        return self.real.entropy() + self.choices.entropy()

    def kl_divergence(self, other: Self) -> Tensor:
        """Return KL(self || other), the sum over the factors."""
        self._check_same_class(other)
        return self.real.kl_divergence(other.real) + self.choices.kl_divergence(other.choices)

    def _split(self, values: Tensor) -> tuple[Tensor, Tensor]:
        size = self.mean.shape[-1]
        return values[..., :size], values[..., size:]


def _gumbel(normal: Tensor) -> Tensor:
    r"""Turn normal numbers $z$ into Gumbel's, $-\log(-\log \Phi(z))$."""
    # log Φ from the tail beyond |z|: Φ itself would round to 1 for a large z.
    tail = 0.5 * torch.erfc(normal.abs() * math.sqrt(0.5))
    log_cdf = torch.where(normal > 0.0, torch.log1p(-tail), torch.log(tail))
    return -torch.log(-log_cdf)


@final
class HybridHead(ActionHead):
    """Real numbers and choices, for `HybridSpace`.

    The actor's action is float32: the real numbers as their own head has them, then the choices,
    counted from 0.

    Args:
        action_space: of one environment.
        in_features: number of features.
        squash: as for `make_head`, of the real numbers; so are the other options.
        state_dependent_std: the standard deviation is a network output instead of a parameter.
        initial_log_std: initial log standard deviation.
        gain: as for `make_head`, of both parts.

    Raises:
        SpaceError: if the Box is empty or of integers, or ``squash`` meets an infinite bound.
    """

    def __init__(
        self,
        action_space: HybridSpace,
        in_features: int,
        *,
        squash: bool = False,
        state_dependent_std: bool = False,
        initial_log_std: float = 0.0,
        gain: float | None = 0.01,
    ) -> None:
        super().__init__()
        real, choices = action_space.parts
        self.real = make_head(
            real,
            in_features,
            squash=squash,
            state_dependent_std=state_dependent_std,
            initial_log_std=initial_log_std,
            gain=gain,
        )
        self.choices = MultiCategoricalHead(choices, in_features, gain=gain)
        self.noise_kind, self.action_dtype = "normal", torch.float32
        (self._size,) = self.real.action_shape
        self.noise_shape = (self._size + self.choices.noise_shape[0],)
        self.action_shape = (self._size + self.choices.action_shape[0],)

    def forward(self, features: Tensor, mask: Tensor | None = None) -> Hybrid:
        """Return the distribution; see `ActionHead.forward`."""
        if mask is not None:
            raise self.no_masks()
        real, choices = self.real(features), self.choices(features)
        is_squashed = isinstance(real, SquashedGaussian)
        return Hybrid(real.mean, real.log_std, choices.logits, choices.nvec, is_squashed)

    def to_env_action(self, action: Tensor) -> Tensor:
        """Map both parts to the space, in its dtype."""
        real, choices = action[..., : self._size], action[..., self._size :].long()
        return torch.cat([self.real.to_env_action(real), self.choices.to_env_action(choices)], -1)

    def from_env_action(self, env_action: Tensor) -> Tensor:
        """Map both parts to the actor's action."""
        real, choices = env_action[..., : self._size], env_action[..., self._size :]
        parts = [self.real.from_env_action(real), self.choices.from_env_action(choices)]
        return torch.cat(parts, -1)
