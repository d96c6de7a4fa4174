"""What action values are learned towards.

Source: Sutton and Barto 2018, *Reinforcement Learning*, section 7.1; van Hasselt et al. 2016,
https://arxiv.org/abs/1509.06461, for the two networks of a target.
"""

import torch
from torch import Tensor


def n_step_target(
    reward: Tensor, num_steps: Tensor, terminated: Tensor, next_value: Tensor, gamma: Tensor
) -> Tensor:
    r"""Estimate action values from a few rewards and the value of what follows.

    $y = \sum_{k<m} \gamma^k r_k + \gamma^m (1 - d) V(s_m)$, where m steps were taken and d says
    whether the episode terminated there. A truncated episode goes on in its value.

    Args:
        reward: shape `(..., n)`, zeros beyond ``num_steps``.
        num_steps: m, shape `(...)`, int, from 1 to n.
        terminated: d, shape `(...)`, bool.
        next_value: shape `(...)`, of what follows; any finite number where terminated.
        gamma: 0-dim, per step.

    Returns:
        Shape `(...)`.
    """
    n = reward.shape[-1]
    powers = gamma ** torch.arange(n, dtype=reward.dtype, device=reward.device)
    goes_on = (~terminated).to(next_value.dtype)
    bootstrap = gamma ** num_steps.to(next_value.dtype) * goes_on * next_value
    target: Tensor = (reward * powers).sum(-1) + bootstrap
    return target


def n_step_distribution(
    probabilities: Tensor,
    atoms: Tensor,
    reward: Tensor,
    num_steps: Tensor,
    terminated: Tensor,
    gamma: Tensor,
) -> Tensor:
    """Move a distribution of returns back over a few rewards and project it onto its atoms.

    Source: Bellemare et al. 2017, https://arxiv.org/abs/1707.06887, Algorithm 1.

    Args:
        probabilities: shape `(N, A)`, of the return of what follows.
        atoms: shape `(A,)`, evenly spaced, rising.
        reward: shape `(N, n)`, zeros beyond ``num_steps``.
        num_steps: shape `(N,)`, int, from 1 to n.
        terminated: shape `(N,)`, bool.
        gamma: 0-dim, per step.

    Returns:
        Probabilities of the same atoms, shape `(N, A)`; what falls outside goes to the ends.
    """
    low, high = atoms[0], atoms[-1]
    spacing = (high - low) / (len(atoms) - 1)
    value = atoms.expand_as(probabilities)
    moved = n_step_target(
        reward.unsqueeze(-2),
        num_steps.unsqueeze(-1),
        terminated.unsqueeze(-1),
        value,
        gamma,
    ).clamp(low, high)
    # An atom takes from every moved atom what linear interpolation gives it.
    distance = (moved.unsqueeze(-2) - atoms.unsqueeze(-1)).abs() / spacing
    share = (1.0 - distance).clamp(min=0.0)
    projected: Tensor = (share * probabilities.unsqueeze(-2)).sum(-1)
    return projected
