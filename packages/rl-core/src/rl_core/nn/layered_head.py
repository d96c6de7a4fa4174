"""Heads described as data: layers, then optionally a recurrent core and the output layer."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self, cast

from torch import nn

from rl_core.config import Count, check_argument
from rl_core.errors import ConfigError, nearest
from rl_core.nn.layers import LayerConfig, build_layers, check_layers
from rl_core.nn.torso import MemoryKind

_MEMORIES: dict[str, MemoryKind] = {"GRU": "gru", "LSTM": "lstm"}
_OUTPUT = "ActionLinear"


@dataclass(frozen=True, slots=True)
class Memory:
    """The recurrent core after the layers.

    Attributes:
        kind: of the recurrent core, or ``none``.
        size: hidden size of the core.
        num_layers: number of stacked layers in the core.
    """

    kind: MemoryKind
    size: int = 64
    num_layers: int = 1


@dataclass(frozen=True, slots=True)
class LayeredHead:
    """The parts of a head that was described as data.

    Attributes:
        layers: before the recurrent core.
        memory: the recurrent core at the end; None without one.
        path: of the option that holds the head, for messages.
    """

    layers: tuple[LayerConfig, ...]
    memory: Memory | None
    path: str

    @classmethod
    def read(cls, head: Sequence[LayerConfig], path: str) -> Self:
        """Split a head into its parts; input sizes are determined when it is built.

        Args:
            head: as data; ``GRU`` or ``LSTM`` and then ``ActionLinear`` may stand at its end.
            path: of the option that holds it, for messages.

        Raises:
            ConfigError: for an unknown layer, or one in the wrong place.
        """
        layers = tuple(head)
        if layers and layers[-1].func == _OUTPUT:
            if layers[-1].kwargs:
                raise ConfigError(
                    f"{path}: {_OUTPUT} has no options; its sizes follow from the action space"
                )
            layers = layers[:-1]
        memory = None
        if layers and layers[-1].func in _MEMORIES:
            memory = _memory(layers[-1], path)
            layers = layers[:-1]
        check_layers(layers, path)
        return cls(layers, memory, path)

    def build(self, in_features: int) -> nn.Module:
        """Build the layers before the recurrent core and the output.

        Raises:
            ConfigError: if an option or a size does not fit.
        """
        return build_layers(self.layers, (in_features,), self.path)


def head_maker(head: Sequence[LayerConfig] | None, path: str) -> Callable[[int], nn.Module] | None:
    """Return a function that builds a head's layers from their input width; None without a head."""
    return None if head is None else LayeredHead.read(head, path).build


def head_memory(head: Sequence[LayerConfig] | None, path: str) -> Memory | None:
    """Return the recurrent core that a head ends with, if any."""
    return None if head is None else LayeredHead.read(head, path).memory


def _memory(layer: LayerConfig, path: str) -> Memory:
    options = {"hidden_size": 64, "num_layers": 1, **layer.kwargs}
    for name, value in options.items():
        if name not in ("hidden_size", "num_layers"):
            raise ConfigError(
                f"{path}: {layer.func} has no option '{name}'"
                f"{nearest(name, ('hidden_size', 'num_layers'))}"
            )
        check_argument(f"{path}: {name}", value, Count)
    sizes = cast("dict[str, int]", options)
    return Memory(_MEMORIES[layer.func], sizes["hidden_size"], sizes["num_layers"])
