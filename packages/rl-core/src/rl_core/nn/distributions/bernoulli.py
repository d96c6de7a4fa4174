"""Independent switches, and their head."""

import math
from dataclasses import dataclass
from typing import ClassVar, Self, final

import torch
import torch.nn.functional as F
from gymnasium import spaces
from torch import Tensor, nn

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


@final
class BernoulliHead(ActionHead):
    """Independent binary actions, for MultiBinary spaces of any shape.

    The actor's action is float32, 0 or 1.

    Args:
        action_space: of one environment.
        in_features: number of features.
        gain: of the output layer's orthogonal weights; None leaves it as ``nn.Linear`` starts.
    """

    def __init__(
        self, action_space: spaces.MultiBinary, in_features: int, *, gain: float | None = 0.01
    ) -> None:
        super().__init__()
        self._env_shape = tuple(action_space.shape)
        self._env_dtype = env_dtype(action_space)
        size = math.prod(self._env_shape)
        check_not_empty(action_space, size)
        self.noise_kind, self.noise_shape = "logistic", (size,)
        self.action_shape, self.action_dtype = (size,), torch.float32
        self.linear = orthogonal_(nn.Linear(in_features, size), gain)

    def forward(self, features: Tensor, mask: Tensor | None = None) -> Bernoulli:
        """Return the distribution; see `ActionHead.forward`."""
        if mask is not None:
            raise self.no_masks()
        return Bernoulli(F.linear(features, self.linear.weight, self.linear.bias))

    def to_env_action(self, action: Tensor) -> Tensor:
        """Take the space's shape and dtype."""
        return unflatten(action, self._env_shape).to(self._env_dtype)

    def from_env_action(self, env_action: Tensor) -> Tensor:
        """Flatten to float32."""
        return flatten(env_action, self._env_shape).to(torch.float32)
