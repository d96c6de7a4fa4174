"""Advantages and value targets of a fresh rollout."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from rl_core.actor import Actor
from rl_core.batch import Rollout
from rl_core.estimators import (
    AdvantageEstimator,
    Steps,
    ValueTarget,
    estimate,
    shift_to_positive,
)
from rl_core.nn.distributions import Distribution, to_columns
from rl_core.returns import explained_variance, normalize
from rl_core.rollouts import evaluate_rollout


def advantage_columns(
    actor: Actor,
    rollout: Rollout,
    gamma: Tensor,
    gae_lambda: Tensor,
    *,
    normalize_advantage: bool,
    positive_advantage: bool = False,
    estimator: AdvantageEstimator = "gae",
    value_target: ValueTarget = "advantage",
    has_value: bool = True,
    reward_bonus: Callable[[Distribution], Tensor] | None = None,
    keeps_policy: bool = False,
) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
    """Estimate advantages and, before they are normalised, value targets.

    Args:
        actor: with the behaviour's weights.
        rollout: `(T, B, ...)`.
        gamma: discount.
        gae_lambda: λ.
        normalize_advantage: standardise advantages over the whole rollout.
        positive_advantage: then subtract the smallest.
        estimator: of the advantages.
        value_target: what the value function learns.
        has_value: False where no value function is learned: all values are 0.
        reward_bonus: from the policy to what is added to the rewards, `(T, B)`.
        keeps_policy: attach the behaviour's distribution, for `from_columns`.

    Returns:
        The columns of a `RolloutBatch`, each `(T, B)`, and metrics.
    """
    values = evaluate_rollout(actor, rollout)
    value, next_value = values.value, values.next_value
    if not has_value:
        value, next_value = torch.zeros_like(value), torch.zeros_like(next_value)
    reward = rollout.reward
    if reward_bonus is not None:
        reward = reward + reward_bonus(values.distribution) * rollout.valid
    steps = Steps(reward, value, next_value, rollout.terminated, rollout.truncated)
    advantage, target = estimate(
        steps, gamma, gae_lambda, advantage=estimator, value_target=value_target
    )
    if normalize_advantage:
        advantage = normalize(advantage, rollout.valid)
    if positive_advantage:
        advantage = shift_to_positive(advantage, rollout.valid)
    columns = {
        "log_prob": values.log_prob,
        "value": value,
        "advantage": advantage,
        "value_target": target,
    }
    if keeps_policy:
        columns |= to_columns(values.distribution, tuple(reward.shape))
    if not has_value:
        return columns, {}
    explained = explained_variance(value, target, rollout.valid)
    return columns, {"value/explained_variance": explained}
