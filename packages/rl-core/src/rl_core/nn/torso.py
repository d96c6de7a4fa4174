"""The torso that policies and values are built on: encoder, layers, recurrent core."""

from collections.abc import Callable, Sequence
from typing import Literal

from torch import Tensor, nn

from rl_core.nn.encoder import NormalizingEncoder, feature_size, normalizes
from rl_core.nn.mlp import MLP, Activation
from rl_core.nn.recurrent import RecurrentNet
from rl_core.types import Observation

MemoryKind = Literal["none", "gru", "lstm"]
"""The kind of recurrent core; ``none`` for a feed-forward torso."""


class Torso(nn.Module):
    """Features of an observation: an encoder, then an MLP, then an optional recurrent core.

    Args:
        encoder: turns observations into features; it must have ``out_features``, and may be a
            `NormalizingEncoder`.
        hidden_sizes: widths of the MLP's layers; may be empty.
        activation: the MLP's activation.
        memory: the kind of the recurrent core.
        memory_size: hidden size of the core.
        memory_layers: number of stacked layers in the core.
        make_layers: makes a module in place of the MLP from the encoder's width; the module must
            have ``out_features``. None makes the MLP of ``hidden_sizes``.
    """

    def __init__(
        self,
        encoder: nn.Module,
        hidden_sizes: Sequence[int] = (),
        activation: Activation = "tanh",
        *,
        memory: MemoryKind = "none",
        memory_size: int = 64,
        memory_layers: int = 1,
        make_layers: Callable[[int], nn.Module] | None = None,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        width = feature_size(encoder)
        self.layers = (
            MLP(width, hidden_sizes, activation=activation)
            if make_layers is None
            else make_layers(width)
        )
        width = feature_size(self.layers)
        self.memory = (
            None if memory == "none" else RecurrentNet(memory, width, memory_size, memory_layers)
        )
        self.out_features = width if self.memory is None else self.memory.out_features

    @property
    def state_size(self) -> int:
        """Numbers per environment in the recurrent state; 0 without a recurrent core."""
        return 0 if self.memory is None else self.memory.state_size

    def forward(
        self, observation: Observation, state: Tensor | None, episode_start: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Compute features, and advance the recurrent core.

        Args:
            observation: with batch axes `(N,)`, or `(T, N)`.
            state: shape `(N, S)`; None without a recurrent core.
            episode_start: shape of the batch axes, bool; None without a recurrent core.

        Returns:
            Features `(*batch, F)` and the state after each step, None without a recurrent core.
        """
        features = self.encode(observation)
        if self.memory is None:
            return features, None
        assert state is not None
        assert episode_start is not None
        output: tuple[Tensor, Tensor] = self.memory(features, state, episode_start)
        return output

    def encode(self, observation: Observation) -> Tensor:
        """Compute the input of the recurrent core; without one, the features."""
        features: Tensor = self.layers(self.encoder(observation))
        return features

    def update_normalization(self, observation: Observation, mask: Tensor | None = None) -> None:
        """Update the encoder's running statistics, if it has any."""
        if isinstance(self.encoder, NormalizingEncoder):
            self.encoder.update_normalization(observation, mask)

    @property
    def normalizes(self) -> bool:
        """Whether the encoder has running statistics."""
        return normalizes(self.encoder)
