"""Recurrent cores whose state is zeroed at episode starts."""

from typing import Literal, cast

import torch
from torch import Tensor, nn

from rl_core.config import Count, checked_arguments
from rl_core.nn._recurrence import gru, lstm
from rl_core.nn.init import Initialization
from rl_core.nn.mlp import EnsembleLinear

RecurrentKind = Literal["gru", "lstm"]
"""The kinds of recurrent networks."""


class RecurrentNet(nn.Module):
    """A stack of GRU or LSTM layers with the state zeroed wherever an episode starts.

    One matrix product projects the inputs of all time steps; only the cell, which needs the state
    before it, runs in a loop. The states of all layers are one row of ``state_size`` numbers.

    With ``num_members`` it is an ensemble of independent networks, computed by batched products.
    Inputs, states and outputs then have an axis of members, E, before that of the samples.

    Args:
        kind: ``"gru"`` or ``"lstm"``.
        in_features: size of the input.
        hidden_size: size of each layer's output.
        num_layers: number of stacked layers.
        num_members: number of independent networks, E; None for one network without that axis.
        init: initial weights: each gate's orthogonal, with zero biases, or weights and biases
            uniform in ±1/√H as in ``torch.nn.GRU``, where H is ``hidden_size``.

    Raises:
        ConfigError: for an unknown kind or a size below 1.

    Source:
        GRU: Cho et al. 2014, https://arxiv.org/abs/1406.1078, in the form of ``torch.nn.GRU``.
        LSTM: Hochreiter & Schmidhuber 1997, in the form of ``torch.nn.LSTM``.
    """

    @checked_arguments()
    def __init__(
        self,
        kind: RecurrentKind,
        in_features: Count,
        hidden_size: Count,
        num_layers: Count = 1,
        *,
        num_members: Count | None = None,
        init: Initialization = "orthogonal",
    ) -> None:
        super().__init__()
        self.kind = kind
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.out_features = hidden_size
        gates = 3 if kind == "gru" else 4
        sizes = hidden_size, gates, num_members, init
        self.input_layers = nn.ModuleList(
            _gate_layer(in_features if layer == 0 else hidden_size, *sizes)
            for layer in range(num_layers)
        )
        self.state_layers = nn.ModuleList(
            _gate_layer(hidden_size, *sizes) for _ in range(num_layers)
        )

    @property
    def state_size(self) -> int:
        """Numbers per environment in the recurrent state."""
        return self.num_layers * self.hidden_size * (2 if self.kind == "lstm" else 1)

    def forward(
        self, features: Tensor, state: Tensor, episode_start: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Advance by one step, or over a sequence if ``features`` have a time axis.

        Args:
            features: shape `(N, F)` or `(T, N, F)`; for an ensemble `(E, N, F)` or
                `(T, E, N, F)`.
            state: shape `(N, S)`, before the first step; for an ensemble `(E, N, S)`.
            episode_start: shape `(N,)` or `(T, N)`, bool: True zeroes the state before this step;
                None zeroes none.

        Returns:
            Outputs `(N, H)` or `(T, N, H)`, and the state after each step, `(N, S)` or
            `(T, N, S)`; for an ensemble with an axis E before N.
        """
        if features.dim() == state.dim():
            return self.step(features, _kept(state, episode_start))
        return self._sequence(features, state, episode_start)

    def step(self, features: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Advance by one step from known states, without zeroing any.

        Args:
            features: shape `(*batch, F)`; for an ensemble `(*T, E, N, F)`.
            state: with the same batch axes, before the step.

        Returns:
            Outputs `(*batch, H)` and the state after the step, `(*batch, S)`.
        """
        cell = self._gru_step if self.kind == "gru" else self._lstm_step
        after = []
        for layer, layer_state in enumerate(state.chunk(self.num_layers, dim=-1)):
            inputs = self.input_layers[layer](features)
            after.append(cell(self.state_layers[layer], inputs, layer_state))
            features = after[-1][..., : self.hidden_size]
        return features, torch.cat(after, dim=-1)

    def _sequence(
        self, features: Tensor, state: Tensor, episode_start: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        kept = None if episode_start is None else _flags(episode_start, state)
        if kept is not None and state.dim() == 3:
            kept = kept.unsqueeze(1)
        run = gru if self.kind == "gru" else lstm
        layer_states = []
        for layer, layer_state in enumerate(state.chunk(self.num_layers, dim=-1)):
            recurrent = cast("nn.Linear | EnsembleLinear", self.state_layers[layer])
            states = run(
                self.input_layers[layer](features),
                layer_state,
                kept,
                recurrent.weight,
                recurrent.bias,
            )
            layer_states.append(states)
            features = states[..., : self.hidden_size]
        return features, torch.cat(layer_states, dim=-1)

    def _gru_step(self, recurrent: nn.Module, inputs: Tensor, state: Tensor) -> Tensor:
        size = self.hidden_size
        in_gates, in_new = inputs.split_with_sizes((2 * size, size), dim=-1)
        h_gates, h_new = recurrent(state).split_with_sizes((2 * size, size), dim=-1)
        reset, update = torch.sigmoid(in_gates + h_gates).chunk(2, dim=-1)
        new = torch.tanh(torch.addcmul(in_new, reset, h_new))
        return torch.lerp(new, state, update)

    def _lstm_step(self, recurrent: nn.Module, inputs: Tensor, state: Tensor) -> Tensor:
        hidden, cell = state.chunk(2, dim=-1)
        in_gate, forget_gate, candidate, out_gate = (inputs + recurrent(hidden)).chunk(4, dim=-1)
        cell = torch.sigmoid(forget_gate) * cell + torch.sigmoid(in_gate) * torch.tanh(candidate)
        return torch.cat((torch.sigmoid(out_gate) * torch.tanh(cell), cell), dim=-1)


def _kept(state: Tensor, episode_start: Tensor | None) -> Tensor:
    """Zero the state where episodes start."""
    return state if episode_start is None else state * _flags(episode_start, state)


def _flags(episode_start: Tensor, state: Tensor) -> Tensor:
    """Return 0 where episodes start and 1 elsewhere, with an axis for the numbers of a state."""
    return (~episode_start).to(state.dtype).unsqueeze(-1)


def _gate_layer(
    in_features: int, hidden_size: int, gates: int, num_members: int | None, init: Initialization
) -> nn.Module:
    """Make the layer of all gates; see `RecurrentNet` for its start."""
    layer: nn.Linear | EnsembleLinear
    if num_members is None:
        layer = nn.Linear(in_features, gates * hidden_size)
        of_members = layer.weight[None]
    else:
        layer = EnsembleLinear(num_members, in_features, gates * hidden_size)
        of_members = layer.weight
    if init == "uniform":
        bound = hidden_size**-0.5
        for parameter in layer.parameters():
            nn.init.uniform_(parameter, -bound, bound)
        return layer
    with torch.no_grad():
        for weight in of_members:
            for gate in weight.chunk(gates):
                nn.init.orthogonal_(gate)
        layer.bias.zero_()
    return layer
