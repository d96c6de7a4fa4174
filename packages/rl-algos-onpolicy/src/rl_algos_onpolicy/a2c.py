r"""Advantage actor-critic.

Source: Mnih et al. 2016, https://arxiv.org/abs/1602.01783, synchronous form.

(1) $L^{\pi} = -\mathbb{E}_t[\log \pi_\theta(a_t|s_t) A_t]
    - c\,\mathbb{E}_t[H(\pi_\theta(\cdot|s_t))]$

(2) $L^{V} = \mathbb{E}_t[(V_\phi(s_t) - V^{target}_t)^2]$

Deviations from the paper: environments step together instead of asynchronously; policy and
value function have optimisers of their own, so that their rates can differ.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from rl_algos_onpolicy.advantages import advantage_columns
from rl_algos_onpolicy.config import GaeLambda, OnPolicyConfig
from rl_algos_onpolicy.defaults import on_policy_recipe
from rl_algos_onpolicy.entropy import entropy_loss
from rl_algos_onpolicy.policy_gradient import PolicyGradient, policy_gradient_loss
from rl_core.algorithm import DefaultRecipe, EnvSpec, UpdateSchedule
from rl_core.batch import Rollout, RolloutBatch
from rl_core.config import ScheduledNonNegative, ScheduledPositive
from rl_core.gradients import LossOutput, Noise, OptimizerConfig, masked_mean


@dataclass(frozen=True, kw_only=True, slots=True)
class A2CConfig(OnPolicyConfig):
    """Options of `A2C`, besides those of `OnPolicyConfig`; ``entropy_coef`` is c of Eq. (1).

    A ``gae_lambda`` of 1 gives the paper's n-step return.

    Attributes:
        policy_learning_rate: learning rate of the policy.
        value_learning_rate: learning rate of the value function; must equal the policy's when they
            share a torso.
        max_grad_norm: upper bound of the joint gradient's norm; None disables it.
        normalize_advantage: give the advantages of a rollout a mean of 0 and a standard deviation
            of 1.
        optimizer: optimizer of both, and its options.

    Raises:
        ConfigError: when a value is out of range.
    """

    policy_learning_rate: ScheduledNonNegative = 7e-4
    value_learning_rate: ScheduledNonNegative = 7e-4
    gae_lambda: GaeLambda = 1.0
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

    @property
    def schedule(self) -> UpdateSchedule:
        """Update once per rollout, with all of it."""
        return UpdateSchedule.of(self.config, num_minibatches=1)

    @classmethod
    def default_recipe(cls, env: EnvSpec) -> DefaultRecipe:
        """Take short rollouts of eight environments."""
        return on_policy_recipe(env, num_envs=8, num_steps=5)

    def prepare(self, rollout: Rollout) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
        """Estimate advantages and value targets."""
        return advantage_columns(self.actor, rollout, self.config, self.hyper)

    def loss(self, batch: RolloutBatch, noise: Noise) -> LossOutput:
        """Eq. (1) for the policy's parameters plus Eq. (2) for the value function's."""
        mask = batch.mask
        now = self.actor.evaluate_actions(
            batch.observation, batch.action, batch.state, batch.episode_start
        )
        assert now.value is not None
        policy_term = policy_gradient_loss(now.log_prob, batch.advantage, mask)  # Eq. (1)
        value_term = masked_mean((now.value - batch.value_target).square(), mask)  # Eq. (2)
        entropy_term, entropy = entropy_loss(
            self.config, self.hyper["entropy_coef"], now.distribution, mask
        )
        metrics = {
            "loss/policy": policy_term,
            "loss/value": value_term,
            "policy/entropy": entropy,
        }
        added, more = self.add_on_terms(batch, now.distribution, metrics)
        total = policy_term + added + value_term + entropy_term
        return LossOutput(total, {**metrics, **more})
