r"""Proximal policy optimisation.

Source: Schulman et al. 2017, https://arxiv.org/abs/1707.06347.

With the probability ratio $r_t(\theta) = \pi_\theta(a_t|s_t) / \pi_{\theta_{old}}(a_t|s_t)$:

(1) $L^{CLIP} = -\mathbb{E}_t[\min(r_t A_t, \mathrm{clip}(r_t, 1-\epsilon, 1+\epsilon) A_t)]$

(2) $L^{V} = \tfrac12 \mathbb{E}_t[(V_\theta(s_t) - V^{target}_t)^2]$

(3) $L^{V}_{CLIP} = \tfrac12 \mathbb{E}_t[\max((V_\theta - V^{target})^2,
    (V_{old} + \mathrm{clip}(V_\theta - V_{old}, -\epsilon, \epsilon) - V^{target})^2)]$

(4) $L = L^{CLIP} + c_1 L^{V} - c_2 \mathbb{E}_t[H(\pi_\theta(\cdot|s_t))]$

Deviations from the paper: advantages are standardised, the gradient's norm is bounded, and
the clipped value loss (3), which the paper does not have, is an option.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

import torch
from torch import Tensor

from rl_algos_onpolicy.advantages import gae_columns
from rl_algos_onpolicy.defaults import on_policy_recipe
from rl_core.algorithm import Algorithm, DefaultRecipe, EnvSpec, Scheduled, UpdateSchedule
from rl_core.batch import Rollout, RolloutBatch, masked_mean
from rl_core.errors import ConfigError
from rl_core.gradients import LossOutput, Noise, ParameterGroup
from rl_core.optimizers import OptimizerConfig
from rl_core.ranges import check_choice, check_ranges
from rl_core.returns import normalize

AdvantageNormalization = Literal["minibatch", "batch", "none"]
"""Over which samples advantages are standardised."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PPOConfig:
    """Options of `PPO`.

    Attributes:
        learning_rate: of the optimiser, above 0; 0 collects and evaluates without learning.
        gamma: discount per step, in [0, 1].
        gae_lambda: bias against variance of the advantages, in [0, 1].
        num_epochs: passes over each rollout.
        num_mini_batch: minibatches per epoch; None when ``mini_batch_size`` is given.
        mini_batch_size: samples per minibatch; None when ``num_mini_batch`` is given.
        clip_range: ε of Eq. (1), above 0.
        use_clipped_value_loss: Eq. (3) with the same ε, instead of Eq. (2).
        value_loss_coef: c₁ of Eq. (4).
        entropy_coef: c₂ of Eq. (4).
        max_grad_norm: bound of the gradient's norm; None does not bound it.
        normalize_advantage: standardise advantages over each minibatch, the batch, or not.
        target_kl: end the update once the policy has moved further than 1.5 times this; None
            never does.
        optimizer: the update rule.
        test_every: updates between evaluations; None evaluates only at the end.
        num_test_episodes: episodes per evaluation.

    Raises:
        ConfigError: when a value is out of range or two contradict each other.
    """

    learning_rate: Scheduled = 3e-4
    gamma: Scheduled = 0.99
    gae_lambda: Scheduled = 0.95
    num_epochs: int = 10
    num_mini_batch: int | None = None
    mini_batch_size: int | None = 64
    clip_range: Scheduled = 0.2
    use_clipped_value_loss: bool = False
    value_loss_coef: Scheduled = 0.5
    entropy_coef: Scheduled = 0.0
    max_grad_norm: Scheduled | None = 0.5
    normalize_advantage: AdvantageNormalization = "minibatch"
    target_kl: Scheduled | None = None
    optimizer: OptimizerConfig = field(default_factory=lambda: OptimizerConfig(eps=1e-5))
    test_every: int | None = None
    num_test_episodes: int = 5

    def __post_init__(self) -> None:
        check_ranges(
            self,
            unit=("gamma", "gae_lambda"),
            positive=("clip_range", "max_grad_norm", "target_kl"),
            not_negative=("learning_rate", "value_loss_coef", "entropy_coef"),
            counts=(
                "num_epochs",
                "num_mini_batch",
                "mini_batch_size",
                "test_every",
                "num_test_episodes",
            ),
        )
        check_choice(self, "normalize_advantage", get_args(AdvantageNormalization))
        if (self.num_mini_batch is None) == (self.mini_batch_size is None):
            raise ConfigError(
                "algorithm: give just one of num_mini_batch and mini_batch_size, got "
                f"{self.num_mini_batch} and {self.mini_batch_size}"
            )


def clipped_surrogate_loss(
    log_ratio: Tensor, advantage: Tensor, clip_range: Tensor, mask: Tensor
) -> Tensor:
    """Eq. (1): the pessimistic of the plain and the clipped surrogate.

    Args:
        log_ratio: shape `(N,)`, log π_θ - log π_old of the actions.
        advantage: shape `(N,)`.
        clip_range: ε, 0-dim.
        mask: shape `(N,)`, which samples count.
    """
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1.0 - clip_range, 1.0 + clip_range)
    return -masked_mean(torch.minimum(ratio * advantage, clipped * advantage), mask)


def value_loss(value: Tensor, value_target: Tensor, mask: Tensor) -> Tensor:
    """Eq. (2): half the mean squared error.

    Args:
        value: shape `(N,)`.
        value_target: shape `(N,)`.
        mask: shape `(N,)`, which samples count.
    """
    return 0.5 * masked_mean((value - value_target).square(), mask)


def clipped_value_loss(
    value: Tensor,
    old_value: Tensor,
    value_target: Tensor,
    clip_range: Tensor,
    mask: Tensor,
) -> Tensor:
    """Eq. (3): the larger of the plain error and that of a value kept near the old one.

    Args:
        value: shape `(N,)`.
        old_value: shape `(N,)`, of the behaviour's value function.
        value_target: shape `(N,)`.
        clip_range: ε, 0-dim.
        mask: shape `(N,)`, which samples count.
    """
    near = old_value + (value - old_value).clamp(-clip_range, clip_range)
    error = torch.maximum((value - value_target).square(), (near - value_target).square())
    return 0.5 * masked_mean(error, mask)


class PPO(Algorithm[PPOConfig, RolloutBatch]):
    """Proximal policy optimisation with a clipped surrogate.

    Args:
        actor: a policy and a state-value function, such as `OnPolicyActor`.
        config: options.
        add_ons: extra terms for the policy loss.
    """

    @property
    def schedule(self) -> UpdateSchedule:
        """Update once per rollout, over it several times."""
        config = self.config
        return UpdateSchedule(
            num_epochs=config.num_epochs,
            num_mini_batch=config.num_mini_batch,
            mini_batch_size=config.mini_batch_size,
            test_every=config.test_every,
            num_test_episodes=config.num_test_episodes,
        )

    @classmethod
    def default_recipe(cls, env: EnvSpec) -> DefaultRecipe:
        """Take rollouts of eight environments; normalise where actions are continuous."""
        return on_policy_recipe(env, num_envs=8, num_steps=256)

    def parameter_groups(self) -> tuple[ParameterGroup, ...]:
        """Learn policy and value function with one optimiser."""
        return (
            ParameterGroup(
                name="actor",
                modules=("actor", "add_ons"),
                max_grad_norm=None if self.config.max_grad_norm is None else "max_grad_norm",
                optimizer=self.config.optimizer,
            ),
        )

    def prepare(self, rollout: Rollout) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
        """Estimate advantages by GAE; the value target is advantage + value."""
        return gae_columns(
            self.actor,
            rollout,
            self.hyper["gamma"],
            self.hyper["gae_lambda"],
            normalize_advantage=self.config.normalize_advantage == "batch",
        )

    def loss(self, batch: RolloutBatch, noise: Noise) -> LossOutput:
        """Eq. (4)."""
        config, hyper, mask = self.config, self.hyper, batch.mask
        clip_range = hyper["clip_range"]
        now = self.actor.evaluate_actions(
            batch.observation, batch.action, batch.state, batch.episode_start
        )
        assert now.value is not None
        advantage = batch.advantage
        if config.normalize_advantage == "minibatch":
            advantage = normalize(advantage, mask)
        log_ratio = now.log_prob - batch.log_prob

        policy_term = clipped_surrogate_loss(log_ratio, advantage, clip_range, mask)
        value_term = (
            clipped_value_loss(now.value, batch.value, batch.value_target, clip_range, mask)
            if config.use_clipped_value_loss
            else value_loss(now.value, batch.value_target, mask)
        )
        entropy = masked_mean(now.entropy, mask)
        approx_kl = masked_mean(log_ratio.exp() - 1.0 - log_ratio, mask)
        outside = ((log_ratio.exp() - 1.0).abs() > clip_range).to(mask.dtype)
        metrics = {
            "loss/policy": policy_term,
            "loss/value": value_term,
            "policy/entropy": entropy,
            "policy/approx_kl": approx_kl,
            "policy/clip_fraction": masked_mean(outside, mask),
        }
        added, more = self.add_on_terms(batch, now.distribution, metrics)
        total = (
            policy_term
            + added
            + hyper["value_loss_coef"] * value_term
            - hyper["entropy_coef"] * entropy
        )
        stop = None if config.target_kl is None else approx_kl > 1.5 * hyper["target_kl"]
        return LossOutput(total, {**metrics, **more}, stop=stop)
