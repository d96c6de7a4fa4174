"""Several networks of one shape, computed by batched products."""

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rl_core.errors import ConfigError
from rl_core.nn.mlp import Activation, activation_function


class EnsembleMLP(nn.Module):
    """Independent multi-layer perceptrons whose layers are one batched product each.

    Two critics cost little more than one in this form, because small layers are bound by calls
    and not by arithmetic.

    Args:
        num_members: how many networks, E.
        in_features: size of the input.
        hidden_sizes: width of each hidden layer; may be empty.
        out_features: width of the final layer, which has no activation.
        activation: name of the activation.
        out_gain: gain of the final layers' orthogonal initialisation; hidden layers take √2.

    Raises:
        ConfigError: for an unknown activation, or a number or width below 1.
    """

    def __init__(
        self,
        num_members: int,
        in_features: int,
        hidden_sizes: Sequence[int],
        out_features: int,
        *,
        activation: Activation = "relu",
        out_gain: float = 1.0,
    ) -> None:
        super().__init__()
        widths = [in_features, *hidden_sizes, out_features]
        if num_members < 1 or min(widths) < 1:
            raise ConfigError(
                f"an ensemble needs at least one member and widths of at least 1, got "
                f"{num_members} members of widths {widths}"
            )
        self.num_members = num_members
        self.out_features = out_features
        self._activate = activation_function(activation)
        gains = [*[math.sqrt(2.0)] * len(hidden_sizes), out_gain]
        self.weights = nn.ParameterList(
            _orthogonal_weights(num_members, b, a, gain)
            for (a, b), gain in zip(itertools.pairwise(widths), gains, strict=True)
        )
        self.biases = nn.ParameterList(
            nn.Parameter(torch.zeros(num_members, 1, width)) for width in widths[1:]
        )

    def forward(self, features: Tensor) -> Tensor:
        """Map inputs `(*batch, in_features)` to `(E, *batch, out_features)`.

        Args:
            features: the same for all members.
        """
        batch = features.shape[:-1]
        x = features.reshape(1, -1, features.shape[-1]).expand(self.num_members, -1, -1)
        last = len(self.weights) - 1
        for k, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(bias, x, weight.mT)
            if k < last:
                x = self._activate(x)
        return x.view(self.num_members, *batch, self.out_features)


def _orthogonal_weights(num_members: int, rows: int, columns: int, gain: float) -> nn.Parameter:
    """Draw matrices `(E, rows, columns)`, each orthogonal by itself, as linear layers have them."""
    weights = torch.empty(num_members, rows, columns)
    for weight in weights:
        nn.init.orthogonal_(weight, gain)
    return nn.Parameter(weights)
