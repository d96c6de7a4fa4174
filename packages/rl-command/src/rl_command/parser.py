"""Parsing and help with tyro, for options that are only known at run time."""

import contextlib
import dataclasses
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, NoReturn, cast

import tyro
from tyro.constructors import PrimitiveConstructorSpec

from rl_command.errors import UsageError, one_line
from rl_command.options import Option
from rl_command.scanner import Scanned, scan
from rl_command.values import read_value, takes_list
from rl_core.types import Json

_BOX = str.maketrans("", "", "╭╮╰╯│┌┐└┘|")


@dataclass(frozen=True, slots=True)
class Command:
    """A command with its options.

    Attributes:
        name: as one types it, such as ``rl train``.
        summary: what it does.
        options: its options and positional arguments.
        sections: description of each section of options, by its dotted name.
        required: number of positional arguments that must be given.
    """

    name: str
    summary: str
    options: tuple[Option, ...]
    sections: Mapping[str, str] = field(default_factory=dict)
    required: int = 0


@dataclass(frozen=True, slots=True)
class _NotGiven:
    """Default of options that the user did not give."""


def parse(
    command: Command,
    words: Sequence[str],
    *,
    may_be_more: bool = False,
    is_positional: Callable[[str], bool] = lambda word: False,
) -> dict[str, Json]:
    """Read the options that the user gave, without defaults.

    Args:
        command: the command.
        words: arguments without the command's name.
        may_be_more: see `rl_command.scanner.scan`; help waits until all options are known.
        is_positional: see `rl_command.scanner.scan`.

    Returns:
        Values by the options' paths, nested.

    Raises:
        UsageError: when something is unknown, missing, or of the wrong type.
        SystemExit: after printing the help.
    """
    scanned = scan(words, command.options, may_be_more=may_be_more, is_positional=is_positional)
    if scanned.wants_help and not may_be_more:
        print_help(command)
    _check_positionals(command, scanned, is_positional)
    _check_emptiness(command, scanned)
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            parsed = tyro.cli(_tyro_type(command), prog=command.name, args=scanned.normalized())
    except SystemExit as stop:
        raise UsageError(_condensed(errors.getvalue())) from stop
    return _collected(command.options, parsed)


def print_help(command: Command) -> NoReturn:
    """Print the help of a command and exit."""
    tyro.cli(_tyro_type(command), prog=command.name, description=command.summary, args=["--help"])
    raise SystemExit(0)


def _check_positionals(
    command: Command, scanned: Scanned, is_positional: Callable[[str], bool]
) -> None:
    places = [option for option in command.options if option.is_positional]
    too_many = scanned.positionals[len(places) :]
    if too_many and scanned.passed_over:
        del scanned.positionals[
            len(places) :
        ]  # one may be the value of an option that is not known yet
    elif too_many:
        pairs = list(zip(scanned.behind, scanned.positionals, strict=True))
        for option, word in pairs[len(places) :] + pairs[: len(places)]:
            if option is not None and not is_positional(word):
                raise UsageError(f"{option.flag}: got '{word}'; expected {option.placeholder}")
        raise UsageError(
            f"'{too_many[0]}' is one argument too many: {command.name} takes "
            f"{' '.join(place.flag for place in places) or 'options only'}"
        )
    if len(scanned.positionals) < command.required and not scanned.wants_help:
        missing = places[len(scanned.positionals)]
        raise UsageError(f"{missing.flag} is missing: {command.name} --help shows how")


def _check_emptiness(command: Command, scanned: Scanned) -> None:
    places = [option for option in command.options if option.is_positional]
    typed = [*scanned.values.items()]
    typed += [(place, [word]) for place, word in zip(places, scanned.positionals, strict=False)]
    for option, words in typed:
        if "" in words:
            raise UsageError(f"{option.flag} is empty; expected {option.placeholder}")


def _tyro_type(command: Command) -> type[object]:
    return _section_type(command.options, (), command.sections)


def _section_type(
    options: Sequence[Option], path: tuple[str, ...], sections: Mapping[str, str]
) -> type[object]:
    depth = len(path)
    deeper = [option for option in options if len(option.path) > depth + 1]
    fields: list[tuple[str, object, object]] = [
        (option.path[-1], _annotation(option), dataclasses.field(default=_NotGiven()))
        for option in options
        if len(option.path) == depth + 1
    ]
    for name in dict.fromkeys(option.path[depth] for option in deeper):
        inside = [option for option in deeper if option.path[depth] == name]
        nested = _section_type(inside, (*path, name), sections)
        fields.append((name, nested, dataclasses.field(default_factory=nested)))
    return dataclasses.make_dataclass(
        "_".join(path) or "arguments",
        cast("list[tuple[str, type, dataclasses.Field[object]]]", fields),
        kw_only=True,
        namespace={"__doc__": sections.get(".".join(path), "")},
    )


def _annotation(option: Option) -> object:
    spec: PrimitiveConstructorSpec[object] = PrimitiveConstructorSpec(
        nargs="*" if takes_list(option.type_) else 1,
        metavar=option.placeholder,
        instance_from_str=lambda words: read_value(
            option.type_, words, option.flag, option.example
        ),
        is_instance=lambda value: True,
        str_from_instance=lambda value: [option.default or ""],
    )
    hint = "" if option.default is None else f"(default: {option.default})"
    argument = tyro.conf.arg(help=option.help or None, help_behavior_hint=hint)
    annotation = Annotated[object, spec, argument]
    return tyro.conf.Positional[annotation] if option.is_positional else annotation


def _collected(options: Sequence[Option], parsed: object) -> dict[str, Json]:
    given: dict[str, Json] = {}
    for option in options:
        value = parsed
        for name in option.path:
            value = getattr(value, name)
        if isinstance(value, _NotGiven):
            continue
        table = given
        for name in option.path[:-2] if option.leaves_out else option.path[:-1]:
            table = cast("dict[str, Json]", table.setdefault(name, {}))
        if option.leaves_out:
            _leave_out(option, bool(value), table)
        else:
            table[option.path[-1]] = cast("Json", value)
    return given


def _leave_out(option: Option, is_left_out: bool, tables: dict[str, Json]) -> None:
    """Set a table to none, or to its defaults."""
    name = option.path[-2]
    if not is_left_out:
        tables.setdefault(name, {})
        return
    inside = cast("dict[str, Json]", tables.get(name, {}))
    if inside:
        other = ".".join((*option.path[:-1], next(iter(inside)))).replace("_", "-")
        raise UsageError(f"{option.flag} contradicts --{other}; leave one of them out")
    tables[name] = "none"


def _condensed(printed: str) -> str:
    """Return the text of a message that tyro printed in a box."""
    lines = [line.translate(_BOX).strip() for line in printed.splitlines()]
    body = []
    for line in lines[1:]:
        if line and not line.strip("─-"):
            break
        body.append(line)
    return one_line(" ".join(body)) or one_line(printed) or "the command line cannot be parsed"
