"""Advantages and value targets of a fresh rollout."""

from collections.abc import Mapping

import torch
from torch import Tensor

from rl_algos_onpolicy.config import OnPolicyConfig
from rl_algos_onpolicy.entropy import entropy_bonus
from rl_core.actor import Actor
from rl_core.algorithm import evaluate_rollout
from rl_core.batch import Rollout
from rl_core.gradients import HyperParameters, masked_mean
from rl_core.nn.distributions import to_columns
from rl_core.returns import Steps, estimate, explained_variance, normalize, shift_to_positive


def advantage_columns(
    actor: Actor,
    rollout: Rollout,
    config: OnPolicyConfig,
    hyper: HyperParameters,
    *,
    normalize_advantage: bool = False,
    positive_advantage: bool = False,
    has_value: bool = True,
    keeps_policy: bool = False,
    logs_entropy: bool = False,
) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
    """Estimate advantages and, before they are normalised, value targets.

    Args:
        actor: with the behaviour's weights.
        rollout: `(T, B, ...)`.
        config: which estimator and value target, and whether entropy is rewarded.
        hyper: the present discount, λ and coefficient of the entropy.
        normalize_advantage: standardise advantages over the whole rollout.
        positive_advantage: then subtract the smallest.
        has_value: False where no value function is learned: all values are 0.
        keeps_policy: attach the behaviour's distribution, for `from_columns`.
        logs_entropy: add its mean entropy to the metrics, where no loss does.

    Returns:
        The columns of a `RolloutBatch`, each `(T, B)`, and metrics.
    """
    values = evaluate_rollout(actor, rollout)
    value, next_value = values.value, values.next_value
    if not has_value:
        value, next_value = torch.zeros_like(value), torch.zeros_like(next_value)
    bonus = entropy_bonus(config, hyper["entropy_coef"], values.distribution)
    reward = rollout.reward if bonus is None else rollout.reward + bonus * rollout.valid
    advantage, target = estimate(
        Steps(reward, value, next_value, rollout.terminated, rollout.truncated),
        hyper["gamma"],
        hyper["gae_lambda"],
        advantage=config.advantage_estimator,
        value_target=config.value_target,
    )
    advantage = standardized(
        advantage, rollout.valid, scale=normalize_advantage, shift=positive_advantage
    )
    columns = {
        "log_prob": values.log_prob,
        "value": value,
        "advantage": advantage,
        "value_target": target,
    }
    if keeps_policy:
        columns |= to_columns(values.distribution, tuple(reward.shape))
    metrics = {}
    if logs_entropy:
        entropy = values.distribution.entropy().detach()
        metrics["policy/entropy"] = masked_mean(entropy, rollout.valid.to(reward.dtype))
    if has_value:
        metrics["value/explained_variance"] = explained_variance(value, target, rollout.valid)
    return columns, metrics


def standardized(advantage: Tensor, valid: Tensor, *, scale: bool, shift: bool) -> Tensor:
    """Bring advantages to a common size, and above 0.

    Args:
        advantage: of any shape.
        valid: of the same shape, which of them count.
        scale: give them a mean of 0 and a standard deviation of 1.
        shift: then subtract the smallest.
    """
    if scale:
        advantage = normalize(advantage, valid)
    return shift_to_positive(advantage, valid) if shift else advantage
