r"""Returns, advantages and value targets of a rollout, as pure functions.

Every argument is `(T, B)`: time first, environments second. ``next_value[t]`` is the value of the
true successor of step ``t``: the next row's value inside an episode, the value of the final
observation where the episode was cut, and whatever follows the last row. No further bootstrap
value is needed. Where an episode terminated the entry is not read, so it may hold anything.

A terminated step never bootstraps; a truncated one bootstraps from ``next_value``; a step that
claims to be both counts as terminated. Nothing flows backwards over the end of an episode.

The recursions $x_t = b_t + c_t x_{t+1}$ are solved by doubling in $\log_2 T$ whole-array steps
instead of $T$ row by row, which is many times faster eagerly, compiles to a small graph, and runs
on any device, under ``torch.func.vmap`` too.
"""

import torch
from torch import Tensor

from rl_core.errors import DataError


def td_targets(
    reward: Tensor, next_value: Tensor, terminated: Tensor, gamma: float | Tensor
) -> Tensor:
    r"""Return one-step targets $r_t + \gamma V(s_{t+1})$.

    Args:
        reward: shape `(T, B)`, environment units after any scaling.
        next_value: shape `(T, B)`, of each step's true successor.
        terminated: shape `(T, B)`, bool.
        gamma: discount per step, in [0, 1].

    Returns:
        Shape `(T, B)`.

    Raises:
        DataError: when the shapes differ or a flag is not boolean.

    Source:
        Sutton and Barto 2018, "Reinforcement Learning", Eq. (6.2).
    """
    _check(reward, next_value=next_value, terminated=terminated)
    return reward + gamma * next_value.masked_fill(terminated, 0.0)


def td_advantages(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    gamma: float | Tensor,
) -> Tensor:
    r"""Return one-step errors $\delta_t = r_t + \gamma V(s_{t+1}) - V(s_t)$.

    Args:
        reward: shape `(T, B)`, environment units after any scaling.
        value: shape `(T, B)`, of each step's observation.
        next_value: shape `(T, B)`, of each step's true successor.
        terminated: shape `(T, B)`, bool.
        gamma: discount per step, in [0, 1].

    Returns:
        Shape `(T, B)`.

    Raises:
        DataError: when the shapes differ or a flag is not boolean.

    Source:
        Sutton and Barto 2018, "Reinforcement Learning", Eq. (6.5).
    """
    _check(reward, value=value)
    return td_targets(reward, next_value, terminated, gamma) - value


def discounted_returns(
    reward: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float | Tensor,
) -> Tensor:
    r"""Return complete returns $G_t = r_t + \gamma G_{t+1}$.

    Where an episode is truncated, and after the last row, $G_{t+1}$ is the value of the successor;
    where it is terminated, zero.

    Args:
        reward: shape `(T, B)`, environment units after any scaling.
        next_value: shape `(T, B)`, of each step's true successor; read where an episode was cut
            and in the last row only.
        terminated: shape `(T, B)`, bool.
        truncated: shape `(T, B)`, bool.
        gamma: discount per step, in [0, 1].

    Returns:
        Shape `(T, B)`.

    Raises:
        DataError: when the shapes differ or a flag is not boolean.

    Source:
        Sutton and Barto 2018, "Reinforcement Learning", Eq. (3.9).
    """
    _check(reward, next_value=next_value, terminated=terminated, truncated=truncated)
    going_on = (terminated | truncated).logical_not()
    going_on = torch.cat([going_on[:-1], torch.zeros_like(going_on[-1:])])
    bootstrap = next_value.masked_fill(terminated | going_on, 0.0)
    return _solve_backwards(reward + gamma * bootstrap, gamma * going_on.to(reward.dtype))


def baseline_advantages(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float | Tensor,
) -> Tensor:
    r"""Return $G_t - V(s_t)$, the complete return above the baseline.

    Args:
        reward: shape `(T, B)`, environment units after any scaling.
        value: shape `(T, B)`, the baseline of each step's observation.
        next_value: shape `(T, B)`, of each step's true successor.
        terminated: shape `(T, B)`, bool.
        truncated: shape `(T, B)`, bool.
        gamma: discount per step, in [0, 1].

    Returns:
        Shape `(T, B)`.

    Raises:
        DataError: when the shapes differ or a flag is not boolean.

    Source:
        Sutton and Barto 2018, "Reinforcement Learning", Eq. (13.11).
    """
    _check(reward, value=value)
    return discounted_returns(reward, next_value, terminated, truncated, gamma) - value


def gae(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float | Tensor,
    gae_lambda: float | Tensor,
) -> Tensor:
    r"""Return generalized advantage estimates $A_t = \delta_t + \gamma \lambda A_{t+1}$.

    $\delta_t$ is that of `td_advantages`, and $A_{t+1}$ is zero where an episode ends. The value
    target that belongs to it, the λ-return, is ``advantage + value``.

    Args:
        reward: shape `(T, B)`, environment units after any scaling.
        value: shape `(T, B)`, of each step's observation.
        next_value: shape `(T, B)`, of each step's true successor.
        terminated: shape `(T, B)`, bool.
        truncated: shape `(T, B)`, bool.
        gamma: discount per step, in [0, 1].
        gae_lambda: 0 gives one-step errors, 1 complete returns above the baseline.

    Returns:
        Advantages, shape `(T, B)`.

    Raises:
        DataError: when the shapes differ or a flag is not boolean.

    Source:
        Schulman et al. 2016, https://arxiv.org/abs/1506.02438, Eq. (16).
    """
    _check(reward, truncated=truncated)
    delta = td_advantages(reward, value, next_value, terminated, gamma)
    going_on = (terminated | truncated).logical_not().to(delta.dtype)
    return _solve_backwards(delta, (gamma * gae_lambda) * going_on)


def vtrace(
    log_rho: Tensor,
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float | Tensor,
    rho_clip: float | Tensor = 1.0,
    c_clip: float | Tensor = 1.0,
    pg_rho_clip: float | Tensor = 1.0,
    trace_lambda: float | Tensor = 1.0,
) -> tuple[Tensor, Tensor]:
    r"""Return V-trace value targets and policy-gradient advantages of off-policy rollouts.

    With $\rho_t = \min(\bar\rho, \pi/\mu)$ and $c_t = \lambda \min(\bar c, \pi/\mu)$:

    - $v_t - V_t = \rho_t \delta_t + \gamma c_t (v_{t+1} - V_{t+1})$,
    - $A_t = \rho^{pg}_t (r_t + \gamma v_{t+1} - V_t)$.

    Args:
        log_rho: shape `(T, B)`, log π(a|s) - log μ(a|s): learner's policy over behavior's.
        reward: shape `(T, B)`, environment units after any scaling.
        value: shape `(T, B)`, of each step's observation.
        next_value: shape `(T, B)`, of each step's true successor.
        terminated: shape `(T, B)`, bool.
        truncated: shape `(T, B)`, bool.
        gamma: discount per step, in [0, 1].
        rho_clip: $\bar\rho$, above 0; decides which value function is the fixed point.
        c_clip: $\bar c$, above 0; bounds how far corrections reach back.
        pg_rho_clip: bound of the ratio in the advantage.
        trace_lambda: λ in [0, 1].

    Returns:
        Value targets $v_t$ and advantages $A_t$, both of shape `(T, B)`.

    Raises:
        DataError: when the shapes differ or a flag is not boolean.

    Source:
        Espeholt et al. 2018, https://arxiv.org/abs/1802.01561, Eq. (1), Remarks 1 and 2, and
        section 4.2.
    """
    _check(reward, log_rho=log_rho, truncated=truncated)
    rho = log_rho.exp()
    going_on = (terminated | truncated).logical_not().to(reward.dtype)
    delta = rho.clamp(max=rho_clip) * td_advantages(reward, value, next_value, terminated, gamma)
    trace = (gamma * trace_lambda) * going_on * rho.clamp(max=c_clip)
    correction = _solve_backwards(delta, trace)

    next_correction = torch.cat([correction[1:], torch.zeros_like(correction[:1])]) * going_on
    advantage = td_advantages(reward, value, next_value + next_correction, terminated, gamma)
    return value + correction, rho.clamp(max=pg_rho_clip) * advantage


def normalize(x: Tensor, mask: Tensor | None = None, eps: float = 1e-8) -> Tensor:
    """Shift and scale to zero mean and unit standard deviation over all entries that count.

    The standard deviation is the population's, so that a single entry gives 0 and not NaN.

    Args:
        x: any shape, finite.
        mask: the shape of ``x``, bool or 0/1: which entries count; None counts all.
        eps: added to the standard deviation.

    Returns:
        The shape of ``x``; zero where an entry does not count.

    Raises:
        DataError: when the shapes differ.
    """
    if mask is None:
        std, mean = torch.std_mean(x, correction=0)
        return (x - mean) / (std + eps)
    _check(x, mask=mask)
    weight = mask.to(x.dtype)
    count = weight.sum().clamp(min=1.0)
    centered = (x - (x * weight).sum() / count) * weight
    return centered / ((centered.square().sum() / count).sqrt() + eps)


def explained_variance(prediction: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the share of the target's variance that a prediction accounts for.

    1 is perfect, 0 as good as any constant, negative worse than that.

    Args:
        prediction: any shape.
        target: the shape of ``prediction``.
        mask: the same shape, bool or 0/1: which entries count; None counts all.

    Returns:
        A 0-dim tensor, ``1 - Var(target - prediction) / Var(target)``; 0 when the target does not
        vary, because then there is nothing to explain.

    Raises:
        DataError: when the shapes differ.
    """
    _check(prediction, target=target)
    weight = torch.ones_like(target) if mask is None else mask.to(target.dtype)
    _check(prediction, mask=weight)
    count = weight.sum().clamp(min=1.0)

    def moments(x: Tensor) -> tuple[Tensor, Tensor]:
        mean = (x * weight).sum() / count
        return mean, ((x - mean).square() * weight).sum() / count

    _, unexplained = moments(target - prediction)
    mean, total = moments(target)
    rounding = 8.0 * torch.finfo(target.dtype).eps * mean  # a constant's deviation from its mean
    return torch.where(total > rounding.square(), 1.0 - unexplained / total, 0.0)


def _solve_backwards(inputs: Tensor, coefficients: Tensor) -> Tensor:
    """Solve x[t] = inputs[t] + coefficients[t] * x[t + 1], with zero after the last row.

    The step with stride s extends every partial sum from s terms to 2 s (Hillis and Steele 1986).
    """
    total, factor = inputs, coefficients
    num_steps = inputs.shape[0]
    stride = 1
    while stride < num_steps:
        head = num_steps - stride
        extended = torch.addcmul(total[:head], factor[:head], total[stride:])
        total = torch.cat([extended, total[head:]])
        if 2 * stride < num_steps:
            factor = factor[: head - stride] * factor[stride:head]
        stride *= 2
    return total


def _check(reference: Tensor, **others: Tensor) -> None:
    for name, tensor in others.items():
        if tensor.shape != reference.shape:
            raise DataError(
                f"{name} has shape {tuple(tensor.shape)}; expected that of the other arguments, "
                f"{tuple(reference.shape)}: shapes are not broadcast"
            )
        if name in ("terminated", "truncated") and tensor.dtype != torch.bool:
            raise DataError(f"{name} has dtype {tensor.dtype}; expected torch.bool: use .bool()")
