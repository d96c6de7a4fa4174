"""The parameters of a loss: who moves them, and their data as one vector for each group."""

import copy
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NoReturn, TypeAlias

import torch
from annotated_types import Interval
from torch import Tensor, nn

from rl_core.config import Config, Count, Needs, NonNegative, Positive, check_argument
from rl_core.errors import ConfigError
from rl_core.gradients.loss import parameters_replaced

OptimizerName = Literal["adam", "adamw", "rmsprop", "sgd"]
"""The optimizers an algorithm can be given by name."""

Decay: TypeAlias = Annotated[float, Interval(ge=0, lt=1)]
"""How much of an average stays in each step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerConfig(Config):
    """Which optimizer moves the parameters.

    Attributes:
        name: name of the update rule.
        eps: number added to the denominator of Adam and RMSprop; torch's default is 1e-8.
        beta1: decay of Adam's first moment.
        beta2: decay of Adam's second moment.
        alpha: decay of RMSprop's squared average.
        momentum: momentum of SGD and RMSprop.
        weight_decay: weight of the L2 penalty, which is decoupled for AdamW.

    Raises:
        ConfigError: for an unknown name, a value of another type or out of range, or one that the
            named optimizer does not use.
    """

    name: OptimizerName = "adam"
    eps: Annotated[Positive, Needs("name", "adam", "adamw", "rmsprop")] = 1e-8
    beta1: Annotated[Decay, Needs("name", "adam", "adamw")] = 0.9
    beta2: Annotated[Decay, Needs("name", "adam", "adamw")] = 0.999
    alpha: Annotated[Decay, Needs("name", "rmsprop")] = 0.99
    momentum: Annotated[Decay, Needs("name", "rmsprop", "sgd")] = 0.0
    weight_decay: NonNegative = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ParameterGroup:
    """Parameters that one optimizer moves.

    Attributes:
        name: of the group; metrics are called ``gradients/<name>_norm``.
        modules: prefixes of the parameters' names, such as ``actor`` or ``actor.critics``.
        learning_rate: name of the hyper-parameter that holds the learning rate.
        max_grad_norm: name of the hyper-parameter that bounds the gradient's norm, or None.
        joint_norm: clip together with the other groups of the same step that set this too and name
            the same bound.
        optimizer: the update rule.
        every: move only on every so many gradient steps.
        after: an earlier group that moves first; the loss of this group is computed then. None
            computes it at the parameters with which the gradient step begins.
    """

    name: str
    modules: tuple[str, ...]
    learning_rate: str = "learning_rate"
    max_grad_norm: str | None = None
    joint_norm: bool = False
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    every: int = 1
    after: str | None = None

    def __post_init__(self) -> None:
        check_argument(f"every of parameter group '{self.name}'", self.every, Count)


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

    def __post_init__(self) -> None:
        check_argument(f"every of target '{self.module}'", self.every, Count)


class ParameterVector:
    """Hold named parameters in one contiguous vector that the modules' parameters are views of.

    Building it moves the parameters' memory into the vector; modules go on working and loading
    weights into them writes through. Moving a module to another device or dtype afterwards
    breaks the tie, which `check_tied` reports.

    Args:
        parameters: by name; all of one dtype and device.

    Raises:
        ConfigError: when dtypes or devices are mixed, or what is learned is not float32.
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
        if dtype != torch.float32 and any(p.requires_grad for p in parameters.values()):
            raise ConfigError(
                f"parameters have dtype {dtype}; expected torch.float32, which everything is "
                "computed in: call actor.float() before building the algorithm"
            )
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

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled: a pickle would tear the parameters from the vector."""
        raise ConfigError(
            "an algorithm cannot be pickled; save its state_dict(), and load it into an algorithm "
            "that is built in the same way"
        )

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


class ParameterLayout:
    """The parameters of a loss that change, as one vector for each group and each target.

    Args:
        loss: the module that holds them.
        groups: which are learned; together they cover all that require a gradient.
        targets: which modules follow which.
        constant: prefixes of the parameters that the loss leaves alone, whoever else learns them.

    Attributes:
        vectors: by name of the group or of the target's module.
        sources: of each target's module, the group that learns what it follows, and the first entry
            and number of entries of the part that it follows.
        buffers: of targets, with those of their sources.
        unlearned: parameters that needed no gradient and that nothing follows.

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
        for follower in copies.values():
            follower.requires_grad_(False)
        left = dict(loss.named_parameters())
        self.vectors = {
            target.module: ParameterVector(_pop_under(left, _followers(loss, target)))
            for target in targets
        }
        _pop_under(left, constant)
        for group in groups:
            if group.name in self.vectors:
                raise ConfigError(f"two parameter groups or targets are called '{group.name}'")
            taken = _pop_under(left, group.modules, learned=True)
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
        self.unlearned = left
        self.sources = {
            target.module: self._find_source(target, [group.name for group in groups])
            for target in targets
        }
        self.buffers = [
            pair
            for target in targets
            for pair in _buffers(target, copies[target.module], _submodule(loss, target.source))
        ]

    def named(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """View vectors, by name as `vectors`, as the loss's parameters by their own names."""
        return {
            name: tensor
            for key, vector in values.items()
            for name, tensor in self.vectors[key].split(vector).items()
        }

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


def _buffers(
    target: TargetNetwork, copied: nn.Module, source: nn.Module
) -> list[tuple[Tensor, Tensor]]:
    """Pair the buffers of a target with those of what it follows."""
    slow, fast = list(copied.buffers()), list(source.buffers())
    if [buffer.shape for buffer in slow] != [buffer.shape for buffer in fast]:
        raise ConfigError(f"target '{target.module}' must have the buffers of '{target.source}'")
    return list(zip(slow, fast, strict=True))


def _followers(loss: nn.Module, target: TargetNetwork) -> list[str]:
    """Name the parameters of a target that follow learned ones."""
    source = _submodule(loss, target.source)
    return [
        f"{target.module}.{name}"
        for name, parameter in source.named_parameters()
        if parameter.requires_grad
    ]


def _pop_under(
    left: dict[str, nn.Parameter], prefixes: Sequence[str], learned: bool = False
) -> dict[str, nn.Parameter]:
    """Remove and return what lies under some prefixes; only what requires a gradient if learned."""
    return {
        name: left.pop(name)
        for name in list(left)
        if any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)
        and (left[name].requires_grad or not learned)
    }
