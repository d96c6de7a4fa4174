"""A loss as a module: what it returns, what it may use, and at which parameters it runs."""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import reduce
from itertools import chain
from operator import attrgetter, is_, itemgetter
from typing import Any, Generic, TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from rl_core.errors import ConfigError, nearest
from rl_core.stateful import StateReader
from rl_core.types import StateDict

BatchT = TypeVar("BatchT")

Noise: TypeAlias = Mapping[str, Tensor]
"""Random numbers drawn ahead for one gradient step, by name."""


@dataclass(frozen=True, slots=True)
class LossOutput:
    """What a loss returns for one batch.

    Attributes:
        loss: 0-dim; the sum of all losses, each of which reaches only its own parameters.
        metrics: 0-dim tensors by path, the same ones in all steps that move the same groups; each
            is averaged over the steps that returned it.
        samples: per-sample results by name, each `(N,)`, such as ``td_error``; handed to the
            storage's ``after_gradients``.
        stop: 0-dim bool; where True this loss's groups stay as they are, and no later step of the
            update counts.
    """

    loss: Tensor
    metrics: Mapping[str, Tensor] = field(default_factory=dict)
    samples: Mapping[str, Tensor] = field(default_factory=dict)
    stop: Tensor | None = None

    def joined(self, other: "LossOutput") -> "LossOutput":
        """Add another loss, with its metrics and samples; either may ask to stop."""
        stops = [stop for stop in (self.stop, other.stop) if stop is not None]
        return LossOutput(
            self.loss + other.loss,
            {**self.metrics, **other.metrics},
            {**self.samples, **other.samples},
            reduce(torch.logical_or, stops) if stops else None,
        )

    def detached(self) -> "LossOutput":
        """Return the same without gradients."""
        return LossOutput(
            self.loss.detach(),
            {name: value.detach() for name, value in self.metrics.items()},
            {name: value.detach() for name, value in self.samples.items()},
            None if self.stop is None else self.stop.detach(),
        )


torch.export.register_dataclass(LossOutput)

Loss: TypeAlias = Callable[[BatchT, Noise], LossOutput]
"""Computes the loss of a batch."""


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Average over the entries that count.

    Args:
        values: any shape; where an entry does not count it may be anything, NaN too.
        mask: the same shape, 1 where an entry counts and 0 elsewhere.

    Returns:
        A 0-dim tensor; zero when nothing counts.
    """
    return torch.where(mask.bool(), values, 0.0).sum() / mask.sum().clamp(min=1.0)


@dataclass(frozen=True, slots=True)
class Due:
    """What one gradient step updates.

    Attributes:
        groups: names of parameter groups.
        targets: names of target networks' modules.
    """

    groups: tuple[str, ...]
    targets: tuple[str, ...]


class HyperParameters(nn.Module):
    """Numbers that may change while running, each a 0-dim float32 buffer.

    As buffers they are inputs of a compiled graph: a new value needs no recompilation.
    """

    def __init__(self, values: Mapping[str, float]) -> None:
        super().__init__()
        for name, value in values.items():
            self.register_buffer(name, torch.tensor(float(value)))

    def __getitem__(self, name: str) -> Tensor:
        """Return the 0-dim tensor of a hyper-parameter.

        Raises:
            ConfigError: when the config has no field of this name that may change.
        """
        buffer = self._buffers.get(name)
        if buffer is None:
            raise ConfigError(
                f"no hyper-parameter '{name}'{nearest(name, self._buffers)}: only fields typed as "
                "scheduled, such as ScheduledNonNegative, are some, and not where they are None"
            )
        return buffer

    def __contains__(self, name: object) -> bool:
        """Say whether there is a hyper-parameter of a name."""
        return name in self._buffers

    def __iter__(self) -> Iterator[str]:
        """Go through the names."""
        return iter(self._buffers)


class LossModule(nn.Module, Generic[BatchT]):
    """A module whose forward is an algorithm's loss.

    It holds every module the loss uses, so that `torch.func.functional_call` can run the loss at
    explicit parameters while the algorithm's code goes on using its modules by name.
    """

    def __init__(
        self,
        loss: Loss[BatchT],
        modules: Mapping[str, nn.Module],
        hyper: HyperParameters,
    ) -> None:
        super().__init__()
        self._loss = loss
        self._due: tuple[str, ...] | None = None
        for name, module in modules.items():
            if name == "hyper" or hasattr(self, name):
                raise ConfigError(f"no module can be called '{name}'; choose another name")
            self.add_module(name, module)
        self.add_module("hyper", hyper)
        self._places = parameter_places(self)

    def forward(self, batch: BatchT, noise: Noise) -> LossOutput:
        """Compute the loss, and refuse what is none."""
        output = self._loss(batch, noise)
        if not isinstance(output, LossOutput):
            raise ConfigError(f"loss returned a {type(output).__name__}; expected a LossOutput")
        for name, value in output.metrics.items():
            if not isinstance(value, Tensor):
                raise ConfigError(f"the loss's metric '{name}' is {value!r}; expected a tensor")
        return output

    def is_due(self, group: str) -> bool:
        """Return whether the gradient step at hand moves a parameter group.

        Outside a gradient step, and in one that moves nothing, every group is due.
        """
        return not self._due or group in self._due

    def sum_due(self, parts: Mapping[str, Loss[BatchT]], batch: BatchT, noise: Noise) -> LossOutput:
        """Sum the losses, by group, of the groups that are due.

        Raises:
            ConfigError: when there is none for any of them.
        """
        due = [loss for group, loss in parts.items() if self.is_due(group)]
        if not due:
            raise ConfigError(
                f"groups {list(self._due or ())} move now, but losses are given for {list(parts)}; "
                "expected one for each group that moves alone"
            )
        return reduce(LossOutput.joined, [loss(batch, noise) for loss in due])

    @contextmanager
    def moving(self, groups: tuple[str, ...]) -> Iterator[None]:
        """Let only some groups be due inside the block."""
        self._due = groups
        try:
            yield
        finally:
            self._due = None

    def at(self, parameters: Mapping[str, Tensor], batch: BatchT, noise: Noise) -> LossOutput:
        """Compute the loss at explicit parameters; what is missing keeps its value.

        Raises:
            ConfigError: when there is no parameter of a name.
        """
        for name in parameters:
            if name not in self._places:
                raise ConfigError(f"no parameter is called '{name}'{nearest(name, self._places)}")
        # Torch's own tying of weights leaves a module that has two paths at the new parameters.
        spread = {
            place: tensor for name, tensor in parameters.items() for place in self._places[name]
        }
        output: LossOutput = functional_call(self, spread, (batch, noise), tie_weights=False)
        return output

    def state(self) -> StateDict:
        """Return the modules' tensors, and which parameters are frozen."""
        frozen = {n: True for n, part in self.named_parameters() if not part.requires_grad}
        return {"modules": dict(self.state_dict()), "frozen": frozen}

    def load(self, saved: StateReader) -> None:
        """Take over what `state` returned.

        Raises:
            CheckpointError: when it belongs to other modules.
        """
        modules, frozen, current = saved.reader("modules"), saved.tree("frozen"), self.state_dict()
        modules.expect(current)
        tensors = {name: modules.tensor(name, like=own) for name, own in current.items()}
        self.load_state_dict(tensors)
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(name not in frozen)


def parameter_places(module: nn.Module) -> dict[str, tuple[str, ...]]:
    """Name every place where each parameter sits, by the name that `named_parameters` gives it.

    A module that is reached by two paths is one place; a parameter that two modules hold has two.
    """
    places: dict[Tensor, list[str]] = {}
    for prefix, owner in module.named_modules():
        own = owner.named_parameters(prefix, recurse=False, remove_duplicate=False)
        for name, parameter in own:
            places.setdefault(parameter, []).append(name)
    return {names[0]: tuple(names) for names in places.values()}


def call_frozen(module: nn.Module, *args: Any) -> Any:
    """Run a module whose parameters are constants: gradients reach its inputs only.

    This is how a policy's loss goes through a critic that it must not train. It works at explicit
    parameters and in compiled graphs too, where ``requires_grad_`` does not.

    Args:
        module: what to run.
        *args: its inputs.

    Returns:
        What the module returns.
    """
    constants = {
        name: parameter.detach()
        for prefix, owner in module.named_modules()
        for name, parameter in owner.named_parameters(prefix, recurse=False, remove_duplicate=False)
    }
    return functional_call(module, constants, args, tie_weights=False)


def parameters_replaced() -> ConfigError:
    """Return the error for parameters that no vector holds any more."""
    return ConfigError(
        "the actor's parameters were moved or replaced after the algorithm was built; move the "
        "actor to its device first, and load weights with load_state_dict"
    )


class ModuleWatch:
    """Notices what compiled code cannot: exchanged tensors, frozen parameters, other modes.

    Args:
        module: with all its submodules.

    Attributes:
        were_replaced: whether other objects took the place of parameters since it was made.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self.were_replaced = False
        self._note()

    def __deepcopy__(self, memo: dict[int, Any]) -> "ModuleWatch":
        """Return one of the copied module."""
        return ModuleWatch(copy.deepcopy(self._module, memo))

    def look(self) -> bool:
        """Say whether anything was exchanged since the last look."""
        tensors = list(chain.from_iterable(map(_values, self._holders)))
        if (
            len(tensors) == len(self._tensors)
            and all(map(is_, tensors, self._tensors))
            and list(map(_needs_gradient, self._parameters)) == self._needed
            and list(map(_is_training, self._attributes)) == self._modes
        ):
            return False
        before = self._parameters
        self._note()
        kept = set(map(id, self._tensors))
        self.were_replaced |= any(id(parameter) not in kept for parameter in before)
        return True

    def _note(self) -> None:
        modules = list(self._module.modules())
        self._attributes = list(map(vars, modules))  # asked faster than the modules
        self._modes = list(map(_is_training, self._attributes))
        self._holders: list[dict[str, Any]] = []
        for module in modules:
            parts = module._parameters, module._buffers, module._modules
            self._holders += [held for held in parts if held]
        self._tensors = list(chain.from_iterable(map(_values, self._holders)))
        self._parameters = [part for part in self._tensors if isinstance(part, nn.Parameter)]
        self._needed = list(map(_needs_gradient, self._parameters))


_values: Callable[[dict[str, Any]], Iterable[Any]] = dict.values
_is_training, _needs_gradient = itemgetter("training"), attrgetter("requires_grad")
