"""Distributions over discrete actions, with masks of allowed ones, and their heads."""

from dataclasses import dataclass
from typing import ClassVar, Self, final

import numpy as np
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
class Categorical(Distribution):
    """One of n actions; the event is an int64 scalar.

    Attributes:
        logits: shape `(*batch, n)`; after construction, forbidden entries hold a large negative
            number, so that they have probability 0 and drop out of entropy and KL.
        mask: shape `(*batch, n)`, bool, True where an action is allowed; None allows all. What a
            row that forbids everything becomes is not defined.
    """

    noise_kind: ClassVar[NoiseKind] = "gumbel"
    logits: Tensor
    mask: Tensor | None = None

    def __post_init__(self) -> None:
        if self.mask is not None:
            object.__setattr__(self, "logits", _forbid(self.logits, self.mask))

    def sample(self, noise: Tensor) -> Tensor:
        """Take the largest of logits plus Gumbel noise `(*batch, n)`."""
        return torch.argmax(self.logits + noise, -1)

    def mode(self) -> Tensor:
        """Return the likeliest action."""
        return torch.argmax(self.logits, -1)

    def log_prob(self, action: Tensor) -> Tensor:
        """Return the log-probability of int64 actions `(*batch,)`."""
        return F.log_softmax(self.logits, -1).gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        """Return the entropy over the allowed actions."""
        log_probs = F.log_softmax(self.logits, -1)
        return -(log_probs.exp() * log_probs).sum(-1)

    def kl_divergence(self, other: Self) -> Tensor:
        """Return KL(self || other); very large where ``other`` forbids what this one allows."""
        self._check_same_class(other)
        log_probs = F.log_softmax(self.logits, -1)
        other_log_probs = F.log_softmax(other.logits, -1)
        return (log_probs.exp() * (log_probs - other_log_probs)).sum(-1)


@final
@dataclass(frozen=True, slots=True, eq=False)
class MultiCategorical(Distribution):
    """Several independent choices; the event is `(k,)`, int64.

    Attributes:
        logits: shape `(*batch, sum(nvec))`, the choices' logits one after the other; masked as in
            `Categorical`.
        nvec: the number of actions of each choice.
        mask: shape `(*batch, sum(nvec))`, bool, True where an action is allowed; None allows all.
    """

    noise_kind: ClassVar[NoiseKind] = "gumbel"
    logits: Tensor
    nvec: tuple[int, ...]
    mask: Tensor | None = None

    def __post_init__(self) -> None:
        if self.mask is not None:
            object.__setattr__(self, "logits", _forbid(self.logits, self.mask))

    def sample(self, noise: Tensor) -> Tensor:
        """Take the largest of logits plus Gumbel noise `(*batch, sum(nvec))` in each choice."""
        return torch.argmax(_as_table(self.logits + noise, self.nvec), -1)

    def mode(self) -> Tensor:
        """Return the likeliest action of each choice."""
        return torch.argmax(_as_table(self.logits, self.nvec), -1)

    def log_prob(self, action: Tensor) -> Tensor:
        """Return the joint log-probability of int64 actions `(*batch, k)`."""
        return self._log_probs().gather(-1, action.unsqueeze(-1)).squeeze(-1).sum(-1)

    def entropy(self) -> Tensor:
        """Return the sum of the choices' entropies."""
        log_probs = self._log_probs()
        return -(log_probs.exp() * log_probs).sum((-2, -1))

    def kl_divergence(self, other: Self) -> Tensor:
        """Return KL(self || other), the sum over the choices."""
        self._check_same_class(other)
        log_probs = self._log_probs()
        return (log_probs.exp() * (log_probs - other._log_probs())).sum((-2, -1))

    def _log_probs(self) -> Tensor:
        return F.log_softmax(_as_table(self.logits, self.nvec), -1)  # (*batch, k, max(nvec))


def _forbid(logits: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, logits, _forbidden(logits.dtype))


def _forbidden(dtype: torch.dtype) -> float:
    # Finite, so that 0 * log 0 is 0; smaller in half precision, where 1e8 would be infinite.
    return max(-1e8, torch.finfo(dtype).min / 4.0)


def _as_table(values: Tensor, nvec: tuple[int, ...]) -> Tensor:
    """Cut `(*batch, sum(nvec))` into `(*batch, k, max(nvec))`, padded with forbidden logits."""
    largest = max(nvec)
    if min(nvec) == largest:
        return values.reshape((*values.shape[:-1], len(nvec), largest))
    fill = _forbidden(values.dtype)
    parts = torch.split(values, list(nvec), -1)
    return torch.stack(
        [F.pad(part, (0, largest - part.shape[-1]), value=fill) for part in parts], -2
    )


class Categories:
    """Converts the actions of a Discrete space, which networks number from 0.

    Args:
        action_space: of one environment.
    """

    def __init__(self, action_space: spaces.Discrete) -> None:
        self._start = int(action_space.start)
        self._env_dtype = env_dtype(action_space)

    def to_env_action(self, action: Tensor) -> Tensor:
        """Count from the space's start, in its dtype."""
        return (action + self._start if self._start else action).to(self._env_dtype)

    def from_env_action(self, env_action: Tensor) -> Tensor:
        """Count from 0."""
        return env_action.to(torch.int64) - self._start


@final
class CategoricalHead(ActionHead):
    """One of n actions, for Discrete spaces.

    Args:
        action_space: of one environment.
        in_features: number of features.
        gain: of the output layer's orthogonal weights; None leaves it as ``nn.Linear`` starts.
    """

    def __init__(
        self, action_space: spaces.Discrete, in_features: int, *, gain: float | None = 0.01
    ) -> None:
        super().__init__()
        num_actions = int(action_space.n)
        self.noise_kind, self.noise_shape = "gumbel", (num_actions,)
        self.action_shape, self.action_dtype = (), torch.int64
        self._categories = Categories(action_space)
        self.linear = orthogonal_(nn.Linear(in_features, num_actions), gain)

    def forward(self, features: Tensor, mask: Tensor | None = None) -> Categorical:
        """Return the distribution; see `ActionHead.forward`."""
        return Categorical(F.linear(features, self.linear.weight, self.linear.bias), mask)

    def to_env_action(self, action: Tensor) -> Tensor:
        """Count from the space's start."""
        return self._categories.to_env_action(action)

    def from_env_action(self, env_action: Tensor) -> Tensor:
        """Count from 0."""
        return self._categories.from_env_action(env_action)


@final
class MultiCategoricalHead(ActionHead):
    """Several independent choices, for MultiDiscrete spaces of any shape.

    Args:
        action_space: of one environment.
        in_features: number of features.
        gain: of the output layer's orthogonal weights; None leaves it as ``nn.Linear`` starts.
    """

    start: Tensor

    def __init__(
        self, action_space: spaces.MultiDiscrete, in_features: int, *, gain: float | None = 0.01
    ) -> None:
        super().__init__()
        self._nvec = tuple(int(n) for n in np.asarray(action_space.nvec).flat)
        check_not_empty(action_space, len(self._nvec))
        self.noise_kind, self.noise_shape = "gumbel", (sum(self._nvec),)
        self.action_shape, self.action_dtype = (len(self._nvec),), torch.int64
        self._env_shape = tuple(action_space.shape)
        self._env_dtype = env_dtype(action_space)
        start = torch.from_numpy(np.asarray(action_space.start).astype(np.int64).reshape(-1))
        self.register_buffer("start", start, persistent=False)
        self.linear = orthogonal_(nn.Linear(in_features, sum(self._nvec)), gain)

    def forward(self, features: Tensor, mask: Tensor | None = None) -> MultiCategorical:
        """Return the distribution; see `ActionHead.forward`."""
        logits = F.linear(features, self.linear.weight, self.linear.bias)
        return MultiCategorical(logits, self._nvec, mask)

    def to_env_action(self, action: Tensor) -> Tensor:
        """Count from the space's start and take its shape."""
        return unflatten(action + self.start, self._env_shape).to(self._env_dtype)

    def from_env_action(self, env_action: Tensor) -> Tensor:
        """Count from 0 in one vector."""
        return flatten(env_action, self._env_shape).to(torch.int64) - self.start
