r"""REINFORCE with a value baseline.

Source: Williams 1992, "Simple statistical gradient-following algorithms for connectionist
reinforcement learning"; with the baseline as in Sutton and Barto 2018, section 13.4.

(1) $L^{\pi} = -\mathbb{E}_t[\log \pi_\theta(a_t|s_t) (G_t - V_\phi(s_t))]$

(2) $L^{V} = \tfrac12 \mathbb{E}_t[(V_\phi(s_t) - G_t)^2]$

Deviation from the source: where a rollout ends inside an episode, G bootstraps from the value.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from rl_core.algorithm import Algorithm, DefaultRecipe, EnvSpec, UpdateSchedule, evaluate_rollout
from rl_core.batch import Rollout, RolloutBatch
from rl_core.config import ComponentSpec, Config, ScheduledFraction, ScheduledNonNegative
from rl_core.gradients import LossOutput, Noise, masked_mean
from rl_core.returns import baseline_advantages


@dataclass(frozen=True, kw_only=True, slots=True)
class ReinforceConfig(Config):
    """Options of `Reinforce`.

    Attributes:
        learning_rate: Learning rate of Adam.
        gamma: Discount factor, in [0, 1].

    Raises:
        ConfigError: when a value is out of range.
    """

    learning_rate: ScheduledNonNegative = 3e-3
    gamma: ScheduledFraction = 0.99


def policy_gradient_loss(log_prob: Tensor, advantage: Tensor, mask: Tensor) -> Tensor:
    """Eq. (1); every argument is `(N,)`."""
    return -masked_mean(log_prob * advantage, mask)


def value_loss(value: Tensor, value_target: Tensor, mask: Tensor) -> Tensor:
    """Eq. (2); every argument is `(N,)`."""
    return 0.5 * masked_mean((value - value_target).square(), mask)


class Reinforce(Algorithm[ReinforceConfig, RolloutBatch]):
    """Make actions more likely the more their returns exceeded the value function.

    Args:
        actor: A policy and a state-value function.
        config: Options.
    """

    @cached_property
    def schedule(self) -> UpdateSchedule:
        """Take one gradient step per rollout."""
        return UpdateSchedule(num_epochs=1, num_minibatches=1)

    @classmethod
    def default_recipe(cls, env: EnvSpec) -> DefaultRecipe:
        """Ask for the on-policy actor and the rollout storage."""
        return DefaultRecipe(
            actor=ComponentSpec("actor", "on-policy", {"hidden_sizes": [32]}),
            storage=ComponentSpec("storage", "rollout", {"num_steps": 32}),
            env={"num_envs": 8},
        )

    def prepare(self, rollout: Rollout) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
        """Compute advantages; value targets are the returns themselves."""
        values = evaluate_rollout(self.actor, rollout)
        advantage = baseline_advantages(
            rollout.reward,
            values.value,
            values.next_value,
            rollout.terminated,
            rollout.truncated,
            self.hyper["gamma"],
        )
        columns = {
            "log_prob": values.log_prob,
            "value": values.value,
            "advantage": advantage,
            "value_target": advantage + values.value,
        }
        return columns, {"value/return": masked_mean(columns["value_target"], rollout.valid)}

    def loss(self, batch: RolloutBatch, noise: Noise) -> LossOutput:
        """Eq. (1) plus Eq. (2)."""
        now = self.actor.evaluate_actions(
            batch.observation, batch.action, batch.state, batch.episode_start
        )
        assert now.value is not None
        policy = policy_gradient_loss(now.log_prob, batch.advantage, batch.mask)
        value = value_loss(now.value, batch.value_target, batch.mask)
        return LossOutput(policy + value, {"loss/policy": policy, "loss/value": value})
