"""Options of MAML."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from rl_core.config import (
    Config,
    Count,
    Positive,
    ScheduledFraction,
    ScheduledNonNegative,
    ScheduledPositive,
    as_schedule,
)
from rl_core.errors import ConfigError
from rl_core.gradients import OptimizerConfig
from rl_core.types import Json


@dataclass(frozen=True, kw_only=True, slots=True)
class MAMLConfig(Config):
    """Options that all forms of MAML share.

    Attributes:
        inner_algorithm: registered name of the on-policy algorithm whose loss adapts the policy.
        inner_options: its options; those that its loss does not read are refused.
        inner_lr: step size of the adaptation.
        learn_inner_lr: learn a step size for each parameter, starting at ``inner_lr`` (Meta-SGD);
            one may become negative.
        first_order: leave second derivatives out of the meta-gradient.
        num_grad_updates: steps of adaptation, each with a rollout of its own.
        meta_batch_size: tasks per meta-update; it divides the number of environments.
        gamma: discount per step.
        gae_lambda: trades bias against variance in advantages.
        normalize_advantage: give each task's advantages a mean of 0 and a standard deviation of 1.
        baseline_ridge: regularization of the linear baseline.
        num_exploration_episodes: episodes for each adaptation step in evaluations.
        num_judged_episodes: episodes that each policy of a task is judged by in evaluations.

    Raises:
        ConfigError: when a value is out of range, or ``inner_lr`` is a schedule though step sizes
            are learned.
    """

    inner_algorithm: str = "vpg"
    inner_options: Mapping[str, Json] = field(default_factory=dict)
    inner_lr: ScheduledNonNegative = 0.1
    learn_inner_lr: bool = False
    first_order: bool = False
    num_grad_updates: Count = 1
    meta_batch_size: Count = 20
    gamma: ScheduledFraction = 0.99
    gae_lambda: ScheduledFraction = 1.0
    normalize_advantage: bool = True
    baseline_ridge: Positive = 1e-5
    num_exploration_episodes: Count = 10
    num_judged_episodes: Count = 1

    def __post_init__(self) -> None:
        Config.__post_init__(self)
        if self.learn_inner_lr and not as_schedule(self.inner_lr).is_constant:
            raise ConfigError(
                f"inner_lr={self.inner_lr} changes, but learn_inner_lr learns step sizes from "
                "where it begins; give one number"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class MAMLVPGConfig(MAMLConfig):
    """Options of `MAMLVPG`, besides those of `MAMLConfig`.

    Attributes:
        outer_lr: learning rate of the meta-update.
        num_epochs: gradient steps per meta-update, on the same rollouts.
        max_grad_norm: bound of the meta-gradient's norm; None does not bound it.
        optimizer: the update rule of the meta-update.
    """

    outer_lr: ScheduledNonNegative = 1e-3
    num_epochs: Count = 1
    max_grad_norm: ScheduledPositive | None = None
    optimizer: OptimizerConfig = field(default_factory=lambda: OptimizerConfig(eps=1e-5))


@dataclass(frozen=True, kw_only=True, slots=True)
class MAMLPPOConfig(MAMLVPGConfig):
    """Options of `MAMLPPO`: those of `MAMLVPGConfig`, with PPO's loss inside and outside."""

    inner_algorithm: str = "ppo"
    num_epochs: Count = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class MAMLTRPOConfig(MAMLConfig):
    """Options of `MAMLTRPO`, besides those of `MAMLConfig`.

    Attributes:
        max_kl: bound of the mean divergence of the adapted policies.
        cg_steps: iterations of the conjugate gradients.
        cg_damping: multiple of the identity that is added to the divergence's Hessian.
        num_backtracks: steps that the line search tries.
    """

    max_kl: ScheduledPositive = 0.01
    cg_steps: Count = 10
    cg_damping: Positive = 1e-5
    num_backtracks: Count = 15
