"""Multi-layer perceptrons."""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rl_core.config import Count, checked_arguments
from rl_core.nn.init import orthogonal_

Activation = Literal["tanh", "relu", "elu", "gelu", "silu", "leaky_relu"]
"""The names of the activations."""

_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "relu": F.relu,
    "elu": F.elu,
    "gelu": F.gelu,
    "silu": F.silu,
    "leaky_relu": F.leaky_relu,
}


def activation_function(name: Activation) -> Callable[[Tensor], Tensor]:
    """Return the activation of a name."""
    return _FUNCTIONS[name]


class MLP(nn.Module):
    """Linear layers with an activation after each but the last.

    The layers are applied by one loop of functional calls: for the small networks of
    reinforcement learning a module call per layer costs more than its arithmetic.

    Args:
        in_features: size of the input.
        hidden_sizes: width of each hidden layer; may be empty.
        out_features: width of a final layer without activation; None leaves it out.
        activation: name of the activation.
        out_gain: gain of the final layer's orthogonal initialisation; hidden layers take √2.

    Raises:
        ConfigError: for an unknown activation or a width below 1.
    """

    @checked_arguments("")
    def __init__(
        self,
        in_features: Count,
        hidden_sizes: Sequence[Count],
        out_features: Count | None = None,
        *,
        activation: Activation = "tanh",
        out_gain: float = 1.0,
    ) -> None:
        super().__init__()
        widths = [in_features, *hidden_sizes]
        self.activation = activation
        self._activate = activation_function(activation)
        self.hidden = nn.ModuleList(
            orthogonal_(nn.Linear(a, b), math.sqrt(2.0)) for a, b in itertools.pairwise(widths)
        )
        self.out = (
            None
            if out_features is None
            else orthogonal_(nn.Linear(widths[-1], out_features), out_gain)
        )
        self.out_features = widths[-1] if out_features is None else out_features

    def forward(self, features: Tensor) -> Tensor:
        """Map `(*, in_features)` to `(*, out_features)`."""
        activate = self._activate
        for layer in self.hidden:
            assert isinstance(layer, nn.Linear)
            features = activate(F.linear(features, layer.weight, layer.bias))
        if self.out is not None:
            features = F.linear(features, self.out.weight, self.out.bias)
        return features
