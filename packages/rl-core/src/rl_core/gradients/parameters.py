"""Parameters as data: a group as one vector, and modules run at parameters of one's choosing."""

import copy
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import chain
from operator import attrgetter, is_
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from rl_core.errors import ConfigError


class ParameterVector:
    """Hold named parameters in one contiguous vector that the modules' parameters are views of.

    Building it moves the parameters' memory into the vector; modules go on working and loading
    weights into them writes through. Moving a module to another device or dtype afterwards
    breaks the tie, which `check_tied` reports.

    Args:
        parameters: by name; all of one dtype and device.

    Raises:
        ConfigError: when dtypes or devices are mixed.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        kinds = {(p.dtype, p.device) for p in parameters.values()}
        if len(kinds) > 1:
            listed = ", ".join(sorted(f"{dtype} on {device}" for dtype, device in kinds))
            raise ConfigError(
                f"parameters of one group must share dtype and device, got {listed}; "
                "move the actor before building the algorithm"
            )
        self.shapes = {name: p.shape for name, p in parameters.items()}
        self._sizes = [p.numel() for p in parameters.values()]
        dtype, device = next(iter(kinds), (torch.float32, torch.device("cpu")))
        self.values = torch.empty(sum(self._sizes), dtype=dtype, device=device)
        self.gradient = torch.zeros_like(self.values)
        self._parameters = dict(parameters)
        for parameter, value, gradient in zip(
            parameters.values(),
            self.split(self.values).values(),
            self.split(self.gradient).values(),
            strict=True,
        ):
            value.copy_(parameter.detach())
            parameter.data = value
            if parameter.requires_grad:
                parameter.grad = gradient

    def split(self, vector: Tensor) -> dict[str, Tensor]:
        """View a vector `(P,)` as the named parameters' shapes."""
        pieces = torch.split(vector, self._sizes)
        return {
            name: piece.view(shape)
            for (name, shape), piece in zip(self.shapes.items(), pieces, strict=True)
        }

    def join(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Concatenate named tensors into a vector `(P,)`.

        Raises:
            ConfigError: when a name is missing or a shape differs.
        """
        for name, shape in self.shapes.items():
            if name not in tensors or tensors[name].shape != shape:
                got = tuple(tensors[name].shape) if name in tensors else "nothing"
                raise ConfigError(f"'{name}': expected shape {tuple(shape)}, got {got}")
        return torch.cat([tensors[name].reshape(-1) for name in self.shapes])

    def __deepcopy__(self, memo: dict[int, Any]) -> "ParameterVector":
        """Return the vector of the copied modules' parameters, which are views of it."""
        made = ParameterVector(copy.deepcopy(self._parameters, memo))
        made.gradient.copy_(self.gradient)
        gradients = made.split(made.gradient)
        for name, parameter in self._parameters.items():
            if parameter.grad is not None:  # also of those that are frozen for now
                made._parameters[name].grad = gradients[name]
        memo[id(self.values)], memo[id(self.gradient)] = made.values, made.gradient
        return made

    @property
    def frozen(self) -> tuple[str, ...]:
        """Names of the parameters that need no gradient."""
        return tuple(n for n, p in self._parameters.items() if not p.requires_grad)

    def mask(self, names: Collection[str]) -> Tensor:
        """Return which entries belong to these parameters, `(P,)`, bool."""
        kept = torch.zeros_like(self.values, dtype=torch.bool)
        for name, part in self.split(kept).items():
            part.fill_(name in names)
        return kept

    def check_tied(self) -> None:
        """Make sure that the modules still use this vector.

        Raises:
            ConfigError: when a module was moved, or its parameters or gradients were replaced.
        """
        for parameter, value, gradient in zip(
            self._parameters.values(),
            self.split(self.values).values(),
            self.split(self.gradient).values(),
            strict=True,
        ):
            if parameter.data_ptr() != value.data_ptr():
                raise parameters_replaced()
            held = parameter.grad
            if parameter.requires_grad and (held is None or held.data_ptr() != gradient.data_ptr()):
                raise ConfigError(
                    "the actor's gradients were replaced after the algorithm was built, so that it "
                    "learns no more; call zero_grad(set_to_none=False), or not at all"
                )


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
            and list(map(_is_training, self._modules)) == self._modes
        ):
            return False
        kept = {id(tensor) for tensor in tensors}
        self.were_replaced |= any(id(parameter) not in kept for parameter in self._parameters)
        self._note()
        return True

    def _note(self) -> None:
        self._modules = list(self._module.modules())
        self._modes = list(map(_is_training, self._modules))
        self._holders: list[dict[str, Any]] = []
        for module in self._modules:
            self._holders += [held for held in (module._parameters, module._buffers) if held]
        self._tensors = list(chain.from_iterable(map(_values, self._holders)))
        self._parameters = [part for part in self._tensors if isinstance(part, nn.Parameter)]
        self._needed = list(map(_needs_gradient, self._parameters))


_values: Callable[[dict[str, Any]], Iterable[Any]] = dict.values
_is_training, _needs_gradient = attrgetter("training"), attrgetter("requires_grad")


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
        What the module answers.
    """
    constants = {
        name: parameter.detach()
        for prefix, owner in module.named_modules()
        for name, parameter in owner.named_parameters(prefix, recurse=False, remove_duplicate=False)
    }
    return functional_call(module, constants, args, tie_weights=False)
