"""Optimisers as functions over one parameter vector, so that they can run inside a graph."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

import torch
from annotated_types import Interval
from torch import Tensor
from torch.optim.adam import adam

from rl_core.compile import is_tracing
from rl_core.config import Config, Needs, NonNegative

OptimizerName = Literal["adam", "adamw", "rmsprop", "sgd"]
"""The optimisers an algorithm can be given by name."""

Decay: TypeAlias = Annotated[float, Interval(ge=0, lt=1)]
"""How much of an average stays in each step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerConfig(Config):
    """Which optimiser moves the parameters.

    Attributes:
        name: the update rule.
        eps: added to the denominator (Adam, RMSprop); the default is torch's 1e-8.
        beta1: decay of Adam's first moment.
        beta2: decay of Adam's second moment.
        alpha: decay of RMSprop's squared average.
        momentum: of SGD and RMSprop.
        weight_decay: L2 penalty; decoupled for AdamW.

    Raises:
        ConfigError: for an unknown name, a value of another type or out of range, or one that the
            named optimiser does not use.
    """

    name: OptimizerName = "adam"
    eps: Annotated[NonNegative, Needs("name", "adam", "adamw", "rmsprop")] = 1e-8
    beta1: Annotated[Decay, Needs("name", "adam", "adamw")] = 0.9
    beta2: Annotated[Decay, Needs("name", "adam", "adamw")] = 0.999
    alpha: Annotated[Decay, Needs("name", "rmsprop")] = 0.99
    momentum: Annotated[Decay, Needs("name", "rmsprop", "sgd")] = 0.0
    weight_decay: NonNegative = 0.0


OptimizerState = dict[str, Tensor]
"""An optimiser's tensors by name, each of the parameter vector's shape, or 0-dim."""


def new_optimizer_state(config: OptimizerConfig, parameters: Tensor) -> OptimizerState:
    """Make the state of an optimiser that has taken no step."""
    step = torch.zeros((), device=parameters.device)
    if config.name in ("adam", "adamw"):
        return {
            "step": step,
            "beta1_power": torch.ones_like(step),
            "beta2_power": torch.ones_like(step),
            "exp_avg": torch.zeros_like(parameters),
            "exp_avg_sq": torch.zeros_like(parameters),
        }
    if config.name == "rmsprop":
        state = {"step": step, "square_avg": torch.zeros_like(parameters)}
        if config.momentum > 0.0:
            state["momentum_buffer"] = torch.zeros_like(parameters)
        return state
    return {"momentum_buffer": torch.zeros_like(parameters)} if config.momentum > 0.0 else {}


def optimizer_step(
    config: OptimizerConfig,
    parameters: Tensor,
    gradient: Tensor,
    state: Mapping[str, Tensor],
    learning_rate: Tensor,
    apply: Tensor,
    frozen: Tensor | None = None,
) -> None:
    """Move the parameters in place, or leave everything as it is.

    Outside compiled graphs Adam runs as one fused kernel that knows how to skip.

    Args:
        config: the update rule.
        parameters: shape `(P,)`, changed in place.
        gradient: shape `(P,)`.
        state: from `new_optimizer_state`, changed in place.
        learning_rate: 0-dim.
        apply: 0-dim bool; where False neither parameters nor state change.
        frozen: shape `(P,)`, bool: entries that stay as they are; None moves all.
    """
    moves = apply if frozen is None else apply & ~frozen
    if config.name in ("adam", "adamw"):
        if is_tracing() or frozen is not None:
            _adam_by_equations(config, parameters, gradient, state, learning_rate, apply, moves)
        else:
            _fused_adam(config, parameters, gradient, state, learning_rate, apply)
        return
    if config.weight_decay > 0.0:
        gradient = gradient + config.weight_decay * parameters
    moved = parameters.clone()
    moved_state = {name: value.clone() for name, value in state.items()}
    step = _rmsprop if config.name == "rmsprop" else _sgd
    step(config, moved, gradient, moved_state, learning_rate)
    _take(parameters, moved, state, moved_state, apply, moves)


def _fused_adam(
    config: OptimizerConfig,
    parameters: Tensor,
    gradient: Tensor,
    state: Mapping[str, Tensor],
    learning_rate: Tensor,
    apply: Tensor,
) -> None:
    adam(
        [parameters],
        [gradient],
        [state["exp_avg"]],
        [state["exp_avg_sq"]],
        [],
        [state["step"]],
        foreach=False,
        capturable=False,
        differentiable=False,
        fused=True,
        found_inf=(~apply).to(torch.float32),
        has_complex=False,
        decoupled_weight_decay=config.name == "adamw",
        amsgrad=False,
        beta1=config.beta1,
        beta2=config.beta2,
        lr=learning_rate,
        weight_decay=config.weight_decay,
        eps=config.eps,
        maximize=False,
    )
    for beta, power in ((config.beta1, "beta1_power"), (config.beta2, "beta2_power")):
        state[power].copy_(beta ** state["step"])


def _adam_by_equations(
    config: OptimizerConfig,
    parameters: Tensor,
    gradient: Tensor,
    state: Mapping[str, Tensor],
    learning_rate: Tensor,
    apply: Tensor,
    moves: Tensor,
) -> None:
    """Kingma and Ba 2015, https://arxiv.org/abs/1412.6980, Algorithm 1.

    The powers of the betas are kept, because a graph would raise them anew for every few numbers.
    """
    moved = parameters
    if config.weight_decay > 0.0 and config.name == "adamw":
        moved = moved * (1.0 - learning_rate * config.weight_decay)
    elif config.weight_decay > 0.0:
        gradient = gradient + config.weight_decay * parameters
    powers = state["beta1_power"] * config.beta1, state["beta2_power"] * config.beta2
    first = torch.lerp(state["exp_avg"], gradient, 1.0 - config.beta1)
    second = config.beta2 * state["exp_avg_sq"] + (1.0 - config.beta2) * gradient.square()
    rate = learning_rate / (1.0 - powers[0])
    scale = torch.rsqrt(1.0 - powers[1])
    moved = moved - rate * first / (second.sqrt() * scale + config.eps)
    changed = {
        "step": state["step"] + 1.0,
        "beta1_power": powers[0],
        "beta2_power": powers[1],
        "exp_avg": first,
        "exp_avg_sq": second,
    }
    _take(parameters, moved, state, changed, apply, moves)


def _take(
    parameters: Tensor,
    moved: Tensor,
    state: Mapping[str, Tensor],
    changed: Mapping[str, Tensor],
    apply: Tensor,
    moves: Tensor,
) -> None:
    """Take over moved parameters and the changed state where they move, numbers where it counts."""
    parameters.copy_(torch.where(moves, moved, parameters))
    for name, value in changed.items():
        counts = moves if value.dim() else apply
        state[name].copy_(torch.where(counts, value, state[name]))


def _rmsprop(
    config: OptimizerConfig,
    parameters: Tensor,
    gradient: Tensor,
    state: dict[str, Tensor],
    learning_rate: Tensor,
) -> None:
    """Tieleman and Hinton 2012, Lecture 6.5; eps is added to the root, as in torch."""
    state["step"].add_(1.0)
    average = state["square_avg"].mul_(config.alpha).add_((1.0 - config.alpha) * gradient.square())
    direction = gradient / (average.sqrt() + config.eps)
    if config.momentum > 0.0:
        direction = state["momentum_buffer"].mul_(config.momentum).add_(direction)
    parameters.sub_(learning_rate * direction)


def _sgd(
    config: OptimizerConfig,
    parameters: Tensor,
    gradient: Tensor,
    state: dict[str, Tensor],
    learning_rate: Tensor,
) -> None:
    """Momentum that starts from zero, so that its first step is the gradient, as in torch."""
    if config.momentum > 0.0:
        gradient = state["momentum_buffer"].mul_(config.momentum).add_(gradient)
    parameters.sub_(learning_rate * gradient)
