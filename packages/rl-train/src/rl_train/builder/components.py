"""Components by registered name: building one, and completing its options with defaults."""

import contextlib
import dataclasses
import inspect
from collections.abc import Collection, Mapping, Sequence

from rl_core import plugins
from rl_core.config import (
    ComponentSpec,
    construct,
    decode,
    encode,
    field_types,
    options_of,
    replaced_options,
    required_options,
    unused_options,
)
from rl_core.errors import ConfigError, PluginError, known_as
from rl_core.types import Json

PARTS = {"algorithm": ("add_ons", "add_on", True), "storage": ("sampler", "sampler", False)}
"""The options that hold parts by name: option, kind of the parts, whether there may be several."""

LOAD_ACTOR = "load_actor"
"""The constructor parameter by which components get an `ActorLoader`."""


def construct_component(kind: str, spec: ComponentSpec, context: Mapping[str, object]) -> object:
    """Build a part from its registered name and options.

    Args:
        kind: ``actor``, ``algorithm``, ``storage``, ``add_on`` or ``sampler``.
        spec: name and options.
        context: what the program supplies, by parameter name, such as ``device``.

    Raises:
        ConfigError: for options that are unknown or do not fit.
        PluginError: for an unknown name.
    """
    cls = plugins.load(kind, spec.name)
    kwargs, parts = split_parts(kind, spec.kwargs)
    if parts:
        option, part, is_list = PARTS[kind]
        if option not in inspect.signature(cls).parameters:
            raise ConfigError(f"{kind}.{option}: {spec.name} takes none; leave it out")
        known = {name: context[name] for name in (LOAD_ACTOR,) if name in context}
        built = [construct_component(part, one, known) for one in parts]
        context = {**context, option: built if is_list else built[0]}
    return construct(cls, context, decode(options_of(cls), kwargs, kind))


def complete_component(
    kind: str,
    name: str,
    kwargs: Mapping[str, Json],
    wanted: Mapping[str, Json] | None = None,
    *,
    in_part: bool = False,
) -> ComponentSpec:
    """Check a component's options and add its defaults.

    Args:
        kind: ``actor``, ``algorithm``, ``storage``, ``add_on`` or ``sampler``.
        name: the registered name.
        kwargs: options; a table among them may be given in part.
        wanted: defaults that replace the component's own, unless the options replace them.
        in_part: leave the options unchecked where required ones are missing.

    Raises:
        ConfigError: for an unknown option, or a value that does not fit.
        PluginError: for an unknown component.
    """
    kwargs, parts = split_parts(kind, kwargs)
    parts = [complete_component(part.kind, part.name, part.kwargs) for part in parts]
    cls = options_of(plugins.load(kind, name))
    for option in kwargs.keys() - field_types(cls).keys():
        if others := components_with(option, field_types(cls)):
            raise ConfigError(
                f"{kind}.{option}: {name} has no such option; others have it: {others}"
            )
    given = _with_nested_defaults(
        cls, kwargs, without_ineffective(kind, name, wanted or {}, kwargs)
    )
    missing = set(required_options(cls)) - given.keys() if in_part else set()
    table = {**_defaults(cls), **given} if missing else as_table(decode(cls, given, kind))
    return ComponentSpec(kind, name, {**table, **parts_option(kind, parts)})


def components_with(option: str, known: Collection[str]) -> str:
    """Name the components that have an option, such as ``ppo, trpo``; nothing if none has it.

    Args:
        option: its name.
        known: options that would have been right; if one of them is called so elsewhere, nobody
            else's option was meant.
    """
    if known_as(option, known) is not None:
        return ""
    found = []
    for kind in ("actor", "algorithm", "storage"):
        for name in plugins.available(kind):
            with contextlib.suppress(PluginError):  # of one that cannot be imported
                if option in field_types(options_of(plugins.load(kind, name))):
                    found.append(name)
    return ", ".join(found)


def _defaults(cls: type[object]) -> dict[str, Json]:
    """Return the defaults of the options that have one."""
    required = required_options(cls)
    return {
        field.name: encode(
            field.default_factory() if callable(field.default_factory) else field.default
        )
        for field in dataclasses.fields(cls)  # type: ignore[arg-type]  # options are a dataclass
        if field.name not in required
    }


def without_ineffective(
    kind: str, name: str, defaults: Mapping[str, Json], given: Mapping[str, Json]
) -> dict[str, Json]:
    """Return the defaults that have an effect beside the given options.

    Args:
        kind: ``actor``, ``algorithm``, ``storage``, ``add_on`` or ``sampler``.
        name: registered name of the component.
        defaults: used where nothing else is given.
        given: the options that are given.

    Raises:
        ConfigError: when a given option that replaces others has a value that does not fit.
        PluginError: for an unknown component.
    """
    ineffective = _ineffective(options_of(plugins.load(kind, name)), given, kind)
    return {option: value for option, value in defaults.items() if option not in ineffective}


def split_parts(
    kind: str, kwargs: Mapping[str, Json]
) -> tuple[Mapping[str, Json], list[ComponentSpec]]:
    """Take the parts that are named out of a component's options, see `PARTS`.

    Args:
        kind: of the component.
        kwargs: options, among them names, or tables with a ``name`` and options.

    Raises:
        ConfigError: when they are neither names nor tables with names.
    """
    if kind not in PARTS:
        return kwargs, []
    option, part, is_list = PARTS[kind]
    given = kwargs.get(option)
    rest = {name: value for name, value in kwargs.items() if name != option}
    if given is None or given == "none":
        return rest, []
    path = f"{kind}.{option}"
    if not is_list:
        return rest, [spec_from(part, given, path)]
    if not isinstance(given, list | tuple):
        raise ConfigError(
            f"{path}: got {given!r}; expected a list of tables with names, or of names"
        )
    return rest, [spec_from(part, table, f"{path}[{index}]") for index, table in enumerate(given)]


def parts_option(kind: str, parts: Sequence[ComponentSpec]) -> dict[str, Json]:
    """Return parts as the option that `split_parts` reads; empty without any."""
    if not parts:
        return {}
    option, _, is_list = PARTS[kind]
    tables = as_tables(parts)
    return {option: tables if is_list else tables[0]}


def as_tables(specs: Sequence[ComponentSpec]) -> list[Json]:
    """Return components as tables with their names, as `spec_from` reads them."""
    return [{"name": spec.name, **spec.kwargs} for spec in specs]


def spec_from(kind: str, given: Json, path: str) -> ComponentSpec:
    """Read a component from its name, or from a table with its name and options.

    Raises:
        ConfigError: when it is neither; the message starts with the path.
    """
    table = {"name": given} if isinstance(given, str) else given
    name = table.get("name") if isinstance(table, Mapping) else None
    if not isinstance(table, Mapping) or not isinstance(name, str):
        raise ConfigError(f"{path}: got {given!r}; expected a table with a name, or a name")
    return ComponentSpec(kind, name, {key: table[key] for key in table if key != "name"})


def as_table(options: object) -> dict[str, Json]:
    """Return options, a dataclass or by name, as plain data."""
    table = encode(options)
    assert isinstance(table, dict)
    return table


def _ineffective(cls: type[object], given: Mapping[str, Json], kind: str) -> set[str]:
    """Return the options that have no effect beside the given ones."""
    replaces, types = replaced_options(cls), field_types(cls)
    usual = {field.name: field.default for field in dataclasses.fields(cls)}  # type: ignore[arg-type]  # options are a dataclass
    replaced = {
        name
        for option in given.keys() & replaces.keys()
        if decode(types[option], given[option], f"{kind}.{option}") != usual[option]
        for name in replaces[option]
    }
    return replaced | unused_options(cls, given)


def _with_nested_defaults(
    cls: type[object], given: Mapping[str, Json], wanted: Mapping[str, Json]
) -> dict[str, Json]:
    """Complete the tables among the options that are given in part."""
    completed = {**wanted, **given}
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]  # options are a dataclass
        table, instead = completed.get(field.name), wanted.get(field.name)
        if not isinstance(table, dict):
            continue
        default: object = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        defaults: dict[str, Json] = {}
        if dataclasses.is_dataclass(default):
            defaults = as_table(default)
            table = _with_nested_defaults(type(default), table, {})
        if isinstance(instead, dict):
            defaults |= instead
        if dataclasses.is_dataclass(default):
            unused = unused_options(type(default), {**defaults, **table})
            defaults = {option: value for option, value in defaults.items() if option not in unused}
        completed[field.name] = defaults | table
    return completed
