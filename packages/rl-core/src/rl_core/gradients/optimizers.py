"""What a gradient step changes: parameters by their optimizers, targets by averaging.

Optimizers are functions over one parameter vector, so that they can run inside a graph.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.optim.adam import adam

from rl_core.compile.trace import is_tracing
from rl_core.errors import ConfigError
from rl_core.gradients.loss import Due, HyperParameters
from rl_core.gradients.parameters import OptimizerConfig, ParameterGroup, TargetNetwork
from rl_core.stateful import StateReader


class ParameterUpdate:
    """Updates groups and targets, or leaves them as they are when a step must not count.

    Args:
        hyper: the algorithm's hyper-parameters.
        groups: which parameters are learned, and how.
        targets: which modules follow which.
        values: the vector of each group and of each target's module, by name.
        sources: see `ParameterLayout.sources`.

    Attributes:
        states: of the optimizers, by group and name.

    Raises:
        ConfigError: when a group moves after one that is not before it.
    """

    def __init__(
        self,
        hyper: HyperParameters,
        groups: Sequence[ParameterGroup],
        targets: Sequence[TargetNetwork],
        values: Mapping[str, Tensor],
        sources: Mapping[str, tuple[str, int, int]],
    ) -> None:
        self._hyper = hyper
        self._groups = {group.name: group for group in groups}
        self._depths = _depths(groups)
        self._values = values
        self._sources = sources
        # A target that keeps no group's pace is updated after the graph: it needs none of its own.
        paces = {1, *(group.every for group in groups)}
        self._targets = tuple(target for target in targets if target.every in paces)
        self._rare_targets = tuple(target for target in targets if target.every not in paces)
        self.states = {
            name: new_optimizer_state(group.optimizer, values[name])
            for name, group in self._groups.items()
        }
        device = next((vector.device for vector in values.values()), None)
        self._applied = torch.zeros((), dtype=torch.bool, device=device)

    def due(self, number: int) -> Due:
        """Return what the gradient step of a number, counted from 1, updates."""
        return Due(
            tuple(group.name for group in self._groups.values() if number % group.every == 0),
            tuple(target.module for target in self._targets if number % target.every == 0),
        )

    def stages(self, due: Due) -> tuple[tuple[str, ...], ...]:
        """Return the groups that are due in the order in which they move; some move together."""
        depths = sorted({self._depths[name] for name in due.groups})
        return tuple(
            tuple(name for name in due.groups if self._depths[name] == depth) for depth in depths
        ) or ((),)

    def apply(
        self,
        gradients: Mapping[str, Tensor],
        norms: Mapping[str, Tensor],
        apply: Tensor,
        frozen: Mapping[str, Tensor],
    ) -> None:
        """Clip and step in place, inside a graph or outside.

        Args:
            gradients: of the groups that move.
            norms: of these gradients.
            apply: 0-dim bool; where False nothing changes.
            frozen: entries that stay as they are, by group where there are any.
        """
        for name, gradient in gradients.items():
            group = self._groups[name]
            if group.max_grad_norm is not None:
                bound, norm = self._hyper[group.max_grad_norm], self._bounded_norm(group, norms)
                gradient = gradient * (bound / (norm + 1e-6)).clamp(max=1.0)
            rate = self._hyper[group.learning_rate]
            # A rate of 0 must not fill the optimizer's moments either.
            optimizer_step(
                group.optimizer,
                self._values[name],
                gradient,
                self.states[name],
                rate,
                apply & (rate > 0.0),
                frozen.get(name),
            )

    def follow(self, due: Due, apply: Tensor) -> None:
        """Update the targets that are due, inside a graph or outside.

        Args:
            due: which targets.
            apply: 0-dim bool; where False nothing changes.
        """
        for target in self._targets:
            if target.module in due.targets:
                self._follow(target, apply)
        if self._rare_targets:
            self._applied.copy_(apply)

    def update_rare_targets(self, number: int) -> None:
        """Update the targets that are due after a step and are updated outside its graph."""
        for target in self._rare_targets:
            if number % target.every == 0:
                self._follow(target, self._applied)

    @contextmanager
    def undone(self, groups: Sequence[str]) -> Iterator[None]:
        """Give groups and their optimizers back what they had before the block."""
        tensors = [
            tensor
            for name in groups
            for tensor in (self._values[name], *self.states[name].values())
        ]
        kept = [tensor.clone() for tensor in tensors]
        try:
            yield
        finally:
            for tensor, value in zip(tensors, kept, strict=True):
                tensor.copy_(value)

    @property
    def learns(self) -> bool:
        """Whether any group has a learning rate above 0."""
        return any(float(self._hyper[group.learning_rate]) > 0.0 for group in self._groups.values())

    def load(self, saved: StateReader) -> None:
        """Take over saved optimizer states.

        Raises:
            CheckpointError: when they belong to other optimizers, groups or sizes.
        """
        saved.expect(self.states)
        for group, tensors in self.states.items():
            of_group = saved.reader(group)
            of_group.expect(tensors)
            for name, tensor in tensors.items():
                tensor.copy_(of_group.tensor(name, like=tensor))

    @torch.no_grad()
    def _follow(self, target: TargetNetwork, apply: Tensor) -> None:
        """Update a target where the step counts and what it follows is learned."""
        group, start, size = self._sources[target.module]
        learns = self._hyper[self._groups[group].learning_rate] > 0.0
        tau = torch.where(apply & learns, self._hyper[target.tau], 0.0)
        slow = self._values[target.module]
        slow.lerp_(self._values[group].narrow(0, start, size), tau)

    def _bounded_norm(self, group: ParameterGroup, norms: Mapping[str, Tensor]) -> Tensor:
        """Return the norm that a group's bound is for."""
        if not group.joint_norm:
            return norms[group.name]
        sharing = [
            norm
            for name, norm in norms.items()
            if self._groups[name].joint_norm
            and self._groups[name].max_grad_norm == group.max_grad_norm
        ]
        joint: Tensor = torch.linalg.vector_norm(torch.stack(sharing))
        return joint


def _depths(groups: Sequence[ParameterGroup]) -> dict[str, int]:
    """Count how many groups move before each, one after the other."""
    depths: dict[str, int] = {}
    for group in groups:
        if group.after is not None and group.after not in depths:
            raise ConfigError(
                f"parameter group '{group.name}' moves after '{group.after}', which is not a group "
                "before it"
            )
        depths[group.name] = 0 if group.after is None else depths[group.after] + 1
    return depths


OptimizerState = dict[str, Tensor]
"""An optimizer's tensors by name, each of the parameter vector's shape, or 0-dim."""


def new_optimizer_state(config: OptimizerConfig, parameters: Tensor) -> OptimizerState:
    """Make the state of an optimizer that has taken no step."""
    if config.name in ("adam", "adamw"):
        return {
            "step": torch.zeros((), device=parameters.device),
            "exp_avg": torch.zeros_like(parameters),
            "exp_avg_sq": torch.zeros_like(parameters),
        }
    if config.name == "rmsprop":
        state = {"square_avg": torch.zeros_like(parameters)}
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

    Outside graphs that are compiled Adam runs as one fused kernel that knows how to skip.

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
        # Compiled for the CPU, the equations become one loop; a GPU replays kernels as they are.
        becomes_loop = is_tracing() and parameters.device.type == "cpu"
        if becomes_loop or frozen is not None:
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
    _copy_where(parameters, moved, state, moved_state, apply, moves)


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
        decoupled_weight_decay=config.name == "adamw",
        amsgrad=False,
        beta1=config.beta1,
        beta2=config.beta2,
        lr=learning_rate,
        weight_decay=config.weight_decay,
        eps=config.eps,
        maximize=False,
    )


def _adam_by_equations(
    config: OptimizerConfig,
    parameters: Tensor,
    gradient: Tensor,
    state: Mapping[str, Tensor],
    learning_rate: Tensor,
    apply: Tensor,
    moves: Tensor,
) -> None:
    """Kingma and Ba 2015, https://arxiv.org/abs/1412.6980, Algorithm 1."""
    moved = parameters
    if config.weight_decay > 0.0 and config.name == "adamw":
        moved = moved * (1.0 - learning_rate * config.weight_decay)
    elif config.weight_decay > 0.0:
        gradient = gradient + config.weight_decay * parameters
    step = state["step"] + 1.0
    # 1 - β^t has few digits left while it is small, so they are taken from double numbers.
    corrections = [(1.0 - b ** step.double()).float() for b in (config.beta1, config.beta2)]
    first = torch.lerp(state["exp_avg"], gradient, 1.0 - config.beta1)
    second = config.beta2 * state["exp_avg_sq"] + (1.0 - config.beta2) * gradient.square()
    # Processors take a hundred times as long for what is below 1e-38, as moments of dead units are.
    first = torch.where(first.abs() < 1e-35, 0.0, first)
    second = second.clamp(min=1e-35)
    rate = learning_rate / corrections[0]
    scale = torch.rsqrt(corrections[1])
    moved = moved - rate * first / (second.sqrt() * scale + config.eps)
    changed = {
        "step": step,
        "exp_avg": first,
        "exp_avg_sq": second,
    }
    _copy_where(parameters, moved, state, changed, apply, moves)


def _copy_where(
    parameters: Tensor,
    moved: Tensor,
    state: Mapping[str, Tensor],
    changed: Mapping[str, Tensor],
    apply: Tensor,
    moves: Tensor,
) -> None:
    """Take over parameters and state vectors where ``moves``, numbers where ``apply`` is True."""
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
