r"""Distributions of returns: what critics learn instead of expected values.

Source: categorical: Bellemare et al. 2017, https://arxiv.org/abs/1707.06887, Algorithm 1;
quantiles: Dabney et al. 2018, https://arxiv.org/abs/1710.10044, Eq. (9) and (10).

(1) $\mathcal{L} = -\sum_j m_j \log p_j$ with m the target's probabilities of the atoms $z_j$

(2) $\mathcal{L} = \sum_i \frac{1}{N} \sum_j |\hat\tau_i - [u_{ij} < 0]|\, h(u_{ij})$ with
    $u_{ij} = y_j - \theta_i$, $\hat\tau_i = (2 i - 1) / 2 N$ and h Huber's loss
"""

from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rl_core.batch import ReplayBatch
from rl_core.gradients import masked_mean
from rl_core.returns import n_step_target


class ReturnDistribution(nn.Module, ABC):
    """A distribution of returns as K numbers that a critic has for each action.

    Attributes:
        num_outputs: K.
    """

    num_outputs: int

    @abstractmethod
    def expected(self, outputs: Tensor) -> Tensor:
        """Return the expected return, `(...)`, of a critic's outputs `(..., K)`."""

    @abstractmethod
    def target(self, outputs: Tensor, batch: ReplayBatch, reward: Tensor, gamma: Tensor) -> Tensor:
        """Move a distribution of returns back over a few rewards.

        Args:
            outputs: shape `(N, K)`, of what follows.
            batch: whose ``num_steps`` and ``terminated`` are used.
            reward: shape `(N, n)`, as they are learned from.
            gamma: 0-dim, per step.

        Returns:
            What `errors` compares with, `(N, K)`.
        """

    @abstractmethod
    def errors(self, outputs: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Compare critics' outputs with a target.

        Args:
            outputs: shape `(C, N, K)`.
            target: shape `(N, K)`, from `target`.

        Returns:
            The loss, and the error that priorities go by, which is at least 0; each `(C, N)`.
        """

    def metrics(self, target: Tensor, mask: Tensor) -> dict[str, Tensor]:
        """Return what a target tells of the options, 0-dim, by path; nothing by default.

        Args:
            target: shape `(*batch, K)`.
            mask: shape `(*batch,)`, which samples count.
        """
        return {}


class CategoricalReturns(ReturnDistribution):
    """Probabilities of evenly spaced returns; the outputs are their logits.

    Args:
        num_atoms: how many, at least 2.
        low: the smallest return that can be told.
        high: the largest.

    Attributes:
        atoms: the returns, shape `(K,)`.
    """

    atoms: Tensor

    def __init__(self, num_atoms: int, low: float, high: float) -> None:
        super().__init__()
        self.num_outputs = num_atoms
        self.register_buffer("atoms", torch.linspace(low, high, num_atoms), persistent=False)

    def expected(self, outputs: Tensor) -> Tensor:
        """Weigh the atoms by their probabilities."""
        return outputs.softmax(-1) @ self.atoms

    def target(self, outputs: Tensor, batch: ReplayBatch, reward: Tensor, gamma: Tensor) -> Tensor:
        """Return the probabilities m of the moved distribution, projected onto the atoms."""
        probabilities = outputs.softmax(-1)
        moved = _moved(self.atoms.expand_as(probabilities), batch, reward, gamma)
        return project(probabilities, moved, self.atoms)

    def errors(self, outputs: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Eq. (1); priorities go by the divergence, which is 0 where the target is met."""
        cross_entropy = categorical_cross_entropy(outputs, target)
        entropy = torch.special.entr(target).sum(-1)
        return cross_entropy, (cross_entropy.detach() - entropy).clamp(min=0.0)

    def metrics(self, target: Tensor, mask: Tensor) -> dict[str, Tensor]:
        """Return how probable the outermost atoms are, where returns out of range end up."""
        return {"value/at_range_ends": masked_mean(target[..., 0] + target[..., -1], mask)}


class QuantileReturns(ReturnDistribution):
    """Quantiles of the return at evenly spaced levels.

    Args:
        num_quantiles: how many.

    Attributes:
        levels: the midpoints of even shares of probability, shape `(K,)`.
    """

    levels: Tensor

    def __init__(self, num_quantiles: int) -> None:
        super().__init__()
        self.num_outputs = num_quantiles
        levels = (torch.arange(num_quantiles) + 0.5) / num_quantiles
        self.register_buffer("levels", levels, persistent=False)

    def expected(self, outputs: Tensor) -> Tensor:
        """Average the quantiles."""
        return outputs.mean(-1)

    def target(self, outputs: Tensor, batch: ReplayBatch, reward: Tensor, gamma: Tensor) -> Tensor:
        """Return the moved quantiles y."""
        return _moved(outputs, batch, reward, gamma)

    def errors(self, outputs: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Eq. (2); priorities go by the mean of all |u|."""
        difference = target.unsqueeze(-2) - outputs.unsqueeze(-1)
        loss = quantile_huber_loss(difference, self.levels)
        return loss, difference.detach().abs().mean((-1, -2))


def _moved(returns: Tensor, batch: ReplayBatch, reward: Tensor, gamma: Tensor) -> Tensor:
    """Return the returns `(N, K)` as they are some rewards before."""
    num_steps, terminated = batch.num_steps.unsqueeze(-1), batch.terminated.unsqueeze(-1)
    return n_step_target(reward.unsqueeze(-2), num_steps, terminated, returns, gamma)


def project(probabilities: Tensor, moved: Tensor, atoms: Tensor) -> Tensor:
    """Project a distribution onto evenly spaced atoms, Algorithm 1 of Bellemare et al.

    Args:
        probabilities: shape `(N, K)`.
        moved: the returns that have them, shape `(N, K)`.
        atoms: shape `(K,)`, rising.

    Returns:
        Probabilities of the atoms, shape `(N, K)`; what falls outside goes to the ends.
    """
    spacing = (atoms[-1] - atoms[0]) / (len(atoms) - 1)
    moved = moved.clamp(atoms[0], atoms[-1])
    # An atom takes from every moved atom what linear interpolation gives it.
    distance = (moved.unsqueeze(-2) - atoms.unsqueeze(-1)).abs() / spacing
    share = (1.0 - distance).clamp(min=0.0)
    return (share * probabilities.unsqueeze(-2)).sum(-1)


def categorical_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Eq. (1).

    Args:
        logits: of p, shape `(..., K)`.
        target: m, shape `(..., K)`, a constant.

    Returns:
        Shape `(...)`.
    """
    return -(target * logits.log_softmax(-1)).sum(-1)


def quantile_huber_loss(difference: Tensor, levels: Tensor) -> Tensor:
    """Eq. (2).

    Args:
        difference: u, shape `(..., I, J)`, of each target from each quantile.
        levels: of the quantiles, shape `(I,)`.

    Returns:
        Shape `(...)`, summed over quantiles and averaged over targets.
    """
    huber = F.huber_loss(difference, torch.zeros_like(difference), reduction="none")
    below = (difference.detach() < 0.0).to(levels.dtype)
    share = (levels.unsqueeze(-1) - below).abs()
    return (share * huber).sum(-2).mean(-1)
