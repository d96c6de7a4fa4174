"""What all off-policy algorithms can be told."""

from dataclasses import dataclass, field

from rl_core.algorithm import UpdateSchedule
from rl_core.config import (
    Config,
    Count,
    NonNegativeInt,
    ScheduledFraction,
    ScheduledPositive,
)
from rl_core.gradients import OptimizerConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class OffPolicyConfig(Config):
    """Options that off-policy algorithms share.

    Attributes:
        gamma: discount per step.
        reward_scale: factor on rewards that are learned from.
        max_grad_norm: bound of each gradient's norm; None does not bound it.
        optimizer: the update rule.
        start_steps: environment transitions with uniformly random actions first.
        update_after: no update before this many environment transitions, random ones included.
        update_every: environment transitions between updates, rounded up to whole steps of all
            environments.
        num_mini_batch: gradient steps per update.
        keep_ratio: take ``num_mini_batch`` gradient steps for every ``update_every`` transitions
            also where several environments bring more of them at a time, rounded up; otherwise
            an update takes no more steps for them.
        mini_batch_size: samples per gradient step.
        test_every: updates between evaluations; None evaluates only at the end.
        num_test_episodes: episodes per evaluation.

    Raises:
        ConfigError: when a value is out of range.
    """

    gamma: ScheduledFraction = 0.99
    reward_scale: ScheduledPositive = 1.0
    max_grad_norm: ScheduledPositive | None = None
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    start_steps: NonNegativeInt = 0
    update_after: NonNegativeInt = 1000
    update_every: Count = 1
    num_mini_batch: Count = 1
    keep_ratio: bool = False
    mini_batch_size: Count = 256
    test_every: Count | None = None
    num_test_episodes: Count = 5

    @property
    def schedule(self) -> UpdateSchedule:
        """Some gradient steps after every few environment transitions."""
        return UpdateSchedule.of(self)
