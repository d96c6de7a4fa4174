"""Independent switches."""

from dataclasses import dataclass
from typing import ClassVar, Self, final

import torch
import torch.nn.functional as F
from torch import Tensor

from rl_core.nn.distributions.base import Distribution
from rl_core.nn.distributions.noise import NoiseKind


@final
@dataclass(frozen=True, slots=True, eq=False)
class Bernoulli(Distribution):
    """Independent switches; the event is `(n,)`, of 0 and 1 in the dtype of the logits.

    Attributes:
        logits: shape `(*batch, n)`, of a 1.
    """

    noise_kind: ClassVar[NoiseKind] = "logistic"
    logits: Tensor

    def sample(self, noise: Tensor) -> Tensor:
        """Switch on where logits plus logistic noise `(*batch, n)` are positive."""
        return (self.logits + noise > 0.0).to(self.logits.dtype)

    def sample_with_log_prob(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Sample; see `Distribution.sample_with_log_prob`."""
        action = self.sample(noise)
        return action, self.log_prob(action)

    def mode(self) -> Tensor:
        """Return the likelier position of each switch; 0 when both are equally likely."""
        return (self.logits > 0.0).to(self.logits.dtype)

    def log_prob(self, action: Tensor) -> Tensor:
        """Return the joint log-probability of actions `(*batch, n)` of any dtype."""
        action = action.to(self.logits.dtype)
        return (action * self.logits - F.softplus(self.logits)).sum(-1)

    def entropy(self) -> Tensor:
        """Return the sum of the switches' entropies."""
        logits = self.logits
        return (F.softplus(logits) - torch.sigmoid(logits) * logits).sum(-1)

    def kl_divergence(self, other: Self) -> Tensor:
        """Return KL(self || other), the sum over the switches."""
        self._check_same_class(other)
        logits, others = self.logits, other.logits
        difference = torch.sigmoid(logits) * (logits - others)
        return (difference + F.softplus(others) - F.softplus(logits)).sum(-1)
