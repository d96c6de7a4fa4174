"""Heads whose actions in [-1, 1] are scaled to the bounds of a Box."""

from typing import final

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rl_core.errors import SpaceError
from rl_core.nn.distributions import Deterministic
from rl_core.nn.heads._layout import box_size, flat_bounds, flatten, tensor_dtype, unflatten
from rl_core.nn.heads.base import ActionHead
from rl_core.nn.init import orthogonal_


class ScaledHead(ActionHead):
    """The base of heads with actions in [-1, 1].

    Args:
        action_space: of one environment, of a floating-point dtype with finite bounds.

    Raises:
        SpaceError: if the Box is empty, of integers, or has an infinite bound.
    """

    low: Tensor
    high: Tensor
    centre: Tensor
    half_width: Tensor

    def __init__(self, action_space: spaces.Box) -> None:
        super().__init__()
        size = box_size(action_space)
        self.action_shape, self.action_dtype = (size,), torch.float32
        self._env_shape = tuple(action_space.shape)
        self._env_dtype = tensor_dtype(action_space)
        low, high = flat_bounds(action_space)
        if not (np.isfinite(low).all() and np.isfinite(high).all()):
            raise SpaceError(
                f"{action_space} has an infinite bound; squashed actions are scaled to the bounds "
                "and need finite ones: give the environment such bounds "
                "(gymnasium.wrappers.TransformAction), or use a policy that does not squash"
            )
        # Halved first, because the width of a space with huge bounds is infinite.
        named = {
            "low": low,
            "high": high,
            "centre": low / 2 + high / 2,
            "half_width": high / 2 - low / 2,
        }
        for name, array in named.items():
            self.register_buffer(name, torch.from_numpy(array), persistent=False)

    def to_env_action(self, action: Tensor) -> Tensor:
        """Scale from [-1, 1] to the bounds and take the space's shape and dtype."""
        scaled = torch.addcmul(self.centre, self.half_width, action.to(self._env_dtype))
        return unflatten(torch.clamp(scaled, self.low, self.high), self._env_shape)

    def from_env_action(self, env_action: Tensor) -> Tensor:
        """Scale from the bounds to [-1, 1]; a number whose bounds coincide becomes 0."""
        distance = flatten(env_action, self._env_shape).to(self._env_dtype) - self.centre
        width = torch.where(self.half_width > 0.0, self.half_width, 1.0)
        return (distance / width).clamp(-1.0, 1.0).to(torch.float32)


@final
class DeterministicHead(ScaledHead):
    """One action for each observation: the hyperbolic tangent of a linear layer.

    Such policies explore with noise that the algorithm adds.

    Args:
        action_space: of one environment, of a floating-point dtype with finite bounds.
        in_features: number of features.
        gain: of the output layer's initialisation.

    Raises:
        SpaceError: if the Box is empty, of integers, or has an infinite bound.
    """

    def __init__(self, action_space: spaces.Box, in_features: int, *, gain: float = 0.01) -> None:
        super().__init__(action_space)
        (size,) = self.action_shape
        self.noise_kind, self.noise_shape = "none", (size,)
        self.linear = orthogonal_(nn.Linear(in_features, size), gain)

    def forward(self, features: Tensor, mask: Tensor | None = None) -> Deterministic:
        """Return the action as a distribution; see `ActionHead.forward`."""
        self._refuse_mask(mask)
        output = nn.functional.linear(features, self.linear.weight, self.linear.bias)
        return Deterministic(torch.tanh(output))
