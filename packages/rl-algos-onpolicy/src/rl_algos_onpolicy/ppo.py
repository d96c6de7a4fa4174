r"""Proximal policy optimization.

Source: Schulman et al. 2017, https://arxiv.org/abs/1707.06347.

With the probability ratio $r_t(\theta) = \pi_\theta(a_t|s_t) / \pi_{\theta_{old}}(a_t|s_t)$:

(1) $L^{CLIP} = -\mathbb{E}_t[\min(r_t A_t, \mathrm{clip}(r_t, 1-\epsilon, 1+\epsilon) A_t)]$

(2) $L^{V} = \tfrac12 \mathbb{E}_t[(V_\theta(s_t) - V^{target}_t)^2]$

(3) $L^{V}_{CLIP} = \tfrac12 \mathbb{E}_t[\max((V_\theta - V^{target})^2,
    (V_{old} + \mathrm{clip}(V_\theta - V_{old}, -\epsilon, \epsilon) - V^{target})^2)]$

(4) $L = L^{CLIP} + c_1 L^{V} - c_2 \mathbb{E}_t[H(\pi_\theta(\cdot|s_t))]$

Instead of (1), the policy loss may be unclipped, (5), or penalize the divergence, (6). The penalty
coefficient $\beta$ adapts after each update, so that the divergence stays near a target $d$
(`rl_algos_onpolicy.kl`):

(5) $L^{CPI} = -\mathbb{E}_t[r_t A_t]$

(6) $L^{KLPEN} = L^{CPI} + \beta\, KL + 50 \max(0, KL - 2 d)^2$; an update ends once $KL > 4 d$

Deviations from the paper: advantages are normalized, the gradient's norm is bounded, and
the clipped value loss (3), which the paper does not have, is an option. The paper does not end
updates early as (6) does either; other implementations check once per epoch, this one in each
minibatch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from rl_algos_onpolicy.advantages import advantage_columns, normalized_advantage
from rl_algos_onpolicy.config import AdvantageNormalization, OnPolicyConfig, on_policy_recipe
from rl_algos_onpolicy.entropy import entropy_loss
from rl_algos_onpolicy.kl import adapted_penalty, kl_penalty_term, mean_kl
from rl_algos_onpolicy.sharing import check_no_intrinsic_value
from rl_core.actor import ActionEvaluation
from rl_core.algorithm import (
    Algorithm,
    DefaultRecipe,
    EnvSpec,
    UpdateSchedule,
    whole_batch,
)
from rl_core.batch import Rollout, RolloutBatch
from rl_core.config import (
    Count,
    Needs,
    Schedule,
    Scheduled,
    ScheduledNonNegative,
    ScheduledPositive,
    Without,
)
from rl_core.errors import ConfigError
from rl_core.gradients import LossOutput, Noise, OptimizerConfig, ParameterGroup, masked_mean
from rl_core.storage import Storage

Surrogate = Literal["clip", "plain", "kl-penalty"]
"""The policy's term: Eq. (1), (5) or (6)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PPOConfig(OnPolicyConfig):
    """Options of `PPO`, besides those of `OnPolicyConfig`; ``entropy_coef`` is c₂ of Eq. (4).

    Attributes:
        learning_rate: learning rate of the optimizer; 0 collects and evaluates without learning.
        num_epochs: passes over each rollout.
        num_minibatches: minibatches per epoch.
        minibatch_size: samples per minibatch; 64 if ``num_minibatches`` is not given either.
        surrogate: policy loss: ``clip`` gains nothing from moving the policy beyond
            ``clip_range``, ``plain`` has no bound, ``kl-penalty`` penalizes the divergence from the
            policy that collected (Eq. 1, 5, 6).
        clip_range: how far the ratio of new to old probability may move from 1 (ε); with another
            surrogate it only decides which samples count as clipped in the log, and clips values
            where ``value_clip_range`` is None.
        kl_target: divergence per update that ``kl-penalty`` aims at (d).
        kl_penalty: initial weight of the divergence in ``kl-penalty``, which then adapts (β). The
            present weight is saved, and may be set while running.
        use_clipped_value_loss: clip values that move far from the old ones; the larger of plain
            and clipped error counts (Eq. 3).
        value_clip_range: how far values may move before they are clipped, in units of values (ε);
            None takes ``clip_range``.
        value_loss_coef: weight of the value loss beside the policy loss (c₁).
        max_grad_norm: upper bound of the gradient's norm; None disables it.
        normalize_advantage: give advantages a mean of 0 and a standard deviation of 1: over each
            ``minibatch`` (of two samples at least), over the whole ``batch``, or ``none``.
        target_kl: end the update once the approximate divergence exceeds 1.5 times this; None
            never does.
        optimizer: optimizer and its options.

    Raises:
        ConfigError: when a value is out of range or two contradict each other.
    """

    learning_rate: ScheduledNonNegative = 3e-4
    num_epochs: Count = 10
    num_minibatches: Annotated[Count | None, Without("minibatch_size")] = None
    minibatch_size: Annotated[Count | None, Without("num_minibatches")] = None
    surrogate: Surrogate = "clip"
    clip_range: ScheduledPositive = 0.2
    kl_target: Annotated[ScheduledPositive, Needs("surrogate", "kl-penalty")] = 0.01
    kl_penalty: Annotated[ScheduledPositive, Needs("surrogate", "kl-penalty")] = 1.0
    use_clipped_value_loss: bool = False
    value_clip_range: Annotated[ScheduledPositive | None, Needs("use_clipped_value_loss", True)] = (
        None
    )
    value_loss_coef: ScheduledNonNegative = 0.5
    max_grad_norm: ScheduledPositive | None = 0.5
    normalize_advantage: AdvantageNormalization = "minibatch"
    target_kl: ScheduledPositive | None = None
    optimizer: OptimizerConfig = field(default_factory=lambda: OptimizerConfig(eps=1e-5))

    def __post_init__(self) -> None:
        OnPolicyConfig.__post_init__(self)
        if self.num_minibatches is None and self.minibatch_size is None:
            object.__setattr__(self, "minibatch_size", 64)
        if self.minibatch_size == 1 and self.normalize_advantage == "minibatch":
            raise ConfigError(
                "minibatch_size=1 teaches a policy nothing with normalize_advantage='minibatch', "
                "which makes the advantage of a single sample 0; use larger minibatches, or "
                "'batch' or 'none'"
            )
        _check_penalty(self.kl_penalty)


def _check_penalty(value: Scheduled) -> None:
    if isinstance(value, Schedule) and not value.is_constant:
        raise ConfigError(
            f"kl_penalty adapts by itself; got {value}, expected a number to start at"
        )


def clipped_surrogate_loss(
    log_ratio: Tensor, advantage: Tensor, clip_range: Tensor, mask: Tensor
) -> Tensor:
    """Eq. (1): minus the mean of the smaller of the plain and the clipped surrogate.

    Args:
        log_ratio: shape `(N,)`, log π_θ - log π_old of the actions.
        advantage: shape `(N,)`.
        clip_range: ε, 0-dim.
        mask: shape `(N,)`, which samples count.
    """
    ratio = _ratio(log_ratio, mask)
    clipped = ratio.clamp(1.0 - clip_range, 1.0 + clip_range)
    return -masked_mean(torch.minimum(ratio * advantage, clipped * advantage), mask)


def surrogate_loss(log_ratio: Tensor, advantage: Tensor, mask: Tensor) -> Tensor:
    """Eq. (5): the surrogate without a bound.

    Args:
        log_ratio: shape `(N,)`, log π_θ - log π_old of the actions.
        advantage: shape `(N,)`.
        mask: shape `(N,)`, which samples count.
    """
    return -masked_mean(_ratio(log_ratio, mask) * advantage, mask)


def _ratio(log_ratio: Tensor, mask: Tensor) -> Tensor:
    """Return r of Eq. (1), and 1 for samples that do not count.

    Their ratio could be infinite, and would make the gradient NaN although the mean leaves it out.
    """
    return torch.where(mask.bool(), log_ratio, 0.0).exp()


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
        old_value: shape `(N,)`, of the behavior's value function.
        value_target: shape `(N,)`.
        clip_range: ε, 0-dim.
        mask: shape `(N,)`, which samples count.
    """
    near = old_value + (value - old_value).clamp(-clip_range, clip_range)
    error = torch.maximum((value - value_target).square(), (near - value_target).square())
    return 0.5 * masked_mean(error, mask)


class PPO(Algorithm[PPOConfig, RolloutBatch]):
    """Proximal policy optimization, by default with a clipped surrogate.

    Args:
        actor: a policy and a state-value function, such as `OnPolicyActor`.
        config: options.
        add_ons: extra terms for the policy loss.
    """

    takes_add_ons: ClassVar[bool] = True

    @cached_property
    def schedule(self) -> UpdateSchedule:
        """Take several epochs over each rollout."""
        normalizes = self.config.normalize_advantage == "minibatch"
        return UpdateSchedule.of(self.config, min_samples=2 if normalizes else 1)

    @classmethod
    def default_recipe(cls, env: EnvSpec) -> DefaultRecipe:
        """Take rollouts of eight environments; normalize where actions are continuous."""
        return on_policy_recipe(env, num_envs=8, num_steps=256)

    def update_algorithm_parameter(
        self, parameter_name: str, new_parameter_value: Scheduled
    ) -> None:
        """Change a hyper-parameter; ``kl_penalty`` adapts from the new number on.

        Raises:
            ConfigError: as for any algorithm, and for a schedule of ``kl_penalty``.
        """
        if parameter_name == "kl_penalty":
            _check_penalty(new_parameter_value)
        super().update_algorithm_parameter(parameter_name, new_parameter_value)

    def resolve_config(self, config: PPOConfig) -> PPOConfig:
        """Refuse an actor with a second value function."""
        check_no_intrinsic_value(self.actor)
        return config

    def parameter_groups(self) -> tuple[ParameterGroup, ...]:
        """Learn policy and value function with one optimizer."""
        return (self.actor_group(),)

    def actor_group(self) -> ParameterGroup:
        """Return the group of all that the actor and the add-ons learn."""
        return ParameterGroup(
            name="actor",
            modules=("actor", "add_ons"),
            max_grad_norm=self.config.if_set("max_grad_norm"),
            optimizer=self.config.optimizer,
        )

    def prepare(self, rollout: Rollout) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
        """Estimate advantages and value targets."""
        return advantage_columns(
            self.actor,
            rollout,
            self.config,
            self.hyper,
            keeps_policy=self.config.surrogate == "kl-penalty",  # Eq. (6) compares with it
        )

    def after_epochs(self, storage: Storage[RolloutBatch]) -> Mapping[str, Tensor]:
        """Adapt the penalty of Eq. (6) by the divergence over the whole rollout."""
        if self.config.surrogate != "kl-penalty" or not self.gradients.learns:
            return {}
        batch, penalty = whole_batch(storage), self.hyper["kl_penalty"]
        with torch.no_grad():
            now, _ = self.actor.distribution(batch.observation, batch.state, batch.episode_start)
            kl = mean_kl(batch, now)
            penalty.copy_(adapted_penalty(penalty, kl, self.hyper["kl_target"]))
        return {"policy/kl": kl, "policy/kl_penalty": penalty}

    def loss(self, batch: RolloutBatch, noise: Noise) -> LossOutput:
        """Eq. (4)."""
        now = self.actor.evaluate_actions(
            batch.observation, batch.action, batch.state, batch.episode_start
        )
        return self.loss_of(batch, now)

    def loss_of(self, batch: RolloutBatch, now: ActionEvaluation) -> LossOutput:
        """Eq. (4), from the actor's present evaluation of a batch's actions."""
        config, hyper, mask = self.config, self.hyper, batch.mask
        clip_range = hyper["clip_range"]
        assert now.value is not None
        log_ratio = now.log_prob - batch.log_prob
        advantage = normalized_advantage(batch.advantage, mask, config, over_minibatch=True)
        if config.surrogate == "clip":
            policy_term = clipped_surrogate_loss(log_ratio, advantage, clip_range, mask)  # Eq. (1)
        else:
            policy_term = surrogate_loss(log_ratio, advantage, mask)  # Eq. (5)
        stops = []
        if config.surrogate == "kl-penalty":
            kl, target = mean_kl(batch, now.distribution), hyper["kl_target"]
            policy_term = policy_term + kl_penalty_term(kl, hyper["kl_penalty"], target)  # Eq. (6)
            stops.append(kl > 4.0 * target)
        value_term = self.value_term(now.value, batch.value, batch.value_target, mask)
        entropy_term, entropy = entropy_loss(config, hyper["entropy_coef"], now.distribution, mask)
        # The mean of r - 1 - log r estimates the divergence with little variance:
        # Schulman 2020, http://joschu.net/blog/kl-approx.html
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
        # Eq. (4); the entropy's term has its sign and coefficient already
        total = policy_term + added + hyper["value_loss_coef"] * value_term + entropy_term
        if config.target_kl is not None:
            stops.append(approx_kl > 1.5 * hyper["target_kl"])
        stop = torch.stack(stops).any() if stops else None
        return LossOutput(total, {**metrics, **more}, stop=stop)

    def value_term(
        self, value: Tensor, old_value: Tensor, value_target: Tensor, mask: Tensor
    ) -> Tensor:
        """Eq. (3) where value losses are clipped, else Eq. (2)."""
        if not self.config.use_clipped_value_loss:
            return value_loss(value, value_target, mask)
        clip_range = self.hyper[self.config.if_set("value_clip_range") or "clip_range"]
        return clipped_value_loss(value, old_value, value_target, clip_range, mask)
