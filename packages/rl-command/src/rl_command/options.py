"""Options of a command: names, types, defaults and help texts."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from rl_command.docstrings import parameter_docs
from rl_command.values import metavar, table_of, write_value
from rl_core.config import bounds_of, encode, field_types, options_of
from rl_core.types import Json

Defaults = Mapping[str, Json]
"""Defaults of one section of a recipe, by option."""


@dataclass(frozen=True, slots=True)
class Option:
    """One option or positional argument.

    Attributes:
        path: place of its value; ``("algorithm", "gamma")`` is ``--algorithm.gamma``.
        type_: type of its value.
        help: help text.
        default: its default as one would type it; None shows none.
        placeholder: stands for the value in the help.
        is_positional: whether it is a positional argument.
        leaves_out: whether it is the option ``none`` of a table, which leaves the table out.
        example: a value for error messages, where the type does not suggest one.
    """

    path: tuple[str, ...]
    type_: object
    help: str
    default: str | None
    placeholder: str
    is_positional: bool = False
    leaves_out: bool = False
    example: Json = field(default=None, hash=False)

    @property
    def flag(self) -> str:
        """The option as one types it."""
        if self.is_positional:
            return self.placeholder
        return "--" + ".".join(self.path).replace("_", "-")


def command_options(
    arguments: type[object],
    positional: Mapping[str, str] | None = None,
    placeholders: Mapping[str, str] | None = None,
    defaults: Mapping[str, str] | None = None,
) -> tuple[Option, ...]:
    """Return the options that a dataclass of arguments declares.

    Args:
        arguments: a dataclass.
        positional: placeholders of the positional arguments, by field.
        placeholders: placeholders of options, where those of their types do not fit.
        defaults: defaults to show in place of the fields' own.
    """
    positional, docs = positional or {}, parameter_docs(arguments)
    placeholders = {**(placeholders or {}), **positional}
    shown = {**_field_defaults(arguments), **(defaults or {})}
    return tuple(
        Option(
            path=(name,),
            type_=type_,
            help=docs.get(name, ""),
            default=shown.get(name),
            placeholder=placeholders.get(name, metavar(type_).removesuffix("|none")),
            is_positional=name in positional,
        )
        for name, type_ in field_types(arguments).items()
    )


def component_options(
    section: str, component: Callable[..., object], defaults: Defaults | None = None
) -> tuple[Option, ...]:
    """Return the options of a component.

    Args:
        section: section of the recipe, such as ``algorithm``.
        component: a class or function, as for `rl_core.config.options_of`.
        defaults: that section of a complete recipe; options that it does not name are left out.
            None returns all options, without defaults.
    """
    return _table_options((section,), options_of(component), defaults, parameter_docs(component))


def _table_options(
    path: tuple[str, ...], table: type[object], defaults: Defaults | None, docs: Mapping[str, str]
) -> tuple[Option, ...]:
    docs, bounds = {**docs, **parameter_docs(table)}, bounds_of(table)
    options: list[Option] = []
    for name, type_ in field_types(table).items():
        if defaults is not None and name not in defaults:
            continue
        default = None if defaults is None else defaults[name]
        if (inner := table_of(type_)) is not None:
            below = None if defaults is None else _defaults_below(inner, default)
            options += _table_options((*path, name), inner, below, {})
            if inner is not type_:
                options.append(_leaving_out((*path, name), default))
            continue
        shown = None if defaults is None else write_value(default)
        text = docs.get(name, "")
        if name in bounds and bounds[name] not in text:
            text = f"{text.rstrip('.')} ({bounds[name]})"
        options.append(Option((*path, name), type_, text, shown, metavar(type_)))
    return tuple(options)


def _leaving_out(path: tuple[str, ...], default: Json) -> Option:
    """Return the option that leaves out a table that may be None."""
    flag = "--" + ".".join(path).replace("_", "-")
    return Option(
        path=(*path, "none"),
        type_=bool,
        help=f"Leave {path[-1]} out, like {flag} none; false takes its defaults.",
        default=write_value(default in (None, "none")),
        placeholder=metavar(bool),
        leaves_out=True,
    )


def _defaults_below(table: type[object], default: Json) -> Defaults | None:
    """Return the defaults of a table in a section; its own if the table is left out by default."""
    if default == "none":
        default = encode(table())
    return default if isinstance(default, dict) else None


def _field_defaults(arguments: type[object]) -> dict[str, str]:
    assert dataclasses.is_dataclass(arguments)
    return {
        field.name: write_value(encode(field.default))
        for field in dataclasses.fields(arguments)
        if field.default is not dataclasses.MISSING and field.default is not None
    }
