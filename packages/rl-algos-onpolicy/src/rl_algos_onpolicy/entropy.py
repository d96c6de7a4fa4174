"""What an entropy coefficient does: reward entropy, add it to the objective, or nothing.

Source: Levine 2018, https://arxiv.org/abs/1805.00909, for entropy as a reward.
"""

from typing import Literal, Protocol, get_args

import torch.nn.functional as F
from torch import Tensor

from rl_core.algorithm import Scheduled
from rl_core.batch import masked_mean
from rl_core.config import check_choice
from rl_core.errors import ConfigError
from rl_core.nn.distributions import Distribution

EntropyMethod = Literal["regularized", "max", "no_entropy"]
"""Add the mean entropy to the objective, each step's entropy to its reward, or neither."""


class EntropyOptions(Protocol):
    """The options of a config that say what becomes of the policy's entropy."""

    @property
    def entropy_method(self) -> EntropyMethod:
        """Where the entropy goes."""

    @property
    def entropy_coef(self) -> Scheduled:
        """Its coefficient."""

    @property
    def use_softplus_entropy(self) -> bool:
        """Whether softplus keeps it positive."""

    @property
    def stop_entropy_gradient(self) -> bool:
        """Whether it is a constant."""


def check_entropy(options: EntropyOptions, *, normalizes: bool, off: object = False) -> None:
    """Refuse options of the entropy that contradict each other.

    Args:
        options: of an algorithm.
        normalizes: whether it normalises advantages.
        off: its ``normalize_advantage`` that does not.

    Raises:
        ConfigError: saying which two.
    """
    check_choice(options, "entropy_method", get_args(EntropyMethod))
    method = options.entropy_method
    for name in ("use_softplus_entropy", "stop_entropy_gradient"):
        if method == "no_entropy" and getattr(options, name):
            raise ConfigError(
                f"{name} has no effect with entropy_method='no_entropy'; leave it out, or use "
                "'regularized' or 'max'"
            )
    if method == "max" and normalizes:
        raise ConfigError(
            "entropy_method='max' rewards entropy, which normalised advantages would take out "
            f"again; set normalize_advantage={off!r}, or use 'regularized'"
        )
    if method == "max" and not options.stop_entropy_gradient:
        raise ConfigError(
            "entropy_method='max' rewards entropy, and a reward has no gradient; set "
            "stop_entropy_gradient=True, or use 'regularized'"
        )
    if method == "regularized" and options.stop_entropy_gradient and options.entropy_coef != 0.0:
        raise ConfigError(
            f"entropy_coef={options.entropy_coef} has no effect on a policy that "
            "stop_entropy_gradient=True keeps from the entropy; leave one of them out, or use "
            "entropy_method='max'"
        )
    if method == "no_entropy" and options.entropy_coef != 0.0:
        raise ConfigError(
            f"entropy_coef={options.entropy_coef} has no effect with entropy_method='no_entropy'; "
            "leave it out, or use 'regularized' or 'max'"
        )


def shaped_entropy(options: EntropyOptions, entropy: Tensor) -> Tensor:
    """Return each step's entropy as rewards and losses take it.

    Args:
        options: of an algorithm.
        entropy: of the policy's distributions.
    """
    if options.stop_entropy_gradient:
        entropy = entropy.detach()
    return F.softplus(entropy) if options.use_softplus_entropy else entropy


def entropy_bonus(
    options: EntropyOptions, coefficient: Tensor, distribution: Distribution
) -> Tensor | None:
    """Return what is added to each step's reward; None where nothing is.

    Args:
        options: of an algorithm.
        coefficient: the present one, 0-dim.
        distribution: of the policy.
    """
    if options.entropy_method != "max":
        return None
    return coefficient * shaped_entropy(options, distribution.entropy())


def entropy_loss(
    options: EntropyOptions, coefficient: Tensor, distribution: Distribution, mask: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the loss's entropy term, and the mean entropy itself for the log, both 0-dim.

    Args:
        options: of an algorithm.
        coefficient: the present one, 0-dim.
        distribution: of the policy.
        mask: which samples count.
    """
    entropy = distribution.entropy()
    mean = masked_mean(entropy, mask)
    if options.entropy_method != "regularized":
        return mean.new_zeros(()), mean
    shaped = shaped_entropy(options, entropy)
    return -coefficient * (mean if shaped is entropy else masked_mean(shaped, mask)), mean
