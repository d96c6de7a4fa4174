r"""Vanilla policy gradient: REINFORCE, with or without a value function.

Source: Williams 1992, https://doi.org/10.1007/BF00992696; advantages by Schulman et al. 2016,
https://arxiv.org/abs/1506.02438.

The losses are Eq. (1) and (2) of `rl_algos_onpolicy.policy_gradient`, with

(3) $A_t = \sum_{k \ge 0} \gamma^k r_{t+k} - V_\phi(s_t)$

Without a value function $V_\phi$ is 0 throughout.

Deviations from the paper: advantages are standardised, and an episode that a time limit or the
end of the rollout cuts is continued by the value function, where there is one.
"""

from dataclasses import dataclass

from rl_algos_onpolicy.defaults import on_policy_recipe
from rl_algos_onpolicy.policy_gradient import PolicyGradient, PolicyGradientConfig
from rl_core.algorithm import DefaultRecipe, EnvSpec, UpdateSchedule
from rl_core.config import Count
from rl_core.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class VPGConfig(PolicyGradientConfig):
    """Options of `VPG`, besides those of `PolicyGradientConfig`.

    With a ``gae_lambda`` of 1 advantages are those of Eq. (3); without a value function λ is one
    more discount.

    Attributes:
        normalize_advantage: give advantages a mean of 0 and a standard deviation of 1.
        num_epochs: passes over each rollout.
        num_minibatches: minibatches per epoch.

    Raises:
        ConfigError: when a value is out of range or two contradict each other.
    """

    normalize_advantage: bool = True
    num_epochs: Count = 1
    num_minibatches: Count = 1

    def __post_init__(self) -> None:
        PolicyGradientConfig.__post_init__(self)
        if self.value_learning_rate is None and (
            self.advantage_estimator not in ("gae", "return") or self.value_target != "advantage"
        ):
            raise ConfigError(
                f"advantage_estimator='{self.advantage_estimator}' and "
                f"value_target='{self.value_target}' need a value function; give "
                "value_learning_rate, or leave them out"
            )


class VPG(PolicyGradient[VPGConfig]):
    """Vanilla policy gradient: one gradient step per rollout, unless options say otherwise.

    Args:
        actor: a policy and a state-value function, such as `OnPolicyActor`; the value function is
            left alone where none is learned.
        config: options.
        add_ons: extra terms for the policy loss.

    Raises:
        ConfigError: when a shared torso is to be moved at two learning rates.
    """

    @property
    def schedule(self) -> UpdateSchedule:
        """Update once per rollout, by default with all of it."""
        return UpdateSchedule.of(self.config)

    @classmethod
    def default_recipe(cls, env: EnvSpec) -> DefaultRecipe:
        """Take rollouts of eight environments that are about as long as short episodes."""
        return on_policy_recipe(env, num_envs=8, num_steps=128)
