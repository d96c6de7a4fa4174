"""What an actor's options say of its networks as data."""

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from torch import nn

from rl_core.errors import ConfigError, nearest
from rl_core.nn.layers import LayerConfig, build_layers, check_layers
from rl_core.nn.trunk import MemoryKind

if TYPE_CHECKING:
    from rl_algos_onpolicy.actor import OnPolicyActorConfig

_Layers = tuple[LayerConfig, ...]
_MEMORIES: dict[str, MemoryKind] = {"GRU": "gru", "LSTM": "lstm"}
_OUTPUT = "ActionLinear"


def check_networks(config: "OnPolicyActorConfig") -> None:
    """Refuse layers that are unknown, and options that say the same in two ways.

    Raises:
        ConfigError: naming the option.
    """
    for path in ("body", "value_body"):
        check_layers(getattr(config, path), path)
    check_layers(_plain(config.head), "head")
    check_layers(config.value_head, "value_head")
    memory_of(config.head, "head")
    if config.value_body is not None and config.share_body:
        raise ConfigError("value_body has no effect with share_body; leave one of them out")
    if config.shared_policy_value_network:
        for option in ("value_body", "value_head"):
            if getattr(config, option) is not None:
                raise ConfigError(
                    f"{option} has no effect with shared_policy_value_network; leave one out"
                )
    if config.value_head is not None and config.value_hidden_sizes is not None:
        raise ConfigError("value_head and value_hidden_sizes say the same; leave one of them out")
    has_memory = any(layer.func in _MEMORIES for layer in config.head or ())
    if has_memory and config.recurrent_net != "none":
        raise ConfigError("head has a memory of its own; leave recurrent_net out")


def memory_of(head: _Layers | None, path: str) -> tuple[MemoryKind, int, int] | None:
    """Read kind, size and number of layers of the memory that a head ends with, if any.

    Raises:
        ConfigError: when its options are none.
    """
    layers = [layer for layer in head or () if layer.func != _OUTPUT]
    if not layers or layers[-1].func not in _MEMORIES:
        return None
    options = {"hidden_size": 64, "num_layers": 1, **layers[-1].kwargs}
    for name, value in options.items():
        if name not in ("hidden_size", "num_layers"):
            raise ConfigError(
                f"{path}: {layers[-1].func} has no option '{name}'"
                f"{nearest(name, ('hidden_size', 'num_layers'))}"
            )
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"{path}: {name} must be a whole number of at least 1, got {value!r}")
    sizes = cast("dict[str, int]", options)
    return _MEMORIES[layers[-1].func], sizes["hidden_size"], sizes["num_layers"]


def layers_maker(head: _Layers | None, path: str) -> Callable[[int], nn.Module] | None:
    """Return what builds a head's layers before memory and output, from the width before it."""
    if head is None:
        return None
    layers = _plain(head) or ()
    return lambda width: build_layers(layers, (width,), path)


def _plain(head: _Layers | None) -> _Layers | None:
    """Leave out the output, and the memory before it, that a head may end with."""
    if head is None:
        return None
    if head and head[-1].func == _OUTPUT:
        if head[-1].kwargs:
            raise ConfigError(
                f"head: {_OUTPUT} has no options; its sizes follow from the action space"
            )
        head = head[:-1]
    return head[:-1] if head and head[-1].func in _MEMORIES else head
