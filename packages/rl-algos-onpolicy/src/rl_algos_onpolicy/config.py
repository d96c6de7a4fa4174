"""What all on-policy algorithms can be told."""

from dataclasses import dataclass, field
from typing import Protocol, get_args

from rl_algos_onpolicy.entropy import EntropyMethod
from rl_core.algorithm import Scheduled
from rl_core.config import check_choice, check_owners, check_ranges
from rl_core.errors import ConfigError
from rl_core.gradients import OptimizerConfig
from rl_core.returns import AdvantageEstimator, ValueTarget


@dataclass(frozen=True, kw_only=True, slots=True)
class OnPolicyConfig:
    """Options that on-policy algorithms share.

    Attributes:
        gamma: discount per step, in [0, 1].
        gae_lambda: bias against variance of advantages by ``gae`` and ``vtrace``, in [0, 1].
        advantage_estimator: how advantages are estimated; see `rl_core.returns.estimators`.
        value_target: what the value function learns.
        positive_advantage: subtract the smallest advantage, after they are standardised.
        entropy_method: ``regularized`` adds the mean entropy to the objective, ``max`` each
            step's to its reward, ``no_entropy`` neither.
        entropy_coef: of the entropy.
        use_softplus_entropy: softplus keeps entropies positive.
        stop_entropy_gradient: entropy is a constant; ``max`` asks for it.
        max_grad_norm: bound of the gradient's norm; None does not bound it.
        optimizer: the update rule.
        test_every: updates between evaluations; None evaluates only at the end.
        num_test_episodes: episodes per evaluation.

    Raises:
        ConfigError: when a value is out of range, or has no effect beside another one.
    """

    gamma: Scheduled = 0.99
    gae_lambda: Scheduled = 0.95
    advantage_estimator: AdvantageEstimator = "gae"
    value_target: ValueTarget = "advantage"
    positive_advantage: bool = False
    entropy_method: EntropyMethod = "regularized"
    entropy_coef: Scheduled = 0.0
    use_softplus_entropy: bool = False
    stop_entropy_gradient: bool = False
    max_grad_norm: Scheduled | None = None
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    test_every: int | None = None
    num_test_episodes: int = 5

    def __post_init__(self) -> None:
        check_ranges(
            self,
            unit=("gamma", "gae_lambda"),
            positive=("max_grad_norm",),
            not_negative=("entropy_coef",),
            counts=("test_every", "num_test_episodes"),
        )
        check_choice(self, "advantage_estimator", get_args(AdvantageEstimator))
        check_choice(self, "value_target", get_args(ValueTarget))
        check_owners(self, {"gae_lambda": ("advantage_estimator", ("gae", "vtrace"))})


class MinibatchOptions(Protocol):
    """The options of a config that say how a rollout is cut."""

    @property
    def num_mini_batch(self) -> int | None:
        """Into how many minibatches."""

    @property
    def mini_batch_size(self) -> int | None:
        """Into minibatches of how many samples."""


def check_minibatches(options: MinibatchOptions) -> None:
    """Make sure that a rollout is cut in just one way.

    Args:
        options: of an algorithm.

    Raises:
        ConfigError: when none or both are given.
    """
    if (options.num_mini_batch is None) == (options.mini_batch_size is None):
        raise ConfigError(
            "algorithm: give just one of num_mini_batch and mini_batch_size, and None for the "
            f"other; got {options.num_mini_batch} and {options.mini_batch_size}"
        )
