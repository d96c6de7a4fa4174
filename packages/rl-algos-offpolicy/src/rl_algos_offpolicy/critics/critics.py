"""Action-value functions: several critics, evaluated as one batched ensemble."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rl_algos_offpolicy.critics.distributional import ReturnDistribution
from rl_algos_offpolicy.critics.noisy import NoisyEnsembleMLP, draw_weight_noise
from rl_algos_offpolicy.memory import Seen
from rl_core.nn.encoder import NormalizingEncoder, feature_size, normalizes
from rl_core.nn.ensemble import EnsembleMLP, Members
from rl_core.nn.init import Start
from rl_core.nn.mlp import Activation
from rl_core.types import Observation


class Critics(nn.Module):
    """Action values of an observation and a real action, or of an observation and every action.

    The critics are independent but for the encoder: where it has parameters, such as convolutions,
    these are computed once for all, and learn from all critics' losses.

    Args:
        encoder: what turns observations into features; it must have ``out_features``.
        num_critics: how many, C.
        hidden_sizes: widths of each critic's layers.
        activation: after each of them.
        action_size: width of a real action, which is an input; 0 for discrete actions.
        num_actions: outputs of each critic; 1 where the action is an input.
        dueling: value and advantages as streams of their own (Wang et al. 2016,
            https://arxiv.org/abs/1511.06581, Eq. 9); each has its own layers.
        returns: what is answered for each discrete action; None for its expected return.
        noisy_sigma: σ₀ of noisy layers; None for plain ones.
        layer_norm: normalise hidden layers; not with noisy ones.
        dropout: of hidden layers' outputs; not with noisy ones.
        start: of layers that are not noisy.

    Attributes:
        noise_size: K, how many numbers one critic's noisy weights or dropout take; 0 without.
    """

    is_recurrent = False

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
        returns: ReturnDistribution | None = None,
        noisy_sigma: float | None = None,
        layer_norm: bool = False,
        dropout: float = 0.0,
        start: Start = "uniform",
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.returns = returns
        self._takes_action = action_size > 0
        self._is_scalar = num_actions == 1 and action_size > 0
        width = feature_size(encoder) + action_size
        num_outputs = 1 if returns is None else returns.num_outputs

        def network(out_features: int) -> EnsembleMLP | NoisyEnsembleMLP:
            sizes = num_critics, width, hidden_sizes, out_features
            if noisy_sigma is None:
                return EnsembleMLP(
                    *sizes,
                    activation=activation,
                    layer_norm=layer_norm,
                    dropout=dropout,
                    start=start,
                )
            return NoisyEnsembleMLP(*sizes, activation=activation, initial_sigma=noisy_sigma)

        self.values = network(num_actions * num_outputs)
        self.baseline = network(num_outputs) if dueling else None
        self._noise_sizes = [
            part.noise_size for part in (self.values, self.baseline) if part is not None
        ]
        self.noise_size = sum(self._noise_sizes)

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
            noise: see `outputs`.
            members: see `outputs`.

        Returns:
            Shape `(C, *batch)`, or `(C, *batch, n)` for all n actions.
        """
        return self.expected(self.outputs(observation, action, noise, members))

    def outputs(
        self,
        observation: Seen,
        action: Tensor | None = None,
        noise: Tensor | None = None,
        members: Members = None,
    ) -> Tensor:
        """Answer what is learned: expected returns, or the numbers of their distributions.

        Args:
            observation: with any batch axes.
            action: shape `(*batch, A)`; None where all actions are evaluated.
            noise: of noisy layers, shape `(C, K)`, or `(*batch, C, K)` for weights of each row's
                own; None takes the mean weights. Of dropout, shape `(*batch, C, K)`; None drops
                nothing.
            members: which critics answer, C of them where the shapes say C; None asks all. Not
                for noisy layers.

        Returns:
            As `forward`, with one more axis at the end where returns have a distribution.
        """
        features = self.encoder(observation)
        if self._takes_action:
            assert action is not None
            features = torch.cat([features, action], -1)
        own, common = self._inputs(features, noise)
        some = {} if members is None else {"members": members}
        baseline = None if self.baseline is None else self.baseline(*common, **some)
        values = joined(self.values(*own, **some), baseline, self.returns)
        return values.squeeze(-1) if self._is_scalar else values

    def expected(self, outputs: Tensor) -> Tensor:
        """Return the expected returns of what `outputs` answered, for all or for given actions."""
        return outputs if self.returns is None else self.returns.expected(outputs)

    def draw_noise(self, batch_shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Draw the noise of noisy layers, or of dropout, shape `(*batch_shape, C, K)`."""
        shape = (*batch_shape, self.values.num_members, self.noise_size)
        if isinstance(self.values, NoisyEnsembleMLP):
            return draw_weight_noise(shape, generator)
        return torch.rand(shape, generator=generator, device=generator.device)

    def _inputs(
        self, features: Tensor, noise: Tensor | None
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Return what the networks of values and baseline are called with."""
        if noise is None:
            return (features,), (features,)
        own, *common = torch.split(noise, self._noise_sizes, -1)
        return (features, own), (features, *common)

    def update_normalization(self, observation: Observation, mask: Tensor | None = None) -> None:
        """Take observations into the encoder's running statistics, where it has any."""
        if isinstance(self.encoder, NormalizingEncoder):
            self.encoder.update_normalization(observation, mask)

    @property
    def normalizes(self) -> bool:
        """Whether the encoder has running statistics."""
        return normalizes(self.encoder)


def joined(values: Tensor, baseline: Tensor | None, returns: ReturnDistribution | None) -> Tensor:
    """Put together what networks answer for all actions, and for the state where they duel.

    Args:
        values: shape `(C, *batch, n)`, or `(C, *batch, n * K)` for K numbers of distributions.
        baseline: shape `(C, *batch, 1)`, or `(C, *batch, K)`; None without dueling.
        returns: whose numbers they are; None for expected returns.

    Returns:
        Shape `(C, *batch, n)`, or `(C, *batch, n, K)`.
    """
    if returns is None:
        if baseline is None:
            return values
        return baseline + values - values.mean(-1, keepdim=True)
    values = values.reshape(*values.shape[:-1], -1, returns.num_outputs)
    if baseline is None:
        return values
    return baseline.unsqueeze(-2) + values - values.mean(-2, keepdim=True)


def of_action(outputs: Tensor, action: Tensor) -> Tensor:
    """Pick what critics answer for given discrete actions.

    Args:
        outputs: shape `(C, *batch, n)`, with any axes after it.
        action: shape `(*batch)`, int.

    Returns:
        The same without the axis of actions.
    """
    dim = 1 + action.dim()
    index = action.reshape(1, *action.shape, *[1] * (outputs.dim() - dim))
    return torch.take_along_dim(outputs, index, dim).squeeze(dim)
