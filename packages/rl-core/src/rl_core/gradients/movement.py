"""What moves once gradients are known: parameters by their optimisers, targets by averaging."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from rl_core.gradients.groups import Due, ParameterGroup, ParameterLayout, TargetNetwork
from rl_core.gradients.loss import HyperParameters
from rl_core.gradients.optimizers import new_optimizer_state, optimizer_step
from rl_core.stateful import StateReader

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
