"""Options that all off-policy algorithms share, and their default recipe."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from rl_core.algorithm import DefaultRecipe
from rl_core.config import (
    ComponentSpec,
    Config,
    Count,
    NonNegativeInt,
    ScheduledFraction,
    ScheduledPositive,
)
from rl_core.gradients import OptimizerConfig
from rl_core.types import Json


@dataclass(frozen=True, kw_only=True, slots=True)
class OffPolicyConfig(Config):
    """Options that off-policy algorithms share.

    Attributes:
        gamma: discount factor per step.
        reward_scale: factor on rewards that are learned from.
        max_grad_norm: upper bound of each gradient's norm; None disables it.
        optimizer: optimizer and its options.
        start_steps: environment transitions with uniformly random actions before the policy acts.
        update_after: no update before this many environment transitions, random ones included.
        update_every: environment transitions between updates, rounded up to whole steps of all
            environments.
        num_minibatches: gradient steps per update.
        keep_ratio: take ``num_minibatches`` gradient steps for every ``update_every`` transitions
            also where several environments bring more of them at a time; fractions of a step are
            carried over to the next update. Otherwise an update takes no more steps for them.
        minibatch_size: samples per gradient step.

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
    num_minibatches: Count = 1
    keep_ratio: bool = False
    minibatch_size: Count = 256


def off_policy_recipe(
    actor: Mapping[str, Json],
    *,
    algorithm: Mapping[str, Json] | None = None,
    storage: Mapping[str, Json] | None = None,
) -> DefaultRecipe:
    """Compose an `OffPolicyActor` with a `ReplayBuffer` and one environment.

    Recurrent actors get sequences, and larger minibatches, since a sequence's transitions are
    much alike: 640 are 32 of the usual sequences, which learn from 20 each.

    Args:
        actor: options of the actor.
        algorithm: options that differ from the config's defaults.
        storage: options of the storage.
    """
    return DefaultRecipe(
        actor=ComponentSpec("actor", "off-policy", actor),
        storage=ComponentSpec("storage", "replay", storage or {}),
        env={"num_envs": 1},
        algorithm=algorithm or {},
        recurrent={"storage": {"sequences": {}}, "algorithm": {"minibatch_size": 640}},
    )
