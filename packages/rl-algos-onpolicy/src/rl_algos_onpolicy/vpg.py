r"""Vanilla policy gradient: REINFORCE, with or without a value function.

Source: Williams 1992, https://doi.org/10.1007/BF00992696; advantages by Schulman et al. 2016,
https://arxiv.org/abs/1506.02438.

(1) $L^{\pi} = -\mathbb{E}_t[\log \pi_\theta(a_t|s_t) A_t] - c\,\mathbb{E}_t[H_t]$

(2) $A_t = \sum_{k \ge 0} \gamma^k r_{t+k} - V_\phi(s_t)$

(3) $L^{V} = \mathbb{E}_t[(V_\phi(s_t) - V^{target}_t)^2]$

$H_t$ is the policy's entropy, or its softplus. With entropy as a reward, $r_t + c H_t$ takes the
place of $r_t$ and (1) has no second term. Without a value function $V_\phi$ is 0 throughout.

Deviations from the paper: advantages are standardised, and an episode that a time limit or the
end of the rollout cuts is continued by the value function, where there is one.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from rl_algos_onpolicy.advantages import advantage_columns
from rl_algos_onpolicy.config import GaeLambda, OnPolicyConfig
from rl_algos_onpolicy.defaults import on_policy_recipe
from rl_algos_onpolicy.entropy import entropy_loss
from rl_algos_onpolicy.policy_gradient import PolicyGradient, policy_gradient_loss
from rl_core.algorithm import DefaultRecipe, EnvSpec, UpdateSchedule
from rl_core.batch import Rollout, RolloutBatch
from rl_core.config import Count, ScheduledNonNegative
from rl_core.errors import ConfigError
from rl_core.gradients import LossOutput, Noise, masked_mean


@dataclass(frozen=True, kw_only=True, slots=True)
class VPGConfig(OnPolicyConfig):
    """Options of `VPG`, besides those of `OnPolicyConfig`; ``entropy_coef`` is c of Eq. (1).

    With a ``gae_lambda`` of 1 advantages are those of Eq. (2); without a value function λ is one
    more discount.

    Attributes:
        policy_learning_rate: learning rate of the policy.
        value_learning_rate: learning rate of the value function; None learns no value function:
            advantages are the returns, and an episode counts no further than the rollout goes.
        normalize_advantage: give advantages a mean of 0 and a standard deviation of 1.
        num_epochs: passes over each rollout.
        num_minibatches: minibatches per epoch.

    Raises:
        ConfigError: when a value is out of range or two contradict each other.
    """

    policy_learning_rate: ScheduledNonNegative = 1e-3
    value_learning_rate: ScheduledNonNegative | None = 1e-3
    gae_lambda: GaeLambda = 1.0
    normalize_advantage: bool = True
    num_epochs: Count = 1
    num_minibatches: Count = 1

    def __post_init__(self) -> None:
        OnPolicyConfig.__post_init__(self)
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

    def constant_modules(self) -> tuple[str, ...]:
        """Leave the value function alone where none is learned."""
        if self.config.value_learning_rate is not None:
            return ()
        return tuple(f"actor.{name}" for name in self.actor.value_modules)

    def prepare(self, rollout: Rollout) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
        """Estimate advantages, Eq. (2), and value targets."""
        has_value = self.config.value_learning_rate is not None
        return advantage_columns(self.actor, rollout, self.config, self.hyper, has_value=has_value)

    def loss(self, batch: RolloutBatch, noise: Noise) -> LossOutput:
        """Eq. (1) for the policy's parameters plus Eq. (3) for the value function's."""
        mask = batch.mask
        now = self.actor.evaluate_actions(
            batch.observation, batch.action, batch.state, batch.episode_start
        )
        policy_term = policy_gradient_loss(now.log_prob, batch.advantage, mask)  # Eq. (1)
        entropy_term, entropy = entropy_loss(
            self.config, self.hyper["entropy_coef"], now.distribution, mask
        )
        metrics = {"loss/policy": policy_term, "policy/entropy": entropy}
        added, more = self.add_on_terms(batch, now.distribution, metrics)
        total = policy_term + added + entropy_term
        if self.config.value_learning_rate is not None:
            assert now.value is not None
            value_term = masked_mean((now.value - batch.value_target).square(), mask)  # Eq. (3)
            total, metrics["loss/value"] = total + value_term, value_term
        return LossOutput(total, {**metrics, **more})
