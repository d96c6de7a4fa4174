"""The head for independent binary actions."""

import math
from typing import final

import torch
import torch.nn.functional as F
from gymnasium import spaces
from torch import Tensor, nn

from rl_core.nn.distributions import Bernoulli
from rl_core.nn.heads._layout import check_not_empty, flatten, tensor_dtype, unflatten
from rl_core.nn.heads.base import ActionHead
from rl_core.nn.init import orthogonal_


@final
class BernoulliHead(ActionHead):
    """Independent binary actions, for MultiBinary spaces of any shape.

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
        self._env_dtype = tensor_dtype(action_space)
        size = math.prod(self._env_shape)
        check_not_empty(action_space, size)
        self.noise_kind, self.noise_shape = "logistic", (size,)
        self.action_shape, self.action_dtype = (size,), torch.float32
        self.linear = orthogonal_(nn.Linear(in_features, size), gain)

    def forward(self, features: Tensor, mask: Tensor | None = None) -> Bernoulli:
        """Return the distribution; see `ActionHead.forward`."""
        self._refuse_mask(mask)
        return Bernoulli(F.linear(features, self.linear.weight, self.linear.bias))

    def to_env_action(self, action: Tensor) -> Tensor:
        """Take the space's shape and dtype."""
        return unflatten(action, self._env_shape).to(self._env_dtype)

    def from_env_action(self, env_action: Tensor) -> Tensor:
        """Flatten to float32."""
        return flatten(env_action, self._env_shape).to(torch.float32)
