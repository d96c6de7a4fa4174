"""Action-value functions: several critics, evaluated as one batched ensemble."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rl_core.nn.encoder import ObservationEncoder, feature_size
from rl_core.nn.ensemble import EnsembleMLP
from rl_core.nn.mlp import Activation
from rl_core.types import Observation


class Critics(nn.Module):
    """Action values of an observation and a real action, or of an observation and every action.

    The critics are independent but for an encoder with parameters of its own, such as a
    convolutional one, which they share.

    Args:
        encoder: what turns observations into features; it must have ``out_features``.
        num_critics: how many, C.
        hidden_sizes: widths of each critic's layers.
        activation: after each of them.
        action_size: width of a real action, which is an input; 0 for discrete actions.
        num_actions: outputs of each critic; 1 where the action is an input.
        dueling: value and advantages as streams of their own (Wang et al. 2016,
            https://arxiv.org/abs/1511.06581, Eq. 9); each has its own layers.
    """

    def __init__(
        self,
        encoder: nn.Module,
        *,
        num_critics: int,
        hidden_sizes: Sequence[int],
        activation: Activation = "relu",
        action_size: int = 0,
        num_actions: int = 1,
        dueling: bool = False,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self._takes_action = action_size > 0
        self._is_scalar = num_actions == 1 and action_size > 0
        width = feature_size(encoder) + action_size
        self.values = EnsembleMLP(
            num_critics, width, hidden_sizes, num_actions, activation=activation
        )
        self.baseline = (
            EnsembleMLP(num_critics, width, hidden_sizes, 1, activation=activation)
            if dueling
            else None
        )

    def forward(self, observation: Observation, action: Tensor | None = None) -> Tensor:
        """Evaluate actions.

        Args:
            observation: with any batch axes.
            action: shape `(*batch, A)`; None where all actions are evaluated.

        Returns:
            Shape `(C, *batch)`, or `(C, *batch, n)` for all n actions.
        """
        features = self.encoder(observation)
        if self._takes_action:
            assert action is not None
            features = torch.cat([features, action], -1)
        values: Tensor = self.values(features)
        if self.baseline is not None:
            values = self.baseline(features) + values - values.mean(-1, keepdim=True)
        return values.squeeze(-1) if self._is_scalar else values

    def update_normalization(self, observation: Observation, mask: Tensor | None = None) -> None:
        """Take observations into the encoder's running statistics, where it has any."""
        if isinstance(self.encoder, ObservationEncoder):
            self.encoder.update_normalization(observation, mask)
