"""Targets and errors of action values, as all off-policy algorithms measure them."""

from torch import Tensor

from rl_core.batch import ReplayBatch, masked_mean
from rl_core.gradients import HyperParameters
from rl_core.returns import n_step_target


def bootstrapped_target(batch: ReplayBatch, next_value: Tensor, hyper: HyperParameters) -> Tensor:
    r"""Return $y = \sum_{k<m} \gamma^k r_k + \gamma^m (1 - d) V(s_m)$, shape `(N,)`.

    Args:
        batch: with the rewards r of m steps, and whether they terminated, d.
        next_value: V, shape `(N,)`, of what follows.
        hyper: with ``gamma``, and what `scaled_reward` needs.
    """
    reward = scaled_reward(batch, hyper)
    return n_step_target(reward, batch.num_steps, batch.terminated, next_value, hyper["gamma"])


def scaled_reward(batch: ReplayBatch, hyper: HyperParameters) -> Tensor:
    """Return the batch's rewards as they are learned from, `(N, n)`: scaled, and then clipped.

    Args:
        batch: with the rewards.
        hyper: with ``reward_scale`` and, where rewards are clipped, ``clip_reward``.
    """
    reward = batch.reward * hyper["reward_scale"]
    if "clip_reward" not in hyper:
        return reward
    bound = hyper["clip_reward"]
    return reward.clamp(-bound, bound)


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
