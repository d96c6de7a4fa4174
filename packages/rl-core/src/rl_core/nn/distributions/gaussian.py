"""Normal distributions with independent components, plain and squashed."""

import math
from dataclasses import dataclass
from typing import ClassVar, Self, final

import torch
import torch.nn.functional as F
from torch import Tensor

from rl_core.nn.distributions.base import Distribution
from rl_core.nn.distributions.noise import NoiseKind

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
