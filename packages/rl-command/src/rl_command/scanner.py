"""Sorting a command line into positional arguments, options and their values."""

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from rl_command.errors import UsageError
from rl_command.options import Option
from rl_command.values import is_switch, read_value, takes_list
from rl_core.errors import nearest

_NUMBER = re.compile(r"[-+]?(\.?\d.*|inf|nan)", re.IGNORECASE)


@dataclass(slots=True)
class Scanned:
    """A command line, sorted.

    Attributes:
        positionals: positional arguments in order.
        behind: for each, the switch or list right before it, whose value it may be meant as.
        values: words by option.
        wants_help: whether there is a ``--help``.
        passed_over: whether there are options that may become known later.
    """

    positionals: list[str] = field(default_factory=list)
    behind: list[Option | None] = field(default_factory=list)
    values: dict[Option, list[str]] = field(default_factory=dict)
    wants_help: bool = False
    passed_over: bool = False

    def normalized(self) -> list[str]:
        """Return an equivalent command line in which the order does not matter."""
        words = list(self.positionals)
        for option, values in self.values.items():
            if takes_list(option.type_):
                words += [option.flag, *values]
            else:
                words.append(f"{option.flag}={values[0]}")
        return words


def scan(
    words: Sequence[str],
    options: Iterable[Option],
    *,
    may_be_more: bool = False,
    is_positional: Callable[[str], bool] = lambda word: False,
) -> Scanned:
    """Sort the words of a command line.

    Args:
        words: arguments without the command's name.
        options: the options that are known.
        may_be_more: whether other options may become known later; they are skipped, each with the
            word behind it.
        is_positional: returns True for a word that is not the value of such an option.

    Raises:
        UsageError: for an option that is unknown, lacks its value, or is given twice.
    """
    known = {option.flag: option for option in options if not option.is_positional}
    scanned, rest = Scanned(), _with_tables_left_out(words, known)
    last: Option | None = None
    while rest:
        word = rest.pop(0)
        bare = list(takewhile(lambda following: not _is_flag(following), rest))
        flag, equals, attached = word.partition("=")
        flag = flag.replace("_", "-")
        option, is_negated = _look_up(flag, known)
        if not _is_flag(word):
            scanned.positionals.append(word)
            scanned.behind.append(last)
            last = None
        elif word in ("-h", "--help"):
            scanned.wants_help = True
        elif option is not None:
            if option in scanned.values:
                raise UsageError(f"{option.flag} is given twice; leave one of them out")
            values = _values_of(option, is_negated, bare, attached if equals else None)
            is_open = is_switch(option.type_) or takes_list(option.type_)
            last = option if is_open and not equals and not is_negated else None
            scanned.values[option] = values or ["false" if is_negated else "true"]
            del rest[: 0 if equals else len(values)]
        elif not may_be_more:
            raise UsageError(f"unknown option {flag}{_suggestion(flag, known)}")
        else:
            scanned.passed_over, last = True, None
            if bare and not equals and not is_positional(bare[0]):
                del rest[: _list_length(bare)]
    return scanned


def _with_tables_left_out(words: Sequence[str], known: dict[str, Option]) -> list[str]:
    """Replace ``--storage.recent none`` by the option that leaves that table out."""
    rest, written = list(words), []
    while rest:
        word = rest.pop(0)
        flag, equals, attached = word.partition("=")
        option = known.get(f"{flag.replace('_', '-')}.none")
        if option is not None and (attached if equals else "".join(rest[:1])) == "none":
            del rest[: 0 if equals else 1]
            word = f"{option.flag}=true"
        written.append(word)
    return written


def _values_of(
    option: Option, is_negated: bool, bare: Sequence[str], attached: str | None
) -> list[str]:
    """Return the following words that are an option's value; a switch needs none."""
    if is_negated and attached is not None:
        raise UsageError(f"{option.flag} with no- before its name takes no value")
    if attached is not None:
        return [attached]
    if is_switch(option.type_):
        return list(bare[:1]) if bare and not is_negated and _fits(option, bare[0]) else []
    if not bare:
        raise UsageError(f"{option.flag} needs a value: {option.placeholder}")
    return list(bare[: _list_length(bare) if takes_list(option.type_) else 1])


def _list_length(bare: Sequence[str]) -> int:
    # A list of numbers goes on as long as there are numbers; a list of texts takes commas.
    return 1 + len(list(takewhile(_NUMBER.fullmatch, bare[1:])))


def _fits(option: Option, word: str) -> bool:
    try:
        read_value(option.type_, [word], option.flag)
    except UsageError:
        return False
    return True


def _is_flag(word: str) -> bool:
    return word.startswith("-") and len(word) > 1 and not _NUMBER.fullmatch(word)


def _look_up(flag: str, known: dict[str, Option]) -> tuple[Option | None, bool]:
    """Find an option by its flag or, for a switch, by its flag with ``no-`` before a name."""
    if flag in known:
        return known[flag], False
    head, separator, name = flag.removeprefix("--").rpartition(".")
    for positive in (f"{head}{separator}{name.removeprefix('no-')}", flag.removeprefix("--no-")):
        option = known.get(f"--{positive}")
        if option is not None and is_switch(option.type_):
            return option, True
    return None, False


def _suggestion(flag: str, known: Collection[str]) -> str:
    name = flag.rpartition(".")[2].removeprefix("--")
    same = [other for other in known if other.rpartition(".")[2].removeprefix("--") == name]
    if same:
        return f"; did you mean '{same[0]}'?"
    hint = nearest(flag, known)
    return hint if "did you mean" in hint else "; --help shows all options"
