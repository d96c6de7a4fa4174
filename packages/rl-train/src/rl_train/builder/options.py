"""Options as a user gives them, made whole from the defaults of what they are for."""

import dataclasses
from collections.abc import Mapping

from rl_core import plugins
from rl_core.config import (
    ComponentSpec,
    admits_none,
    decode,
    encode,
    field_types,
    options_of,
    replaced_options,
    unused_options,
)
from rl_core.errors import ConfigError, nearest
from rl_core.types import Json
from rl_train.builder.components import ADD_ONS, as_tables, split_add_ons

_ALTERNATIVES = ("num_mini_batch", "mini_batch_size")
"""Options that say the same in two ways, where a component lets either of them be None."""

Sections = Mapping[str, Mapping[str, Json]]
"""Options by section: ``env``, ``actor``, ``algorithm``, ``storage``, ``trainer``."""

SECTIONS = ("env", "actor", "algorithm", "storage", "trainer")


def checked_sections(options: Sections | None) -> dict[str, dict[str, Json]]:
    """Return options by section as new tables.

    Raises:
        ConfigError: for an unknown section, or one that is no table.
    """
    if not isinstance(options, Mapping | None):
        raise ConfigError(f"options={options!r}; expected a mapping of sections")
    for section, table in (options or {}).items():
        if section not in SECTIONS:
            raise ConfigError(f"unknown section '{section}'{nearest(str(section), SECTIONS)}")
        if not isinstance(table, Mapping):
            raise ConfigError(f"section '{section}' is {table!r}; expected a mapping of options")
    return {section: dict(table) for section, table in (options or {}).items()}


def without_replaced(
    kind: str, name: str, defaults: Mapping[str, Json], given: Mapping[str, Json]
) -> dict[str, Json]:
    """Return defaults without those that given options replace, or say in another way.

    Args:
        kind: ``actor``, ``algorithm``, ``storage`` or ``add_on``.
        name: registered name of what the options are for.
        defaults: what holds unless something else is given.
        given: what is.

    Raises:
        ConfigError: when a given option that replaces others has a value that does not fit.
        PluginError: for an unknown component.
    """
    cls = options_of(plugins.load(kind, name))
    replaced = _alternatives(cls, given) | _replaced(cls, given, kind)
    return {option: value for option, value in defaults.items() if option not in replaced}


def filled(
    kind: str, name: str, kwargs: Mapping[str, Json], wanted: Mapping[str, Json] | None = None
) -> ComponentSpec:
    """Check a component's options and add its defaults.

    Args:
        kind: ``actor``, ``algorithm``, ``storage`` or ``add_on``.
        name: the registered name.
        kwargs: options; a table of them may be given in part.
        wanted: what somebody wants instead of the component's own defaults, as far as the options
            do not replace it.

    Raises:
        ConfigError: for an unknown option, or a value that does not fit.
        PluginError: for an unknown component.
    """
    if kind == "algorithm":
        kwargs, add_ons = split_add_ons(kwargs)
        checked = [filled("add_on", part.name, part.kwargs) for part in add_ons]
        more: dict[str, Json] = {ADD_ONS: as_tables(checked)} if checked else {}
    else:
        more = {}
    cls = options_of(plugins.load(kind, name))
    given = _with_nested_defaults(cls, kwargs, without_replaced(kind, name, wanted or {}, kwargs))
    for other in _alternatives(cls, given):
        given.setdefault(other, None)
    options = decode(cls, given, kind)
    return ComponentSpec(kind, name, {**as_table(options), **more})


def _replaced(cls: type[object], given: Mapping[str, Json], kind: str) -> set[str]:
    """Name the options of a component that given ones leave without effect."""
    replaces = replaced_options(cls)
    if not given.keys() & replaces.keys():
        return set()
    types = field_types(cls)
    usual = {field.name: field.default for field in dataclasses.fields(cls)}  # type: ignore[arg-type]  # options are a dataclass
    return {
        name
        for option in given.keys() & replaces.keys()
        if decode(types[option], given[option], f"{kind}.{option}") != usual[option]
        for name in replaces[option]
    }


def _alternatives(cls: type[object], given: Mapping[str, Json]) -> set[str]:
    """Name the options of a component that say in another way what a given one says."""
    types = field_types(cls)
    if not all(name in types and admits_none(types[name]) for name in _ALTERNATIVES):
        return set()
    said = {name for name in _ALTERNATIVES if given.get(name) not in (None, "none")}
    return set(_ALTERNATIVES) - said if said else set()


def _with_nested_defaults(
    cls: type[object], given: Mapping[str, Json], wanted: Mapping[str, Json]
) -> dict[str, Json]:
    """Complete the tables of options that are given in part, from the defaults of their owner."""
    completed = {**wanted, **given}
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]  # options are a dataclass
        default: object = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        table, instead = completed.get(field.name), wanted.get(field.name)
        if not isinstance(table, dict):
            continue
        has_defaults = dataclasses.is_dataclass(default)
        defaults = {
            **(as_table(default) if has_defaults else {}),
            **(instead if isinstance(instead, dict) else {}),
        }
        if has_defaults:
            unused = unused_options(type(default), {**defaults, **table})
            defaults = {option: value for option, value in defaults.items() if option not in unused}
        below = _with_nested_defaults(type(default), table, {}) if has_defaults else table
        completed[field.name] = {**defaults, **below}
    return completed


def as_table(options: object) -> dict[str, Json]:
    """Return a dataclass of options as plain data."""
    table = encode(options)
    assert isinstance(table, dict)
    return table
