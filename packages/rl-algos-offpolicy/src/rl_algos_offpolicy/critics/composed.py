"""Critics put together from parts: the user's networks, and memories."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from rl_algos_offpolicy.critics.critics import joined
from rl_algos_offpolicy.critics.distributional import ReturnDistribution
from rl_algos_offpolicy.memory import Remembered, Seen
from rl_core.nn.encoder import NormalizingEncoder, feature_size, normalizes
from rl_core.nn.ensemble import EnsembleMLP, Members
from rl_core.nn.init import Start
from rl_core.nn.mlp import Activation
from rl_core.nn.recurrent import RecurrentKind, RecurrentNet
from rl_core.types import Observation


class ComposedCritics(nn.Module):
    """Action values by several critics, each of which has its own parts.

    A critic is an encoder of the observation and one of a real action, side by side, then layers,
    then a memory, then a linear output. The project's own parts are computed by batched products,
    the user's one critic after the other. Each critic has a state of its own; the states of all
    make one row.

    Args:
        encoders: of observations, with ``out_features``: one per critic, or one that all share.
        action_encoders: of real actions, with ``out_features``: one per critic. Empty where an
            action goes in as it is.
        num_critics: how many, C.
        hidden_sizes: widths of each critic's layers.
        activation: after each of them.
        make_layers: from a width to what is in the layers' place, with ``out_features``; called
            once per critic. None makes the layers.
        memory: the recurrent network after the layers; None for none.
        memory_size: its hidden size.
        memory_layers: how many of its layers are stacked.
        action_size: width of a real action, which is an input; 0 for discrete actions.
        num_actions: outputs of each critic; 1 where the action is an input.
        dueling: value and advantages are outputs of their own (Wang et al. 2016,
            https://arxiv.org/abs/1511.06581, Eq. 9), of the same layers.
        returns: what is answered for each discrete action; None for its expected return.
        start: of the layers and outputs made here.
    """

    memory_name = "critics"

    def __init__(
        self,
        encoders: Sequence[nn.Module],
        action_encoders: Sequence[nn.Module] = (),
        *,
        num_critics: int,
        hidden_sizes: Sequence[int],
        activation: Activation = "relu",
        make_layers: Callable[[int], nn.Module] | None = None,
        memory: RecurrentKind | None = None,
        memory_size: int = 64,
        memory_layers: int = 1,
        action_size: int = 0,
        num_actions: int = 1,
        dueling: bool = False,
        returns: ReturnDistribution | None = None,
        start: Start = "uniform",
    ) -> None:
        super().__init__()
        self.returns = returns
        self.num_critics = num_critics
        self.encoders = nn.ModuleList(encoders)
        self.action_encoders = nn.ModuleList(action_encoders)
        self._takes_action = action_size > 0
        self._feature_size = feature_size(self.encoders[0])
        width = self._feature_size
        if self._takes_action:
            width += feature_size(self.action_encoders[0]) if action_encoders else action_size
        self.layers: nn.Module
        if make_layers is None:
            self.layers = EnsembleMLP(
                num_critics, width, hidden_sizes, None, activation=activation, start=start
            )
            width = self.layers.out_features
        else:
            self.layers = nn.ModuleList(make_layers(width) for _ in range(num_critics))
            width = feature_size(self.layers[0])
        self.memory: RecurrentNet | None = None
        if memory is not None:
            self.memory = RecurrentNet(
                memory, width, memory_size, memory_layers, num_members=num_critics
            )
            width = self.memory.out_features
        num_outputs = 1 if returns is None else returns.num_outputs
        self.values = EnsembleMLP(num_critics, width, (), num_actions * num_outputs, start=start)
        self.baseline = (
            EnsembleMLP(num_critics, width, (), num_outputs, start=start) if dueling else None
        )

    @property
    def is_recurrent(self) -> bool:
        """Whether the critics have memories."""
        return self.memory is not None

    @property
    def state_size(self) -> int:
        """Numbers per environment in the states of all critics; 0 without memory."""
        return 0 if self.memory is None else self.num_critics * self.memory.state_size

    def forward(
        self,
        observation: Seen,
        action: Tensor | None = None,
        noise: Tensor | None = None,
        members: Members = None,
    ) -> Tensor:
        """Evaluate actions by their expected returns.

        Args:
            observation: with any batch axes.
            action: shape `(*batch, A)`; None where all actions are evaluated.
            noise: None; see `outputs`.
            members: which critics answer, C of them below; None asks all. All are computed.

        Returns:
            Shape `(C, *batch)`, or `(C, *batch, n)` for all n actions.
        """
        values = self.expected(self.outputs(observation, action, noise))
        return values if members is None else values[members]

    def outputs(
        self, observation: Seen, action: Tensor | None = None, noise: Tensor | None = None
    ) -> Tensor:
        """Answer what is learned: expected returns, or the numbers of their distributions.

        Args:
            observation: with any batch axes.
            action: shape `(*batch, A)`; None where all actions are evaluated.
            noise: None; these critics have neither noisy layers nor dropout.

        Returns:
            As `forward`, with one more axis at the end where returns have a distribution.
        """
        assert noise is None
        if not isinstance(observation, Remembered):
            return self._outputs(self._inputs(self.encode(observation), action))
        assert self.memory is not None
        inputs = self._inputs(observation.features, action).movedim(0, -3)
        features, _ = self.memory.step(inputs, self._states(observation.state))
        return self._outputs(features.movedim(-3, 0))

    def expected(self, outputs: Tensor) -> Tensor:
        """Return the expected returns of what `outputs` answered, for all or for given actions."""
        return outputs if self.returns is None else self.returns.expected(outputs)

    def step(
        self, observation: Observation, state: Tensor, episode_start: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Evaluate all discrete actions, advancing the memories.

        Args:
            observation: with batch axes `(N,)`, or `(T, N)`.
            state: shape `(N, S)`.
            episode_start: shape of the batch axes, bool: zero the state before these rows.

        Returns:
            Values `(C, *batch, n)`, and the state after each step, `(*batch, S)`.
        """
        features, states = self._run(self.encode(observation), None, state, episode_start)
        return self.expected(self._outputs(features)), states

    def encode(self, observation: Observation) -> Tensor:
        """Compute the observation's features, side by side where each critic has its own."""
        return torch.cat([encoder(observation) for encoder in self.encoders], -1)

    def advance(
        self,
        features: Tensor,
        action: Tensor | None,
        state: Tensor,
        episode_start: Tensor | None,
    ) -> Tensor:
        """Return the states after steps in which actions were taken.

        Args:
            features: shape `(N, F)` or `(T, N, F)`, of `encode`.
            action: shape of the batch axes, and that of a real action; discrete ones are not
                looked at.
            state: shape `(N, S)`, before the first step.
            episode_start: shape of the batch axes, bool: zero the state before these steps; None
                zeroes none.
        """
        return self._run(features, action, state, episode_start)[1]

    def update_normalization(self, observation: Observation, mask: Tensor | None = None) -> None:
        """Take observations into the encoders' running statistics, where they have any."""
        for encoder in self.encoders:
            if isinstance(encoder, NormalizingEncoder):
                encoder.update_normalization(observation, mask)

    @property
    def normalizes(self) -> bool:
        """Whether the encoders have running statistics."""
        return any(normalizes(encoder) for encoder in self.encoders)

    def _inputs(self, features: Tensor, action: Tensor | None) -> Tensor:
        """Compute what goes into each critic's memory, `(C, *batch, H)`."""
        parts = [_split(features, self._feature_size).movedim(-2, 0)]
        if self._takes_action:
            assert action is not None
            encoded = [encoder(action) for encoder in self.action_encoders]
            parts.append(torch.stack(encoded) if encoded else action.unsqueeze(0))
        parts = [part.expand(self.num_critics, *part.shape[1:]) for part in parts]
        x = torch.cat(parts, -1)
        if isinstance(self.layers, nn.ModuleList):
            return torch.stack([layer(own) for layer, own in zip(self.layers, x, strict=True)])
        inputs: Tensor = self.layers(x, is_per_member=True)
        return inputs

    def _run(
        self,
        features: Tensor,
        action: Tensor | None,
        state: Tensor,
        episode_start: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Return the memories' outputs `(C, *batch, H)` and states `(*batch, S)`."""
        assert self.memory is not None
        inputs = self._inputs(features, action).movedim(0, -3)
        outputs, states = self.memory(inputs, self._states(state), episode_start)
        return outputs.movedim(-3, 0), states.transpose(-3, -2).flatten(-2)

    def _states(self, state: Tensor) -> Tensor:
        """Give each critic its own state, `(*T, C, N, S / C)`."""
        return _split(state, state.shape[-1] // self.num_critics).transpose(-3, -2)

    def _outputs(self, features: Tensor) -> Tensor:
        baseline = None if self.baseline is None else self.baseline(features, is_per_member=True)
        values = joined(self.values(features, is_per_member=True), baseline, self.returns)
        return values.squeeze(-1) if self._takes_action else values


def _split(row: Tensor, width: int) -> Tensor:
    """Cut the last axis into pieces of a width, `(*batch, pieces, width)`."""
    return row.reshape(*row.shape[:-1], -1, width)
