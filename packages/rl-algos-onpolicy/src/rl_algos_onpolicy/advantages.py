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
    normalizes: bool = True,
    has_value: bool = True,
    keeps_policy: bool = False,
    logs_entropy: bool = False,
) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
    """Estimate advantages and, before they are normalized, value targets.

    Args:
        actor: with the behavior's weights.
        rollout: `(T, B, ...)`.
        config: which estimator and value target, and whether entropy is rewarded.
        hyper: the present discount, λ and coefficient of the entropy.
        normalizes: give advantages the size that the config says, see `normalized_advantage`.
        has_value: False where no value function is learned: all values are 0.
        keeps_policy: attach the behavior's distribution, for `from_columns`.
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
    if normalizes:
        advantage = normalized_advantage(advantage, rollout.valid, config)
    columns = {
        "log_prob": values.log_prob,
        "value": value,
        "advantage": advantage,
        "value_target": target,
    }
    if keeps_policy:
        columns |= to_columns(values.distribution.detach(), tuple(reward.shape))
    metrics = {}
    if logs_entropy:
        entropy = values.distribution.entropy().detach()
        metrics["policy/entropy"] = masked_mean(entropy, rollout.valid)
    if has_value:
        metrics["value/explained_variance"] = explained_variance(value, target, rollout.valid)
    return columns, metrics


def normalized_advantage(
    advantage: Tensor, valid: Tensor, config: OnPolicyConfig, *, over_minibatch: bool = False
) -> Tensor:
    """Normalize advantages, and make them positive, as the config says.

    Args:
        advantage: of any shape.
        valid: of the same shape, which of them count.
        config: says whether, and over which samples.
        over_minibatch: they are a minibatch's, and not those of a whole rollout.
    """
    if (config.normalize_advantage == "minibatch") != over_minibatch:
        return advantage
    if config.normalize_advantage not in (False, "none"):
        advantage = normalize(advantage, valid)
    return shift_to_positive(advantage, valid) if config.positive_advantage else advantage
