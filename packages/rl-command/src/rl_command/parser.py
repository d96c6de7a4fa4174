"""The parser of all commands, for options that are only known at run time, and its help."""

import re
import shutil
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TypeVar, cast

from rl_command.errors import UsageError
from rl_command.options import Option
from rl_command.values import is_switch, read_value, takes_list, takes_words
from rl_core.config import Tables, decode
from rl_core.errors import ConfigError, DeviceError, closest
from rl_core.types import Json

T = TypeVar("T")

_NUMBER = re.compile(r"[-+]?(\.?\d.*|inf|nan)", re.IGNORECASE)
_BEGIN = re.compile(r"[a-z_]+(\.[a-z0-9_]+)*")
HELP = ("-h", "--help", "--help-all")
"""Words that ask for help."""
_COLUMN = 32
"""Width of the help's column of options."""

_FIRST = {
    *("learning_rate", "policy_learning_rate", "critic_learning_rate", "gamma", "gae_lambda"),
    *("clip_range", "entropy_coef", "num_epochs", "num_minibatches", "minibatch_size"),
    *("update_after", "test_every", "hidden_sizes", "recurrent_net", "normalize_observations"),
    *("num_steps", "size", "n_step", "loggers"),
}
"""Options of components that people set first."""

_FEW = 4
"""Components with no more options show all of them."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command with its options.

    Attributes:
        name: as one types it, such as ``rl train``.
        summary: what it does.
        options: its options.
        places: what its positional arguments are called; ``...`` after the last takes several.
        required: number of positional arguments that must be given.
        sections: description of each section of options.
    """

    name: str
    summary: str
    options: tuple[Option, ...]
    places: tuple[str, ...] = ()
    required: int = 0
    sections: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Given:
    """What the user typed.

    Attributes:
        names: positional arguments.
        tables: values by the options' paths, nested.
        flags: the flag of each value, by its dotted path.
    """

    names: list[str] = field(default_factory=list)
    tables: Tables = field(default_factory=dict)
    flags: dict[str, str] = field(default_factory=dict)

    def into(self, arguments: type[T]) -> T:
        """Return the values as a dataclass of arguments.

        Raises:
            UsageError: when a value is out of range.
        """
        with self.named(self.tables):
            return decode(arguments, self.tables)

    @contextmanager
    def named(self, filed: Tables, file: object = None) -> Iterator[None]:
        """Begin errors about an option as it was given: with its flag, or with the file's name."""
        try:
            yield
        except (ConfigError, DeviceError) as error:
            message = str(error)
            begin = _BEGIN.match(message)
            path = begin[0].split(".") if begin else [""]
            for where in (path, ["env", *path]):
                if (flag := self.flags.get(".".join(where))) is not None:
                    raise UsageError(flag + message.removeprefix(".".join(path))) from error
                if file is not None and _has(filed, where):
                    raise UsageError(f"{file}: {message}") from error
            if type(error) is ConfigError and file is None:
                raise UsageError(message) from error
            raise


def parse(
    command: Command,
    words: Sequence[str],
    *,
    partial: bool = False,
    is_name: Callable[[str], bool] = lambda word: False,
) -> Given:
    """Read the options that the user gave, without defaults, in any order.

    Args:
        command: the command.
        words: arguments without the command's name.
        partial: other options may become known later; they are skipped, each with the word behind
            it, and nothing is missed yet.
        is_name: returns True for a word that is not the value of such an option.

    Raises:
        UsageError: when something is unknown, missing, given twice, or of the wrong type.
        SystemExit: after printing the help, unless partial.
    """
    if not partial and (asked := [word for word in words if word in HELP]):
        print(help_text(command, "--help-all" in asked), end="")
        raise SystemExit(0)
    given, known = Given(), {option.flag: option for option in command.options}
    rest, behind = [word for word in words if word not in HELP], dict[str, Option]()
    open_option: Option | None = None  # whose value a word behind it could have been
    while rest:
        word = rest.pop(0)
        if not _is_flag(word):
            if open_option is not None and not is_name(word):
                behind[word] = open_option
            open_option = None
            given.names.append(word)
            continue
        flag, equals, attached = word.partition("=")
        option, is_negated = _look_up(flag.replace("_", "-"), known)
        if option is None and not partial:
            raise _unknown_options([word, *rest], known)
        if is_negated and equals:
            raise UsageError(f"{flag}, with no- before its name, takes no value")
        bare = list(takewhile(lambda following: not _is_flag(following), rest))
        values = [] if equals or is_negated else _values(option, bare, is_name)
        del rest[: len(values)]
        if option is not None:
            is_open = is_switch(option.type_) or takes_list(option.type_)
            open_option = option if is_open and not (equals or is_negated) else None
            values = [attached] if equals else values or ["false" if is_negated else "true"]
            _put(given, option, values)
    _check_names(command, given, behind, partial)
    return given


def help_text(command: Command, everything: bool = True) -> str:
    """Return the help of a command.

    Args:
        command: the command.
        everything: show every option, and not only those that people set first.
    """
    width = min(100, shutil.get_terminal_size().columns)
    usage = " ".join((command.name, *command.places, "[OPTIONS]"))
    lines = [f"usage: {usage}", "", *command.summary.splitlines()]
    hidden = 0
    for section in dict.fromkeys(option.section for option in command.options):
        inside = [option for option in command.options if option.section == section]
        shown = [o for o in inside if everything or not section or len(inside) <= _FEW]
        shown = shown or [o for o in inside if len(o.path) == 2 and o.path[1] in _FIRST]
        hidden += len(inside) - len(shown)
        if shown:
            title = f"{section}: {command.sections.get(section, '')}" if section else "options:"
            lines += ["", *textwrap.wrap(title, width)]
            lines += [row for option in shown for row in _rows(option, width)]
    if hidden:
        lines += [
            "",
            f"{hidden} more options: {command.name} {' '.join(command.places)} --help-all",
        ]
    return "\n".join(lines) + "\n"


def _rows(option: Option, width: int) -> list[str]:
    """Return the help of an option in two columns."""
    default = "" if option.default is None else f" [default: {option.default}]"
    texts = textwrap.wrap(f"{option.help}{default}", width - _COLUMN - 2) or [""]
    head = f"  {option.flag} {option.placeholder}"
    heads = [head] if len(head) <= _COLUMN else ["", head]
    rows = [f"{heads[0]:<{_COLUMN}}  {texts[0]}", *(" " * (_COLUMN + 2) + t for t in texts[1:])]
    return [*heads[1:], *rows]


def _values(
    option: Option | None, bare: Sequence[str], is_name: Callable[[str], bool]
) -> Sequence[str]:
    """Return the words behind an option that are its value; a switch needs none."""
    if option is None:  # of an unknown one, the first word at least
        return bare[: _list_length(bare)] if bare and not is_name(bare[0]) else []
    if is_switch(option.type_):
        return bare[:1] if bare and _fits(option, bare[0]) else []
    if not bare:
        raise UsageError(f"{option.flag} needs a value: {option.placeholder}")
    if option.section and takes_words(option.type_):
        return [bare[0], *takewhile(lambda word: not is_name(word), bare[1:])]
    return bare[: _list_length(bare) if takes_list(option.type_) else 1]


def _list_length(bare: Sequence[str]) -> int:
    # A list of numbers goes on as long as there are numbers.
    return 1 + len(list(takewhile(_NUMBER.fullmatch, bare[1:])))


def _fits(option: Option, word: str) -> bool:
    try:
        read_value(option.type_, [word], option.flag)
    except UsageError:
        return False
    return True


def _is_flag(word: str) -> bool:
    return word.startswith("-") and len(word) > 1 and not _NUMBER.fullmatch(word)


def _look_up(flag: str, known: Mapping[str, Option]) -> tuple[Option | None, bool]:
    """Find an option by its flag or, for a switch, by its flag with ``no-`` before a name."""
    if flag in known:
        return known[flag], False
    head, separator, name = flag.removeprefix("--").rpartition(".")
    for positive in (f"{head}{separator}{name.removeprefix('no-')}", flag.removeprefix("--no-")):
        option = known.get(f"--{positive}")
        if option is not None and is_switch(option.type_):
            return option, True
    return None, False


def _put(given: Given, option: Option, words: Sequence[str]) -> None:
    """Add the value of an option, which neither repeats nor contradicts another one."""
    if "" in words:
        raise UsageError(f"{option.flag} is empty; expected {option.placeholder}")
    dotted = ".".join(option.path)
    repeats = option.short == "--import"
    for path, flag in given.flags.items():
        if path == dotted and not repeats:
            which = "is given twice" if flag == option.flag else f"says the same as {flag}"
            raise UsageError(f"{option.flag} {which}; leave one of them out")
        if f"{path}.".startswith(f"{dotted}.") != f"{dotted}.".startswith(f"{path}."):
            raise UsageError(f"{option.flag} contradicts {flag}; leave one of them out")
    value, table = read_value(option.type_, words, option.flag), given.tables
    for name in option.path[:-1]:
        table = cast("Tables", table.setdefault(name, {}))
    old = table.get(option.path[-1])
    table[option.path[-1]] = [*old, *cast("list[Json]", value)] if isinstance(old, list) else value
    given.flags[dotted] = option.flag


def _check_names(
    command: Command, given: Given, behind: Mapping[str, Option], partial: bool
) -> None:
    places, names = command.places, given.names
    if "" in names:
        raise UsageError(f"{places[names.index('')]} is empty; expected a name")
    takes_more = places and places[-1].endswith("...")
    if partial:
        del names[len(places) :]  # may be values of options that are not known yet
    elif len(names) > len(places) and not takes_more:
        for word, option in behind.items():
            raise UsageError(f"{option.flag}: got '{word}'; expected {option.placeholder}")
        raise UsageError(
            f"'{names[len(places)]}' is one argument too many: {command.name} takes "
            f"{' '.join(places) or 'options only'}"
        )
    elif len(names) < command.required:
        raise UsageError(f"{places[len(names)]} is missing: {command.name} --help shows how")


def _unknown_options(words: Sequence[str], known: Mapping[str, Option]) -> UsageError:
    """Build an error that names all of them, since each call of the command takes seconds."""
    flags = [word.partition("=")[0] for word in words if _is_flag(word)]
    unknown = [flag for flag in flags if _look_up(flag.replace("_", "-"), known)[0] is None]
    if len(unknown) == 1:
        return UsageError(f"unknown option {unknown[0]}{_suggestion(unknown[0], known)}")
    hints = [f"{flag} ({_suggestion(flag, known).removeprefix('; ')})" for flag in unknown]
    return UsageError(f"unknown options {', '.join(hints)}")


def _suggestion(flag: str, known: Mapping[str, Option]) -> str:
    """Return a hint at the option that was meant, in any section, or called so elsewhere."""
    by_name = {_last_name(other): other for other in reversed(list(known))}
    name = _last_name(flag)
    if name not in by_name and name.partition("_")[0] in ("algo", "env"):
        return "; ALGO and ENV take no flag, as in rl train ppo CartPole-v1"
    meant = closest(name, by_name)
    return (
        "; --help-all shows all options" if meant is None else f"; did you mean '{by_name[meant]}'?"
    )


def _last_name(flag: str) -> str:
    return flag.rpartition(".")[2].lstrip("-").replace("-", "_")


def _has(tables: Tables, path: Sequence[str]) -> bool:
    """Return whether tables have a value at a path."""
    inside: Json = tables
    for name in path:
        if not isinstance(inside, dict) or name not in inside:
            return False
        inside = inside[name]
    return True
