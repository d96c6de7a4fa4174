"""Options of soft actor-critic, and how they go with an actor."""

from dataclasses import dataclass
from typing import Annotated, Literal

from gymnasium import spaces

from rl_algos_offpolicy.actor import OffPolicyActor, check_policy
from rl_algos_offpolicy.config import OffPolicyConfig
from rl_core.config import (
    Count,
    Needs,
    NonNegative,
    NonNegativeInt,
    ScheduledFraction,
    ScheduledNonNegative,
)
from rl_core.errors import ConfigError

PolicyValue = Literal["min", "mean"]
"""Which value of several critics the policy maximizes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SACConfig(OffPolicyConfig):
    """Options of `SAC`; the equations are those of `rl_algos_offpolicy.sac`.

    Attributes:
        policy_learning_rate: learning rate of the policy.
        critic_learning_rate: learning rate of the critics.
        temperature_learning_rate: learning rate of the temperature's logarithm.
        tau: Polyak coefficient of the target critics: how far they move in each step.
        initial_temperature: initial temperature, the weight of the entropy (α); it stays where it
            is not learned.
        learn_temperature: adapt the temperature so that the entropy nears ``target_entropy``.
        target_entropy: entropy that the temperature aims at (H̄); None takes minus the number of
            real actions, or 0.89 of the largest entropy of discrete ones.
        temporal_smoothness: weight of the distance between successive actions (CAPS, λ_T); needs a
            storage of single steps.
        spatial_smoothness: weight of the distance between actions at nearby observations (CAPS,
            λ_S).
        smoothness_std: standard deviation of nearby observations from the batch's, in units of the
            observation (σ).
        num_target_critics: number of critics drawn for each target (REDQ); None takes all.
        policy_value: value of several critics that the policy maximizes: ``"min"`` the smallest,
            ``"mean"`` their mean (REDQ).
        policy_delay: gradient steps of the critics per step of policy and temperature.
    """

    policy_learning_rate: ScheduledNonNegative = 3e-4
    critic_learning_rate: ScheduledNonNegative = 3e-4
    temperature_learning_rate: Annotated[ScheduledNonNegative, Needs("learn_temperature", True)] = (
        3e-4
    )
    tau: ScheduledFraction = 0.005
    initial_temperature: NonNegative = 1.0
    learn_temperature: bool = True
    target_entropy: Annotated[float | None, Needs("learn_temperature", True)] = None
    temporal_smoothness: ScheduledNonNegative = 0.0
    spatial_smoothness: ScheduledNonNegative = 0.0
    smoothness_std: ScheduledNonNegative = 0.05
    num_target_critics: Count | None = None
    policy_value: PolicyValue = "min"
    policy_delay: Count = 1
    start_steps: NonNegativeInt = 1000

    def __post_init__(self) -> None:
        OffPolicyConfig.__post_init__(self)
        if self.learn_temperature and self.initial_temperature == 0.0:
            raise ConfigError(
                "initial_temperature must be above 0 to be learned; set learn_temperature=False, "
                "or start higher"
            )


def check_actor(actor: OffPolicyActor, config: SACConfig, *, is_smoothed: bool) -> None:
    """Check an actor and the options against each other.

    Args:
        actor: what acts.
        config: the options.
        is_smoothed: whether a weight of Eq. (5) is above 0 at any time of the run.

    Raises:
        ConfigError: when the policy is not stochastic, smoothness is set for discrete actions or
            for observations that are not a Box, or an option has no effect.
    """
    if config.spatial_smoothness == 0.0:  # not the config's own check: both may change in a run
        config.refuse(
            "has no effect without spatial_smoothness; set that too, or leave it out",
            "smoothness_std",
        )
    check_policy(actor, "stochastic", "SAC")
    num_critics, chosen = actor.config.num_critics, config.num_target_critics
    if chosen is not None and chosen > num_critics:
        raise ConfigError(
            f"num_target_critics={chosen} must be at most actor.num_critics, which is {num_critics}"
        )
    if actor.is_recurrent and is_smoothed:
        raise ConfigError(
            "temporal_smoothness and spatial_smoothness do not go with recurrent actors, whose "
            "actions depend on more than the observation; leave them at 0"
        )
    is_smooth = isinstance(actor.observation_space, spaces.Box) and not actor.is_discrete
    if not is_smooth and is_smoothed:
        raise ConfigError(
            "temporal_smoothness and spatial_smoothness compare real actions at observations "
            "nearby; leave them at 0 for discrete actions and for observations that are not a Box"
        )
