"""Components by registered name: from a part to its name and options, and back."""

import dataclasses
import sys
from collections.abc import Mapping

from rl_core import plugins
from rl_core.codec import construct, decode, encode, options_of
from rl_core.errors import ConfigError
from rl_core.recipe import CUSTOM, ComponentSpec
from rl_core.types import Json


def construct_component(kind: str, spec: ComponentSpec, context: Mapping[str, object]) -> object:
    """Build a part from its registered name and options.

    Args:
        kind: ``actor``, ``algorithm`` or ``storage``.
        spec: name and options.
        context: what the program knows, by parameter name, such as ``device``.

    Raises:
        ConfigError: for options that are unknown or do not fit.
        PluginError: for an unknown name.
    """
    cls = plugins.load(kind, spec.name)
    return construct(cls, context, decode(options_of(cls), spec.kwargs, kind))


def describe_component(kind: str, part: object) -> ComponentSpec:
    """Name a part and its options; the user's own objects are ``custom``.

    Args:
        kind: ``actor``, ``algorithm`` or ``storage``.
        part: an instance.
    """
    name = _registered_name(kind, type(part))
    named = name is not None and not getattr(part, "uses_objects", False)
    options = _options(part) if named else None
    if name is None or options is None:
        return ComponentSpec(kind, CUSTOM, {})
    return ComponentSpec(kind, name, options)


def _registered_name(kind: str, cls: type) -> str | None:
    """Find the plug-in that is this class, among modules that are imported already."""
    for name, info in plugins.available(kind).items():
        module, _, attribute = info.entry_point.partition(":")
        if getattr(sys.modules.get(module), attribute, None) is cls:
            return name
    return None


def _options(part: object) -> Mapping[str, Json] | None:
    """Read the options back: from ``config``, or from attributes named like the parameters."""
    try:
        options = options_of(type(part))
        config = getattr(part, "config", None)
        if not isinstance(config, options):
            assert dataclasses.is_dataclass(options)
            names = [field.name for field in dataclasses.fields(options)]
            config = options(**{name: getattr(part, name) for name in names})
        table = encode(config)
    except (ConfigError, AttributeError, TypeError):
        return None
    return table if isinstance(table, dict) else None
