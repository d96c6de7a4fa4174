r"""Advantage actor-critic.

Source: Mnih et al. 2016, https://arxiv.org/abs/1602.01783, synchronous form.

The losses are Eq. (1) and (2) of `rl_algos_onpolicy.vpg`, with n-step advantages.

Deviations from the paper: environments step together instead of asynchronously; policy and
value function have optimizers of their own, so that their rates can differ.
"""

from dataclasses import dataclass, field
from functools import cached_property

from rl_algos_onpolicy.config import on_policy_recipe
from rl_algos_onpolicy.vpg import PolicyGradient, PolicyGradientConfig
from rl_core.algorithm import DefaultRecipe, EnvSpec, UpdateSchedule
from rl_core.config import ScheduledNonNegative, ScheduledPositive
from rl_core.gradients import OptimizerConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class A2CConfig(PolicyGradientConfig):
    """Options of `A2C`, besides those of `PolicyGradientConfig`.

    A ``gae_lambda`` of 1 gives the paper's n-step return.

    Attributes:
        policy_learning_rate: learning rate of the policy.
        value_learning_rate: learning rate of the value function; where policy and value function
            share networks, give one of the two rates, or equal ones.
        max_grad_norm: upper bound of the joint gradient's norm; None disables it.
        normalize_advantage: give the advantages of a rollout a mean of 0 and a standard deviation
            of 1.
        optimizer: optimizer of both, and its options.

    Raises:
        ConfigError: when a value is out of range.
    """

    policy_learning_rate: ScheduledNonNegative = 7e-4
    value_learning_rate: ScheduledNonNegative = 7e-4
    max_grad_norm: ScheduledPositive | None = 0.5
    normalize_advantage: bool = False
    optimizer: OptimizerConfig = field(
        default_factory=lambda: OptimizerConfig(name="rmsprop", eps=1e-5)
    )


class A2C(PolicyGradient[A2CConfig]):
    """Synchronous advantage actor-critic: one gradient step per rollout.

    Args:
        actor: a policy and a state-value function, such as `OnPolicyActor`.
        config: options.
        add_ons: extra terms for the policy loss.

    Raises:
        ConfigError: when a shared torso is to be moved at two learning rates.
    """

    @cached_property
    def schedule(self) -> UpdateSchedule:
        """Update once per rollout, with all of it."""
        return UpdateSchedule.of(self.config, num_minibatches=1)

    @classmethod
    def default_recipe(cls, env: EnvSpec) -> DefaultRecipe:
        """Take short rollouts of eight environments."""
        return on_policy_recipe(env, num_envs=8, num_steps=5)
