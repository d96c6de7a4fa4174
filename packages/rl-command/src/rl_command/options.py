"""Options of commands and components: names, types, defaults, and texts from docstrings.

`rl_command.parser` puts each value that the user typed into nested tables, at its option's `path`;
`rl_core.config.decode` makes configs of these tables.
"""

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from rl_command.values import metavar, table_of, write_value
from rl_core import plugins
from rl_core.config import Json, bounds_of, encode, field_types, options_of, required_options

_PLACEHOLDERS = {
    "config": "FILE",
    "csv": "FILE",
    "output": "FILE",
    "preset": "NAME",
    "run_dir": "DIR",
    "imports": "MODULE",
    "device": "auto|cpu|cuda",
    "restart_model": "DIR|TABLE",
    "seeds": "1..5|1,2,7",
    "progress": "auto|bar|log|none",
}
"""What stands for the value of an option of a command, where its type does not say enough."""

_SHORT = {"imports": "--import", "output": "-o"}
"""Flags that are not their option's name."""

_SECTION = re.compile(
    r"^(?:Args|Arguments|Attributes|Parameters|Options):[ ]*\n((?: {4}.*\n?|[ ]*\n)+)", re.MULTILINE
)
_ITEM = re.compile(
    r"^ {4}\*{0,2}(\w+)(?: \([^)]*\))?:((?:.*\n?)(?: {5}.*\n?|[ ]*\n)*)", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Option:
    """One option.

    Attributes:
        path: place of its value; ``("algorithm", "gamma")`` is ``--algorithm.gamma``.
        type_: type of its value.
        help: help text.
        default: its default as one would type it; None shows none.
        placeholder: stands for the value in the help.
        short: flag in place of the one that the path gives.
        is_own: whether a plug-in declares it itself, so that every help text shows it.
    """

    path: tuple[str, ...]
    type_: object
    help: str = ""
    default: str | None = None
    placeholder: str = ""
    short: str | None = None
    is_own: bool = False

    @property
    def section(self) -> str:
        """The section of the help in which it stands; empty for the options of the command."""
        return self.path[0] if len(self.path) > 1 and self.short is None else ""

    @property
    def flag(self) -> str:
        """The option as one types it."""
        return self.short or "--" + ".".join(self.path).replace("_", "-")


def command_options(
    arguments: type[object], defaults: Mapping[str, Json] | None = None
) -> tuple[Option, ...]:
    """Return the options that a dataclass of arguments declares.

    Args:
        arguments: a dataclass whose fields all have defaults.
        defaults: defaults to show in place of the fields' own.
    """
    own = encode(arguments())
    assert isinstance(own, dict)
    shown = {name: value for name, value in {**own, **(defaults or {})}.items() if value != "none"}
    docs, bounds = parameter_docs(arguments), bounds_of(arguments)
    return tuple(
        Option(
            (name,),
            type_,
            _described(docs.get(name, ""), bounds.get(name)),
            write_value(shown[name]) if shown.get(name) not in (None, []) else None,
            _PLACEHOLDERS.get(name) or metavar(type_).removesuffix("|none"),
            _SHORT.get(name),
        )
        for name, type_ in field_types(arguments).items()
    )


def component_options(
    section: str, component: Callable[..., object], defaults: Mapping[str, Json] | None = None
) -> tuple[Option, ...]:
    """Return the options of a component, and those that hold its parts by name.

    Args:
        section: section of the recipe, such as ``algorithm``.
        component: a class or function, as for `rl_core.config.options_of`.
        defaults: that section of a complete recipe; options that it does not name are left out
            unless they are required. None returns all options, without defaults.
    """
    from rl_train.builder.components import PARTS  # brings PyTorch

    table = options_of(component)
    own = _own_names(component, table)
    options = tuple(
        replace(option, is_own=option.path[1:] in own)
        for option in _table_options((section,), table, defaults, parameter_docs(component))
    )
    name, kind, is_list = PARTS.get(section, ("", "", False))
    if name not in inspect.signature(component).parameters:
        return options
    type_ = list[str | dict[str, Json]] if is_list else str | dict[str, Json] | None
    text = f"Name{'s' if is_list else ''} from rl list {kind}s, or {{name = ..., OPTION = ...}}"
    default = write_value((defaults or {}).get(name, [] if is_list else None))
    return (*options, Option((section, name), type_, text, default, metavar(type_)))


def _own_names(component: Callable[..., object], table: type[object]) -> set[tuple[str]]:
    """Return what a plug-in declares itself, and does not inherit from our packages."""
    if plugins.is_first_party(component.__module__):
        return set()
    bases = [base for base in table.__mro__ if plugins.is_first_party(base.__module__)]
    inherited = {name for base in bases for name in vars(base).get("__annotations__", {})}
    return {(name,) for name in field_types(table).keys() - inherited}


def _table_options(
    path: tuple[str, ...],
    table: type[object],
    defaults: Mapping[str, Json] | None,
    docs: Mapping[str, str],
) -> tuple[Option, ...]:
    docs, bounds = {**docs, **parameter_docs(table)}, bounds_of(table)
    options: list[Option] = []
    shown_names = None if defaults is None else {*defaults, *required_options(table)}
    for name, type_ in field_types(table).items():
        if shown_names is not None and name not in shown_names:
            continue
        default, inner = (defaults or {}).get(name), table_of(type_)
        place, text = (*path, name), _described(docs.get(name, ""), bounds.get(name))
        if inner is None:
            shown = None if name not in (defaults or {}) else write_value(default)
            options.append(Option(place, type_, text, shown, metavar(type_)))
            continue
        inside = encode(inner()) if default == "none" else default
        options += _table_options(place, inner, inside if isinstance(inside, dict) else None, {})
        if inner is not type_:  # {} takes the table with its defaults
            switch = "none" if default in (None, "none") else "{...}"
            options.append(Option(place, dict[str, Json] | None, text, switch, "TABLE|none"))
    return tuple(options)


def _described(text: str, bounds: str | None) -> str:
    text = text.rstrip(".")
    text = text[:1].upper() + text[1:] if text[:1].isascii() else text
    return f"{text} ({bounds})" if bounds and bounds not in text else text


def first_sentence(text: str) -> str:
    """Return the first sentence of a docstring, or an empty string."""
    paragraph = " ".join(inspect.cleandoc(text).split("\n\n")[0].split())
    return _plain(re.split(r"(?<=\.)(?<!Eq\.)\s", paragraph, maxsplit=1)[0])


def parameter_docs(documented: Callable[..., object]) -> Mapping[str, str]:
    """Return the documentation of each parameter or attribute.

    It is read from the sections ``Args`` and ``Attributes`` of docstrings.

    Args:
        documented: a function, or a class, whose base classes are read too.
    """
    if not isinstance(documented, type):
        return _section_items(documented)
    docs: dict[str, str] = {}
    for owner in reversed(inspect.getmro(documented)[:-1]):
        docs |= _section_items(vars(owner).get("__init__")) | _section_items(owner)
    return docs


def _section_items(documented: object) -> dict[str, str]:
    text = inspect.cleandoc(getattr(documented, "__doc__", None) or "")
    items = [item for section in _SECTION.findall(text) for item in _ITEM.findall(section)]
    return {name: _plain(described) for name, described in items}


def _plain(text: str) -> str:
    """Return a text as the command line writes it."""
    return re.sub(r"\bNone\b", "none", " ".join(text.replace("`", "").split()))
