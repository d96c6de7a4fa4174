"""Components by registered name: from a part to its name and options, and back."""

import dataclasses
import inspect
import sys
from collections.abc import Mapping, Sequence

from rl_core import plugins
from rl_core.config import CUSTOM, ComponentSpec, construct, decode, encode, options_of
from rl_core.errors import ConfigError
from rl_core.types import Json

ADD_ONS = "add_ons"
"""The option of algorithms that holds add-ons by name; no field of their configs."""

LOAD_ACTOR = "load_actor"
"""The constructor parameter by which components get an `ActorLoader`."""


def construct_component(kind: str, spec: ComponentSpec, context: Mapping[str, object]) -> object:
    """Build a part from its registered name and options.

    Args:
        kind: ``actor``, ``algorithm``, ``storage`` or ``add_on``.
        spec: name and options.
        context: what the program knows, by parameter name, such as ``device``.

    Raises:
        ConfigError: for options that are unknown or do not fit.
        PluginError: for an unknown name.
    """
    cls = plugins.load(kind, spec.name)
    kwargs = spec.kwargs
    if kind == "algorithm":
        kwargs, add_ons = split_add_ons(kwargs)
        if add_ons and ADD_ONS not in inspect.signature(cls).parameters:
            raise ConfigError(f"algorithm.{ADD_ONS}: {spec.name} takes none; leave it out")
        if add_ons:
            known = {name: context[name] for name in (LOAD_ACTOR,) if name in context}
            built = [construct_component("add_on", add_on, known) for add_on in add_ons]
            context = {**context, ADD_ONS: built}
    return construct(cls, context, decode(options_of(cls), kwargs, kind))


def describe_component(kind: str, part: object, *, without_objects: bool = False) -> ComponentSpec:
    """Name a part and its options; the user's own objects are ``custom``.

    Args:
        kind: ``actor``, ``algorithm``, ``storage`` or ``add_on``.
        part: an instance.
        without_objects: leave out objects that a registered part was given, where it can do its
            work without them.
    """
    name = _registered_name(kind, type(part))
    uses_objects = not without_objects and getattr(part, "uses_objects", False)
    named = name is not None and not uses_objects
    options = _options(part) if named else None
    if name is None or options is None:
        return ComponentSpec(kind, CUSTOM, {})
    add_ons = [describe_component("add_on", add_on) for add_on in getattr(part, ADD_ONS, ())]
    if any(add_on.is_custom for add_on in add_ons):
        return ComponentSpec(kind, CUSTOM, {})
    return ComponentSpec(
        kind, name, {**options, ADD_ONS: as_tables(add_ons)} if add_ons else options
    )


def split_add_ons(
    kwargs: Mapping[str, Json],
) -> tuple[Mapping[str, Json], list[ComponentSpec]]:
    """Take the add-ons out of an algorithm's options.

    Args:
        kwargs: options, among them ``add_ons``: tables, each with a ``name`` and options.

    Raises:
        ConfigError: when they are no tables with names.
    """
    tables = kwargs.get(ADD_ONS)
    rest = {name: value for name, value in kwargs.items() if name != ADD_ONS}
    if tables is None or tables == "none":
        return rest, []
    if not isinstance(tables, list | tuple):
        raise ConfigError(
            f"algorithm.{ADD_ONS}: got {tables!r}; expected a list of tables with names"
        )
    return rest, [
        _as_spec("add_on", table, f"algorithm.{ADD_ONS}[{index}]")
        for index, table in enumerate(tables)
    ]


def record_actors(actors: Mapping[str, object]) -> Mapping[str, Json]:
    """Describe actors by name for a recipe, without those of the user's own; see `read_actors`."""
    specs = {name: describe_component("actor", actor) for name, actor in actors.items()}
    return {name: as_tables([spec])[0] for name, spec in specs.items() if not spec.is_custom}


def read_actors(record: Json) -> Mapping[str, ComponentSpec]:
    """Return what `record_actors` wrote.

    Raises:
        ConfigError: when it is no table of tables with names.
    """
    if not isinstance(record, Mapping):
        raise ConfigError(f"resolved.actors: got {record!r}; expected tables with names")
    return {
        key: _as_spec("actor", table, f"resolved.actors.{key}") for key, table in record.items()
    }


def as_tables(add_ons: Sequence[ComponentSpec]) -> list[Json]:
    """Return add-ons as `split_add_ons` reads them."""
    return [{"name": add_on.name, **add_on.kwargs} for add_on in add_ons]


def _as_spec(kind: str, table: Json, path: str) -> ComponentSpec:
    name = table.get("name") if isinstance(table, Mapping) else None
    if not isinstance(table, Mapping) or not isinstance(name, str):
        raise ConfigError(f"{path}: got {table!r}; expected a table with a name")
    options = {option: value for option, value in table.items() if option != "name"}
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
