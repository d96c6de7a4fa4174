"""Heads described as data: layers, then optionally a recurrent core and the output layer."""

from collections.abc import Callable, Sequence
from typing import cast

from torch import nn

from rl_core.config import Count, check_argument
from rl_core.errors import ConfigError
from rl_core.nn.layers import LayerConfig, build_layers, check_layers, layer_options
from rl_core.nn.torso import CoreConfig, CoreKind

_CORES: dict[str, CoreKind] = {"GRU": "gru", "LSTM": "lstm"}
_OUTPUT = "ActionLinear"


def _split_head(
    head: Sequence[LayerConfig], path: str
) -> tuple[Sequence[LayerConfig], CoreConfig | None]:
    """Split a head into its layers and the recurrent core that it ends with, if any.

    Args:
        head: as data; ``GRU`` or ``LSTM`` and then ``ActionLinear`` may stand at its end.
        path: of the option that holds it, for messages.

    Raises:
        ConfigError: for an unknown layer, or one in the wrong place.
    """
    layers, core = list(head), None
    if layers and layers[-1].func == _OUTPUT and layers.pop().kwargs:
        raise ConfigError(
            f"{path}: {_OUTPUT} has no options; its sizes follow from the action space"
        )
    if layers and layers[-1].func in _CORES:
        layer = layers.pop()
        options = layer_options(layer, {"hidden_size": 64, "num_layers": 1}, path)
        for name, value in options.items():
            check_argument(f"{path}: {name}", value, Count)
        size, num_layers = cast("dict[str, int]", options).values()
        core = CoreConfig(_CORES[layer.func], size, num_layers)
    check_layers(layers, path)
    return layers, core


def head_maker(head: Sequence[LayerConfig] | None, path: str) -> Callable[[int], nn.Module] | None:
    """Return a function that builds a head's layers from their input width; None without a head."""
    if head is None:
        return None
    layers, _ = _split_head(head, path)
    return lambda in_features: build_layers(layers, (in_features,), path)


def head_core(head: Sequence[LayerConfig] | None, path: str) -> CoreConfig | None:
    """Return the recurrent core that a head ends with, if any."""
    return None if head is None else _split_head(head, path)[1]
