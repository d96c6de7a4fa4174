"""What action values are learned towards, and where that stops or bootstraps.

Source: Sutton and Barto 2018, *Reinforcement Learning*, section 7.1.
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
