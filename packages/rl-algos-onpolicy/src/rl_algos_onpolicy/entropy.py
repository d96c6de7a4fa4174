"""What an entropy coefficient does: reward entropy, add it to the objective, or nothing.

Source: Levine 2018, https://arxiv.org/abs/1805.00909, for entropy as a reward.
"""

import torch.nn.functional as F
from torch import Tensor

from rl_algos_onpolicy.config import OnPolicyConfig
from rl_core.gradients import masked_mean
from rl_core.nn.distributions import Distribution


def _shaped(config: OnPolicyConfig, entropy: Tensor) -> Tensor:
    """Return each step's entropy as rewards and losses take it.

    Args:
        config: options of an algorithm.
        entropy: of the policy's distributions.
    """
    if config.stop_entropy_gradient:
        entropy = entropy.detach()
    return F.softplus(entropy) if config.use_softplus_entropy else entropy


def entropy_bonus(
    config: OnPolicyConfig, coefficient: Tensor, distribution: Distribution
) -> Tensor | None:
    """Return what is added to each step's reward; None where nothing is.

    Args:
        config: options of an algorithm.
        coefficient: the present one, 0-dim.
        distribution: of the policy.
    """
    if config.entropy_method != "max":
        return None
    return coefficient * _shaped(config, distribution.entropy())


def entropy_loss(
    config: OnPolicyConfig, coefficient: Tensor, distribution: Distribution, mask: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the loss's entropy term, and the mean entropy itself for the log, both 0-dim.

    Args:
        config: options of an algorithm.
        coefficient: the present one, 0-dim.
        distribution: of the policy.
        mask: which samples count.
    """
    entropy = distribution.entropy()
    mean = masked_mean(entropy, mask)
    if config.entropy_method != "regularized":
        return mean.new_zeros(()), mean
    shaped = _shaped(config, entropy)
    return -coefficient * (mean if shaped is entropy else masked_mean(shaped, mask)), mean
