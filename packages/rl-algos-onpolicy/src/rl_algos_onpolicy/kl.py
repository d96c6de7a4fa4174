r"""The KL divergence from the policy that collected, its penalty, and how the penalty adapts.

Source: Schulman et al. 2017, https://arxiv.org/abs/1707.06347, Section 4.

(1) $KL = \mathbb{E}_t[KL(\pi_{\theta_{old}}(\cdot|s_t) \| \pi_\theta(\cdot|s_t))]$

(2) $\beta\, KL + 50 \max(0, KL - 2 d)^2$ for a penalty $\beta$ and a target $d$

(3) after each update $\beta \leftarrow \beta / 2$ if $KL < d / 1.5$, $2 \beta$ if $KL > 1.5 d$,
    kept in $[10^{-6}, 10^6]$

The last term of (2) is that of the paper's first implementations.
"""

import torch
from torch import Tensor

from rl_core.batch import RolloutBatch
from rl_core.gradients import masked_mean
from rl_core.nn.distributions import Distribution, from_columns


def mean_kl(batch: RolloutBatch, now: Distribution) -> Tensor:
    """Eq. (1), 0-dim, over the samples that count.

    Args:
        batch: with the behavior's policy among its extras.
        now: the present policy at the batch's observations.
    """
    return masked_mean(from_columns(now, batch.extras).kl_divergence(now), batch.mask)


def kl_penalty_term(kl: Tensor, penalty: Tensor, target: Tensor) -> Tensor:
    """Eq. (2).

    Args:
        kl: 0-dim, the mean divergence.
        penalty: β, 0-dim.
        target: d, 0-dim.
    """
    return penalty * kl + 50.0 * (kl - 2.0 * target).clamp(min=0.0).square()


def adapted_penalty(penalty: Tensor, kl: Tensor, target: Tensor) -> Tensor:
    """Eq. (3): the penalty of the next update, kept within 1e-6 and 1e6, all 0-dim.

    Args:
        penalty: β of this update.
        kl: the mean divergence after it.
        target: d.
    """
    penalty = torch.where(kl < target / 1.5, penalty / 2.0, penalty)
    penalty = torch.where(kl > 1.5 * target, penalty * 2.0, penalty)
    return penalty.clamp(1e-6, 1e6)
