"""Heads for discrete actions."""

from typing import final

import numpy as np
import torch
import torch.nn.functional as F
from gymnasium import spaces
from torch import Tensor, nn

from rl_core.nn.distributions import Categorical, MultiCategorical
from rl_core.nn.heads._layout import check_not_empty, flatten, tensor_dtype, unflatten
from rl_core.nn.heads.base import ActionHead
from rl_core.nn.init import orthogonal_


class Categories:
    """Converts the actions of a Discrete space, which networks number from 0.

    Args:
        action_space: of one environment.
    """

    def __init__(self, action_space: spaces.Discrete) -> None:
        self._start = int(action_space.start)
        self._env_dtype = tensor_dtype(action_space)

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
        gain: of the output layer's initialisation.
    """

    def __init__(
        self, action_space: spaces.Discrete, in_features: int, *, gain: float = 0.01
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
        gain: of the output layer's initialisation.
    """

    start: Tensor

    def __init__(
        self, action_space: spaces.MultiDiscrete, in_features: int, *, gain: float = 0.01
    ) -> None:
        super().__init__()
        self._nvec = tuple(int(n) for n in np.asarray(action_space.nvec).flat)
        check_not_empty(action_space, len(self._nvec))
        self.noise_kind, self.noise_shape = "gumbel", (sum(self._nvec),)
        self.action_shape, self.action_dtype = (len(self._nvec),), torch.int64
        self._env_shape = tuple(action_space.shape)
        self._env_dtype = tensor_dtype(action_space)
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
