"""What moves once gradients are known: parameters by their optimisers, targets by averaging."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from rl_core.errors import ConfigError
from rl_core.gradients.loss import HyperParameters
from rl_core.gradients.optimizers import OptimizerConfig, new_optimizer_state, optimizer_step
from rl_core.gradients.parameters import ParameterVector
from rl_core.stateful import StateReader


@dataclass(frozen=True, kw_only=True, slots=True)
class ParameterGroup:
    """Parameters that one optimiser moves.

    Attributes:
        name: of the group; metrics are called ``gradients/<name>_norm``.
        modules: prefixes of the parameters' names, such as ``actor`` or ``actor.critics``.
        learning_rate: name of the hyper-parameter that holds the learning rate.
        max_grad_norm: name of the hyper-parameter that bounds the gradient's norm, or None.
        joint_norm: bound the norm of this gradient and those of all groups that say so too and
            name the same bound, as if they were one; otherwise its own.
        optimizer: the update rule.
        every: move only on every so many gradient steps.
    """

    name: str
    modules: tuple[str, ...]
    learning_rate: str = "learning_rate"
    max_grad_norm: str | None = None
    joint_norm: bool = False
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    every: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetNetwork:
    """A slow copy of a module: parameters follow by averaging, buffers are copied.

    The copy needs no gradients and gets none. What is not learned of the source stays as it was.

    Attributes:
        module: name of the copy among the loss's modules, such as ``target_critics``.
        source: name of the module it follows, such as ``actor.critics``; one parameter group
            learns all of it that is learned.
        tau: name of the hyper-parameter: ``target ← (1 - tau) target + tau source``.
        every: move only on every so many gradient steps.
    """

    module: str
    source: str
    tau: str
    every: int = 1


@dataclass(frozen=True, slots=True)
class Due:
    """What one gradient step moves.

    Attributes:
        groups: names of parameter groups.
        targets: names of target networks' modules.
    """

    groups: tuple[str, ...]
    targets: tuple[str, ...]


class ParameterLayout:
    """The parameters of a loss, as one vector for each group, each target and all the rest.

    Args:
        loss: the module that holds them.
        groups: which are learned; together they cover all that require a gradient.
        targets: which modules follow which.
        constant: prefixes of the parameters that the loss leaves alone, whoever else learns them.

    Attributes:
        vectors: by name of the group or of the target's module; ``frozen`` for the rest.

    Raises:
        ConfigError: when a group names no parameter, one that needs a gradient is in none, or a
            target does not look like its source.
    """

    def __init__(
        self,
        loss: nn.Module,
        groups: Sequence[ParameterGroup],
        targets: Sequence[TargetNetwork] = (),
        constant: Sequence[str] = (),
    ) -> None:
        copies = {target.module: _submodule(loss, target.module) for target in targets}
        for copy in copies.values():
            copy.requires_grad_(False)
        left = dict(loss.named_parameters())
        self.vectors = {
            target.module: ParameterVector(_take(left, _followers(loss, target)))
            for target in targets
        }
        frozen = _take(left, constant)
        for group in groups:
            if group.name in self.vectors:
                raise ConfigError(f"two parameter groups or targets are called '{group.name}'")
            taken = _take(left, group.modules, learned=True)
            if not taken:
                raise ConfigError(
                    f"parameter group '{group.name}' finds no parameter left under {group.modules}"
                )
            self.vectors[group.name] = ParameterVector(taken)
        for name, parameter in left.items():
            if parameter.requires_grad:
                raise ConfigError(
                    f"parameter '{name}' requires a gradient but no parameter group learns it"
                )
        frozen |= left
        if frozen:
            self.vectors["frozen"] = ParameterVector(frozen)
        self._sources = {
            target.module: self._find_source(target, [group.name for group in groups])
            for target in targets
        }
        self._buffers = [
            (slow, fast)
            for target in targets
            for slow, fast in zip(
                copies[target.module].buffers(),
                _submodule(loss, target.source).buffers(),
                strict=True,
            )
        ]

    def group_of(self, target: TargetNetwork) -> str:
        """Name the group that learns what a target follows."""
        return self._sources[target.module][0]

    def source_of(self, target: TargetNetwork, values: Mapping[str, Tensor]) -> Tensor:
        """View the part of a group's vector `(P,)` that a target follows."""
        group, start, size = self._sources[target.module]
        return values[group].narrow(0, start, size)

    def named(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """View vectors, by name as `vectors`, as the loss's parameters by their own names."""
        return {
            name: tensor
            for key, vector in values.items()
            for name, tensor in self.vectors[key].split(vector).items()
        }

    def copy_buffers(self) -> None:
        """Let the buffers of targets be those of their sources."""
        for slow, fast in self._buffers:
            slow.copy_(fast)

    def _find_source(self, target: TargetNetwork, groups: Sequence[str]) -> tuple[str, int, int]:
        """Find the group, the first entry and the number of entries that a target follows."""
        slow = self.vectors[target.module]
        for group in groups:
            shapes = self.vectors[group].shapes
            inside = [name for name in shapes if name.startswith(target.source + ".")]
            if not inside:
                continue
            names = list(shapes)
            first = names.index(inside[0])
            matches = names[first : first + len(inside)] == inside and [
                shapes[name] for name in inside
            ] == list(slow.shapes.values())
            if not matches:
                break
            start = sum(shapes[name].numel() for name in names[:first])
            return group, start, slow.values.numel()
        raise ConfigError(
            f"target '{target.module}' must have the parameters of '{target.source}', and one "
            "parameter group learn all of them that are learned"
        )


def _submodule(loss: nn.Module, name: str) -> nn.Module:
    try:
        return loss.get_submodule(name)
    except AttributeError:
        raise ConfigError(f"the loss has no module '{name}'") from None


def _followers(loss: nn.Module, target: TargetNetwork) -> list[str]:
    """Name the parameters of a target that follow learned ones."""
    source = _submodule(loss, target.source)
    return [
        f"{target.module}.{name}"
        for name, parameter in source.named_parameters()
        if parameter.requires_grad
    ]


def _take(
    left: dict[str, nn.Parameter], prefixes: Sequence[str], learned: bool = False
) -> dict[str, nn.Parameter]:
    """Remove and return what lies under some prefixes; only what requires a gradient if learned."""
    return {
        name: left.pop(name)
        for name in list(left)
        if any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)
        and (left[name].requires_grad or not learned)
    }


OptimizerStates = dict[str, dict[str, Tensor]]
"""Optimisers' tensors by group and name."""


class Movement:
    """Moves groups and targets, or leaves them where they are when a step must not count.

    Args:
        hyper: the algorithm's hyper-parameters.
        layout: of the parameters.
        groups: which are learned, and how.
        targets: which modules follow which.

    Attributes:
        optimizer_states: by group.
    """

    def __init__(
        self,
        hyper: HyperParameters,
        layout: ParameterLayout,
        groups: Sequence[ParameterGroup],
        targets: Sequence[TargetNetwork],
    ) -> None:
        self._hyper = hyper
        self._layout = layout
        self._groups = {group.name: group for group in groups}
        # A target that keeps no group's pace moves after the graph: it needs no graph of its own.
        paces = {1, *(group.every for group in groups)}
        self._targets = tuple(target for target in targets if target.every in paces)
        self._rare_targets = tuple(target for target in targets if target.every not in paces)
        self.optimizer_states: OptimizerStates = {
            name: new_optimizer_state(group.optimizer, layout.vectors[name].values)
            for name, group in self._groups.items()
        }
        device = next(iter(layout.vectors.values())).values.device
        self._applied = torch.zeros((), dtype=torch.bool, device=device)

    def due(self, number: int) -> Due:
        """Say what a gradient step moves.

        Args:
            number: of the step, from 1.
        """
        return Due(
            tuple(group.name for group in self._groups.values() if number % group.every == 0),
            tuple(target.module for target in self._targets if number % target.every == 0),
        )

    def move(
        self,
        due: Due,
        values: Mapping[str, Tensor],
        states: OptimizerStates,
        gradients: Mapping[str, Tensor],
        norms: Mapping[str, Tensor],
        apply: Tensor,
        frozen: Mapping[str, Tensor],
    ) -> None:
        """Clip, step and move targets in place, inside a graph or outside.

        Args:
            due: which groups and targets.
            values: of all vectors, by name.
            states: of the optimisers.
            gradients: of the groups that are due.
            norms: of these gradients.
            apply: 0-dim bool; where False nothing changes.
            frozen: entries that stay as they are, by group where there are any.
        """
        for name, gradient in gradients.items():
            group = self._groups[name]
            if group.max_grad_norm is not None:
                bound = self._hyper[group.max_grad_norm]
                norm = self._bounded_norm(group, norms)
                gradient = gradient * (bound / (norm + 1e-6)).clamp(max=1.0)
            rate = self._hyper[group.learning_rate]
            # A rate of 0 must not fill the optimiser's moments either.
            moves = apply & (rate > 0.0)
            optimizer_step(
                group.optimizer, values[name], gradient, states[name], rate, moves, frozen.get(name)
            )
        for target in self._targets:
            if target.module in due.targets:
                self._follow(target, values, apply)
        if self._rare_targets:
            self._applied.copy_(apply)

    def move_rare_targets(self, number: int, values: Mapping[str, Tensor]) -> None:
        """Move the targets that are due after a step and move outside its graph.

        Args:
            number: of the step, from 1.
            values: of all vectors, by name.
        """
        for target in self._rare_targets:
            if number % target.every == 0:
                with torch.no_grad():
                    self._follow(target, values, self._applied)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """What `move` changes of its own, beside parameters and the optimisers' states."""
        return (self._applied,)

    @property
    def learns(self) -> bool:
        """Whether any group has a learning rate above 0."""
        return any(float(self._hyper[group.learning_rate]) > 0.0 for group in self._groups.values())

    def load(self, saved: StateReader) -> None:
        """Take over saved optimiser states.

        Raises:
            CheckpointError: when they belong to other groups or sizes.
        """
        for group, tensors in self.optimizer_states.items():
            of_group = saved.reader(group)
            for name, tensor in tensors.items():
                tensor.copy_(of_group.tensor(name, like=tensor))

    def _follow(self, target: TargetNetwork, values: Mapping[str, Tensor], apply: Tensor) -> None:
        """Move a target where the step counts and what it follows is learned."""
        group = self._groups[self._layout.group_of(target)]
        learns = self._hyper[group.learning_rate] > 0.0
        tau = torch.where(apply & learns, self._hyper[target.tau], 0.0)
        slow = values[target.module]
        slow.lerp_(self._layout.source_of(target, values), tau.to(slow.dtype))

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
        if len(sharing) == 1:
            return sharing[0]
        joint: Tensor = torch.linalg.vector_norm(torch.stack(sharing))
        return joint
