r"""Auxiliary tasks: predict rewards or returns from observations.

(1) $L = c\, \frac{\sum_t m_t \tfrac12 (f_\psi(s_t) - y_t)^2}{\sum_t m_t}$, where
    $m_t = 1$ for targets $y_t \ne 0$ and $1 - p$ for $y_t = 0$

Sparse targets are mostly zero, and p leaves a share of these out. They are weighed instead of
drawn, which is the same in expectation and needs no random numbers.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, final

import torch
from torch import Tensor, nn

from rl_core.actor import Actor
from rl_core.algorithm import PolicyLossAddOn, PreparedRollout
from rl_core.batch import ReplayBatch, Rollout, RolloutBatch
from rl_core.config import Count, Fraction, NonNegative, checked_arguments
from rl_core.nn.distributions import Distribution
from rl_core.nn.mlp import MLP
from rl_core.nn.torso import ObservationEncoder

_REWARD = "predicted_reward"
"""The rewards of a rollout, among the extras of its batches."""


def sparse_squared_error(
    prediction: Tensor, target: Tensor, mask: Tensor, masked_zero_ratio: float
) -> Tensor:
    """Eq. (1) without c, 0-dim.

    Args:
        prediction: shape `(*batch,)`.
        target: y, shape `(*batch,)`.
        mask: shape `(*batch,)`, which samples count.
        masked_zero_ratio: p, in [0, 1].
    """
    weight = mask * torch.where(target == 0.0, 1.0 - masked_zero_ratio, 1.0)
    error = 0.5 * (prediction - target).square()
    return (weight * error).sum() / weight.sum().clamp(min=1e-8)


class Predictor(PolicyLossAddOn):
    """Base of the auxiliary tasks: a network on observations with one output.

    Args:
        hidden_sizes: widths of the network's layers.
        loss_weight: c of Eq. (1), at least 0.
        masked_zero_ratio: p of Eq. (1), in [0, 1].

    Attributes:
        metric: what the error is called among the metrics.

    Raises:
        ConfigError: when a number is out of range.
    """

    metric: ClassVar[str]

    @checked_arguments()
    def __init__(
        self,
        hidden_sizes: Sequence[Count] = (64, 64),
        loss_weight: NonNegative = 1.0,
        masked_zero_ratio: Fraction = 0.0,
    ) -> None:
        super().__init__()
        self.hidden_sizes = tuple(hidden_sizes)
        self.loss_weight = loss_weight
        self.masked_zero_ratio = masked_zero_ratio

    def setup(self, actor: Actor, device: torch.device) -> None:
        """Make the network."""
        encoder = ObservationEncoder(actor.observation_space)
        mlp = MLP(encoder.out_features, self.hidden_sizes, 1)
        self.network = nn.Sequential(encoder, mlp)
        self.to(device)

    def compute_loss_term(
        self,
        batch: RolloutBatch | ReplayBatch,
        distribution: Distribution,
        info: Mapping[str, Tensor],
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Eq. (1)."""
        error = sparse_squared_error(
            self.network(batch.observation).squeeze(-1),
            self.target(batch),
            batch.mask,
            self.masked_zero_ratio,
        )
        return self.loss_weight * error, {self.metric: error}

    @abstractmethod
    def target(self, batch: RolloutBatch | ReplayBatch) -> Tensor:
        """Return y of Eq. (1), of the batch's shape."""


@final
class RewardPredictor(Predictor):
    """Predict the reward of a step from its observation.

    Args:
        hidden_sizes: widths of the network's layers.
        loss_weight: c of Eq. (1), at least 0.
        masked_zero_ratio: p of Eq. (1), in [0, 1].

    Attributes:
        error_threshold: the largest error in any rollout so far, 0-dim; off-policy it stays 0.

    Raises:
        ConfigError: when a number is out of range.
    """

    metric = "loss/reward_predictor"
    error_threshold: Tensor

    def setup(self, actor: Actor, device: torch.device) -> None:
        """Make the network, and room for the largest error."""
        self.register_buffer("error_threshold", torch.zeros(()))
        super().setup(actor, device)

    @torch.no_grad()
    def prepare(self, rollout: Rollout, generator: torch.Generator) -> PreparedRollout:
        """Hand the rewards to the batches, and look for the largest error."""
        error = (self.network(rollout.observation).squeeze(-1) - rollout.reward).abs()
        largest = (error * rollout.valid).amax()
        self.error_threshold.copy_(torch.maximum(self.error_threshold, largest))
        metrics = {"reward_predictor/error_threshold": self.error_threshold}
        return PreparedRollout(rollout, {_REWARD: rollout.reward}, metrics)

    def target(self, batch: RolloutBatch | ReplayBatch) -> Tensor:
        """Return the reward; of several steps' rewards the first."""
        return batch.reward[..., 0] if isinstance(batch, ReplayBatch) else batch.extras[_REWARD]


@final
class ReturnPredictor(Predictor):
    """Predict the return that follows an observation: the algorithm's value target.

    Replayed transitions carry no returns, so that off-policy algorithms refuse it.

    Args:
        hidden_sizes: widths of the network's layers.
        loss_weight: c of Eq. (1), at least 0.
        masked_zero_ratio: p of Eq. (1), in [0, 1].

    Raises:
        ConfigError: when a number is out of range.
    """

    metric = "loss/return_predictor"
    batch_types: ClassVar[tuple[type, ...]] = (RolloutBatch,)

    def target(self, batch: RolloutBatch | ReplayBatch) -> Tensor:
        """Return the value target."""
        assert isinstance(batch, RolloutBatch)
        return batch.value_target
