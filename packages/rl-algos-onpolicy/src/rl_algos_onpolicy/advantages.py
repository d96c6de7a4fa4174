"""Advantages and value targets of a fresh rollout."""

from collections.abc import Mapping

from torch import Tensor

from rl_core.actor import Actor
from rl_core.batch import Rollout
from rl_core.returns import explained_variance, gae, normalize
from rl_core.rollouts import evaluate_rollout


def gae_columns(
    actor: Actor,
    rollout: Rollout,
    gamma: Tensor,
    gae_lambda: Tensor,
    *,
    normalize_advantage: bool,
) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
    """Estimate advantages by GAE; the value target is advantage + value, before normalisation.

    Args:
        actor: with the behaviour's weights.
        rollout: `(T, B, ...)`.
        gamma: discount.
        gae_lambda: λ.
        normalize_advantage: standardise advantages over the whole rollout.

    Returns:
        The columns of a `RolloutBatch`, each `(T, B)`, and metrics.
    """
    values = evaluate_rollout(actor, rollout)
    advantage = gae(
        rollout.reward,
        values.value,
        values.next_value,
        rollout.terminated,
        rollout.truncated,
        gamma,
        gae_lambda,
    )
    target = advantage + values.value
    columns = {
        "log_prob": values.log_prob,
        "value": values.value,
        "advantage": normalize(advantage, rollout.valid) if normalize_advantage else advantage,
        "value_target": target,
    }
    explained = explained_variance(values.value, target, rollout.valid)
    return columns, {"value/explained_variance": explained}
