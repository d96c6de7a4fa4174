"""Errors of action values, as all off-policy algorithms measure them."""

from torch import Tensor

from rl_core.batch import ReplayBatch, masked_mean


def weighted_mean(values: Tensor, batch: ReplayBatch) -> Tensor:
    """Average per-sample values by importance, over the samples that count.

    Args:
        values: shape `(N,)`.
        batch: whose weights and mask are used.

    Returns:
        0-dim.
    """
    return masked_mean(values * batch.weight, batch.mask)


def squared_error_loss(values: Tensor, target: Tensor, batch: ReplayBatch) -> Tensor:
    """Sum the critics' mean squared errors, halved.

    Args:
        values: shape `(C, N)`, of each critic.
        target: shape `(N,)`.
        batch: whose weights and mask are used.

    Returns:
        0-dim.
    """
    return 0.5 * weighted_mean((values - target).square().sum(0), batch)


def absolute_error(values: Tensor, target: Tensor) -> Tensor:
    """Average the critics' absolute errors per sample, for priorities.

    Args:
        values: shape `(C, N)`.
        target: shape `(N,)`.

    Returns:
        Shape `(N,)`.
    """
    return (values - target).abs().mean(0)
