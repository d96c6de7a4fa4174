"""What an actor's options say of its networks as data."""

from typing import TYPE_CHECKING

from rl_core.config import check_unused
from rl_core.errors import ConfigError
from rl_core.nn.layered_head import head_memory
from rl_core.nn.layers import check_layers

if TYPE_CHECKING:
    from rl_algos_onpolicy.actor.config import OnPolicyActorConfig


def check_networks(config: "OnPolicyActorConfig") -> None:
    """Refuse layers that are unknown, and options that say the same in two ways.

    Raises:
        ConfigError: naming the option.
    """
    for path in ("body", "value_body", "value_head"):
        check_layers(getattr(config, path), path)
    memory = head_memory(config.head, "head")
    check_unused(config)
    if memory is not None and config.recurrent_net != "none":
        raise ConfigError("head has a memory of its own; leave recurrent_net out")
