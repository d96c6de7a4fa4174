"""Multilayer perceptrons: single ones, and ensembles of one shape computed by batched products."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Literal, TypeAlias

import torch
import torch.nn.functional as F
from annotated_types import Interval
from torch import Tensor, nn

from rl_core.compile.trace import is_tracing
from rl_core.config import Count, checked_arguments
from rl_core.nn.init import (
    Initialization,
    ensemble_biases,
    ensemble_weights,
    fan_in_uniform,
    orthogonal_,
)

Activation = Literal["tanh", "relu", "elu", "gelu", "silu", "leaky_relu"]
"""The names of the activations."""

ACTIVATIONS: Mapping[Activation, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "relu": F.relu,
    "elu": F.elu,
    "gelu": F.gelu,
    "silu": F.silu,
    "leaky_relu": F.leaky_relu,
}
"""The activations by name."""


class MLP(nn.Module):
    """Linear layers with an activation after each but the last.

    The layers are applied by one loop of functional calls: for the small networks of
    reinforcement learning a module call per layer costs more than its arithmetic.

    Args:
        in_features: size of the input.
        hidden_sizes: width of each hidden layer; may be empty.
        out_features: width of a final layer without activation; None leaves it out.
        activation: name of the activation.
        out_gain: gain of the final layer's orthogonal initialization; hidden layers take √2.

    Raises:
        ConfigError: for an unknown activation or a width below 1.
    """

    @checked_arguments()
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
        self._activate = ACTIVATIONS[activation]
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


Members: TypeAlias = slice | Tensor | None
"""Members of an ensemble: a range, their indices `(M,)`, or None for all."""


class EnsembleLinear(nn.Module):
    """One linear layer per member, computed as one batched product.

    Each is initialized like ``nn.Linear``; see `initialize_`.

    Args:
        num_members: number of layers, E.
        in_features: size of each one's input.
        out_features: size of each one's output.
    """

    def __init__(self, num_members: int, in_features: int, out_features: int) -> None:
        super().__init__()
        self.weight = fan_in_uniform((num_members, out_features, in_features), in_features)
        self.bias = fan_in_uniform((num_members, 1, out_features), in_features)

    def forward(self, features: Tensor) -> Tensor:
        """Map each member's own inputs `(*T, E, N, in_features)` to `(*T, E, N, out_features)`."""
        if features.dim() == 3:
            return torch.baddbmm(self.bias, features, self.weight.mT)
        x = features.movedim(-3, 0)
        y = torch.baddbmm(self.bias, x.flatten(1, -2), self.weight.mT)
        return y.reshape(*x.shape[:-1], -1).movedim(0, -3)


class EnsembleMLP(nn.Module):
    """Independent multi-layer perceptrons whose layers are one batched product each.

    Two critics cost little more than one this way, because small layers are bound by calls, not by
    arithmetic. Graphs compiled for the CPU compute each member separately.

    Args:
        num_members: number of networks, E.
        in_features: size of the input.
        hidden_sizes: width of each hidden layer; may be empty.
        out_features: width of the final layer, which has no activation; None leaves it out.
        activation: name of the activation.
        layer_norm: normalize each hidden layer before its activation (Ba et al. 2016,
            https://arxiv.org/abs/1607.06450).
        dropout: probability that an output of a hidden layer is zeroed before it is normalized; the
            others are scaled up accordingly. `draw_dropout` decides which.
        init: initialization of all layers; orthogonal hidden layers have gain √2, final ones 1.

    Attributes:
        noise_size: K, factors of dropout per row and member; 0 without it.

    Raises:
        ConfigError: for an unknown activation, a number or width below 1, or a probability that
            is not in [0, 1).
    """

    @checked_arguments()
    def __init__(
        self,
        num_members: Count,
        in_features: Count,
        hidden_sizes: Sequence[Count],
        out_features: Count | None,
        *,
        activation: Activation = "relu",
        layer_norm: bool = False,
        dropout: Annotated[float, Interval(ge=0, lt=1)] = 0.0,
        init: Initialization = "uniform",
    ) -> None:
        super().__init__()
        widths = [in_features, *hidden_sizes, *(() if out_features is None else (out_features,))]
        self.num_members = num_members
        self.out_features = widths[-1]
        self._num_activated = len(hidden_sizes)
        self._activate = ACTIVATIONS[activation]
        layers = list(itertools.pairwise(widths))
        gains = [math.sqrt(2.0)] * len(hidden_sizes) + [1.0] * (len(layers) - len(hidden_sizes))
        self.weights = nn.ParameterList(
            ensemble_weights((num_members, q, p), init, gain)
            for (p, q), gain in zip(layers, gains, strict=True)
        )
        self.biases = nn.ParameterList(
            ensemble_biases((num_members, 1, q), init, p) for p, q in layers
        )
        normalized = hidden_sizes if layer_norm else ()
        self.norm_scales = nn.ParameterList(
            nn.Parameter(torch.ones(num_members, 1, width)) for width in normalized
        )
        self.norm_shifts = nn.ParameterList(
            nn.Parameter(torch.zeros(num_members, 1, width)) for width in normalized
        )
        self._is_normalized = layer_norm
        self.dropout = dropout
        self._drops = list(hidden_sizes) if dropout else []
        self.noise_size = sum(self._drops)

    def forward(
        self,
        features: Tensor,
        noise: Tensor | None = None,
        *,
        is_per_member: bool = False,
        members: Members = None,
    ) -> Tensor:
        """Map inputs `(*batch, in_features)` to `(E, *batch, out_features)`.

        Args:
            features: the same for all members.
            noise: factors of the hidden layers' outputs, `(*batch, E, K)`, which `draw_dropout`
                draws; None drops nothing.
            is_per_member: ``features`` are each member's own, `(E, *batch, in_features)`.
            members: the members to compute, whose number is then E; None computes all.
        """
        lists: tuple[nn.ParameterList, ...] = (self.weights, self.biases)
        if self._is_normalized:
            lists = (*lists, self.norm_scales, self.norm_shifts)
        # Iterating over the lists themselves takes three times as long.
        layers: list[list[Tensor]] = [list(each.parameters(recurse=False)) for each in lists]
        in_graph = is_tracing() and features.device.type == "cpu"
        chosen = range(self.num_members)
        if isinstance(members, slice) and in_graph:
            chosen = chosen[members]  # a graph takes them from the parameters one by one
        elif members is not None:
            layers = [[parameter[members] for parameter in each] for each in layers]
            chosen = range(len(layers[0][0]) if layers[0] else self.num_members)
        num_members = len(chosen)
        width = features.shape[-1]
        if is_per_member:
            batch = features.shape[1:-1]
            x = features.reshape(num_members, -1, width)
        else:
            batch = features.shape[:-1]
            x = features.reshape(1, -1, width).expand(num_members, -1, -1)
        kept = self._kept(noise, num_members)
        if in_graph:
            # A graph saves no calls by batching, and fuses the operations of one member.
            y = torch.stack(
                [
                    self._member(
                        own, [[p[n] for p in each] for each in layers], [k[place] for k in kept]
                    )
                    for place, (n, own) in enumerate(zip(chosen, x, strict=True))
                ]
            )
        else:
            y = self._all_members(x, layers, kept)
        return y.view(num_members, *batch, self.out_features)

    def _all_members(self, x: Tensor, layers: list[list[Tensor]], kept: Sequence[Tensor]) -> Tensor:
        weights, biases, *norms = layers
        for k, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            x = torch.baddbmm(bias, x, weight.mT)
            if k < self._num_activated:
                x = self._hidden(k, x, norms, kept)
        return x

    def _member(self, x: Tensor, layers: list[list[Tensor]], kept: Sequence[Tensor]) -> Tensor:
        weights, biases, *norms = layers
        for k, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            x = F.linear(x, weight, bias[0])
            if k < self._num_activated:
                x = self._hidden(k, x, norms, kept)
        return x

    def _hidden(
        self, k: int, x: Tensor, norms: Sequence[list[Tensor]], kept: Sequence[Tensor]
    ) -> Tensor:
        """Drop, normalize and activate the outputs of hidden layer k."""
        if kept:
            x = x * kept[k]
        if norms:
            scales, shifts = norms
            x = torch.addcmul(shifts[k], F.layer_norm(x, x.shape[-1:]), scales[k])
        activated: Tensor = self._activate(x)
        return activated

    def _kept(self, noise: Tensor | None, num_members: int) -> tuple[Tensor, ...]:
        """Return the dropout factors of the hidden layers' outputs, each `(E, N, width)`."""
        if noise is None or not self._drops:
            return ()
        by_member = noise.reshape(-1, num_members, self.noise_size).transpose(0, 1)
        return torch.split(by_member, self._drops, -1)


def draw_dropout(shape: tuple[int, ...], probability: float, generator: torch.Generator) -> Tensor:
    """Draw factors that drop each number with a probability: 0, and 1 / (1 - p) for the others.

    What is drawn is how far it is from one that is dropped to the next, which is geometric. Where
    few are dropped, that takes a third of the time of a random number for each.

    Args:
        shape: of the result.
        probability: p, in (0, 1).
        generator: on the result's device.
    """
    count = math.prod(shape)
    expected = count * probability
    enough = math.ceil(expected + 10.0 * math.sqrt(expected) + 10.0)  # but once in 10^20 times
    steps = torch.empty(min(count, enough), dtype=torch.float64, device=generator.device)
    steps.geometric_(probability, generator=generator)
    dropped = steps.cumsum_(0).clamp_(max=count + 1).long() - 1
    kept = torch.full((count + 1,), 1.0 / (1.0 - probability), device=generator.device)
    return kept.index_fill_(0, dropped, 0.0)[:count].view(shape)
