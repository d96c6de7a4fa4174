"""A loss as a module: what it answers, what it may use, and at which parameters it runs."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from rl_core.errors import ConfigError, nearest
from rl_core.gradients.parameters import parameter_places

BatchT = TypeVar("BatchT")

Noise: TypeAlias = Mapping[str, Tensor]
"""Random numbers drawn ahead for one gradient step, by name."""


@dataclass(frozen=True, slots=True)
class LossOutput:
    """What a loss answers for one batch.

    Attributes:
        loss: 0-dim; the sum of all losses, each of which reaches only its own parameters.
        metrics: 0-dim tensors by path; each is averaged over the steps that answered it.
        samples: per-sample results by name, each `(N,)`, such as ``td_error``; handed to the
            storage's ``after_gradients``.
        stop: 0-dim bool; where True this step and the rest of the phase change nothing.
    """

    loss: Tensor
    metrics: Mapping[str, Tensor] = field(default_factory=dict)
    samples: Mapping[str, Tensor] = field(default_factory=dict)
    stop: Tensor | None = None


torch.export.register_dataclass(LossOutput)


class HyperParameters(nn.Module):
    """Numbers that may change while running, each a 0-dim float32 buffer.

    As buffers they are inputs of a compiled graph: a new value needs no recompilation.
    """

    def __init__(self, values: Mapping[str, float]) -> None:
        super().__init__()
        for name, value in values.items():
            self.register_buffer(name, torch.tensor(float(value)))

    def __getitem__(self, name: str) -> Tensor:
        """Return the 0-dim tensor of a hyper-parameter."""
        buffer = self._buffers[name]
        assert buffer is not None
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
        loss: Callable[[BatchT, Noise], LossOutput],
        modules: Mapping[str, nn.Module],
        hyper: HyperParameters,
    ) -> None:
        super().__init__()
        self._loss = loss
        self._due: tuple[str, ...] | None = None
        for name, module in modules.items():
            self.add_module(name, module)
        self.add_module("hyper", hyper)
        self._places = parameter_places(self)

    def forward(self, batch: BatchT, noise: Noise) -> LossOutput:
        """Compute the loss."""
        return self._loss(batch, noise)

    def is_due(self, group: str) -> bool:
        """Return whether the gradient step at hand moves a parameter group.

        Outside a gradient step every group is due.
        """
        return self._due is None or group in self._due

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
