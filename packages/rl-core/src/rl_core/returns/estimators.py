r"""Interchangeable estimators of advantages and value targets.

Each estimator turns the steps of a rollout into advantages and into the value target that belongs
to them; all have one signature, so that an option can name one. `rl_core.returns.advantages` holds
the recursions and says how terminated and truncated steps are treated.

| name | advantage | its own value target |
|---|---|---|
| ``return`` | $G_t$ | $G_t$ |
| ``baseline`` | $G_t - V(s_t)$ | $G_t$ |
| ``td`` | $r_t + \gamma V(s_{t+1}) - V(s_t)$ | $r_t + \gamma V(s_{t+1})$ |
| ``gae`` | $\sum_k (\gamma \lambda)^k \delta_{t+k}$ | advantage + $V(s_t)$ |
| ``vtrace`` | $\rho_t (r_t + \gamma v_{t+1} - V(s_t))$ | $v_t$ |
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rl_core.returns.advantages import discounted_returns, gae, td_targets, vtrace

AdvantageEstimator = Literal["gae", "td", "baseline", "return", "vtrace"]
"""How advantages are estimated; see the table of `rl_core.returns.estimators`."""

ValueTarget = Literal["advantage", "return", "td"]
"""What the value function learns: the target that belongs to the advantages, $G_t$, or one step."""


@dataclass(frozen=True, slots=True)
class Steps:
    """What estimators look at, each `(T, B)`.

    Attributes:
        reward: environment units after any scaling.
        value: of each step's observation.
        next_value: of each step's true successor; not read where the episode terminated.
        terminated: bool.
        truncated: bool.
        log_rho: log π(a|s) - log μ(a|s), learner's policy over behavior's; None where both are
            the same. Only ``vtrace`` reads it.
    """

    reward: Tensor
    value: Tensor
    next_value: Tensor
    terminated: Tensor
    truncated: Tensor
    log_rho: Tensor | None = None


def estimate(
    steps: Steps,
    gamma: float | Tensor,
    gae_lambda: float | Tensor,
    *,
    advantage: AdvantageEstimator = "gae",
    value_target: ValueTarget = "advantage",
) -> tuple[Tensor, Tensor]:
    """Estimate advantages and value targets.

    Args:
        steps: of a rollout.
        gamma: discount per step, in [0, 1].
        gae_lambda: λ of ``gae`` and ``vtrace``, in [0, 1].
        advantage: the estimator.
        value_target: what the value function learns.

    Returns:
        Advantages, not yet normalized, and value targets, both `(T, B)`.

    Raises:
        DataError: when shapes differ or a flag is not boolean.
    """
    ends = steps.terminated, steps.truncated
    if advantage == "gae":
        advantages = gae(steps.reward, steps.value, steps.next_value, *ends, gamma, gae_lambda)
        target = advantages + steps.value
    elif advantage == "vtrace":
        log_rho = torch.zeros_like(steps.value) if steps.log_rho is None else steps.log_rho
        target, advantages = vtrace(
            log_rho,
            steps.reward,
            steps.value,
            steps.next_value,
            *ends,
            gamma,
            trace_lambda=gae_lambda,
        )
    elif advantage == "td":
        target = td_targets(steps.reward, steps.next_value, steps.terminated, gamma)
        advantages = target - steps.value
    else:
        target = _complete_returns(steps, gamma)
        advantages = target - steps.value if advantage == "baseline" else target
    if value_target == "return":
        target = _complete_returns(steps, gamma)
    elif value_target == "td":
        target = td_targets(steps.reward, steps.next_value, steps.terminated, gamma)
    return advantages, target


def _complete_returns(steps: Steps, gamma: float | Tensor) -> Tensor:
    """Return $G_t$, shape `(T, B)`, bootstrapped where an episode or the rollout was cut."""
    return discounted_returns(
        steps.reward, steps.next_value, steps.terminated, steps.truncated, gamma
    )


def shift_to_positive(x: Tensor, mask: Tensor) -> Tensor:
    """Subtract the smallest entry that counts, so that none which counts is negative.

    Args:
        x: any shape.
        mask: the same shape, bool or 0/1: which entries count.

    Returns:
        The shape of ``x``; zero where an entry does not count.
    """
    counts = mask > 0
    smallest = torch.where(counts, x, torch.inf).amin()
    return torch.where(counts, x - smallest, 0.0)
