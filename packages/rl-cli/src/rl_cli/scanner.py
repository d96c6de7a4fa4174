"""Sorting the words of a command line into positional arguments, options and their values."""

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from rl_cli.errors import UsageError
from rl_cli.options import Option
from rl_cli.values import is_switch, read_value, takes_list
from rl_core.errors import nearest

_NUMBER = re.compile(r"[-+]?\.?\d.*")


@dataclass(slots=True)
class Scanned:
    """The words of a command line, sorted.

    Attributes:
        positionals: in their order.
        values: words by option; of an option that is given twice the last ones.
        wants_help: whether there is a ``--help``.
    """

    positionals: list[str] = field(default_factory=list)
    values: dict[Option, list[str]] = field(default_factory=dict)
    wants_help: bool = False

    def normalized(self) -> list[str]:
        """Return words of the same meaning, in which nothing depends on the order."""
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
    open_sections: Collection[str] = (),
    is_positional: Callable[[str], bool] = lambda word: False,
) -> Scanned:
    """Sort the words of a command line.

    Args:
        words: as typed, without the command.
        options: those that are known.
        open_sections: sections whose options are not known yet; those that are not among the known
            ones are left out, with the word behind them.
        is_positional: tells which word is none the less no value of such an option.

    Raises:
        UsageError: for an option that is unknown, or lacks its value.
    """
    known = {option.flag: option for option in options if not option.is_positional}
    scanned, rest = Scanned(), list(words)
    while rest:
        word = rest.pop(0)
        if word in ("-h", "--help"):
            scanned.wants_help = True
        elif not _is_flag(word):
            scanned.positionals.append(word)
        else:
            flag, equals, value = word.partition("=")
            flag = flag.replace("_", "-")
            option, negated = _look_up(flag, known)
            bare = [value] if equals else list(takewhile(lambda w: not _is_flag(w), rest))
            if option is None and flag.partition(".")[0].removeprefix("--") in open_sections:
                count = 0 if not bare or is_positional(bare[0]) else _list_length(bare)
                values = bare[:count]
            elif option is None:
                raise UsageError(f"unknown option {flag}{_suggestion(flag, known)}")
            else:
                values = ["false"] if negated else _values_of(option, bare, bool(equals))
                count = 0 if negated else len(values)
                if is_switch(option.type_) and not values:
                    values = ["true"]
                scanned.values.pop(option, None)
                scanned.values[option] = values
            del rest[: 0 if equals else count]
    return scanned


def _values_of(option: Option, bare: Sequence[str], is_attached: bool) -> list[str]:
    """Return the words that belong to an option, of those that follow it."""
    if is_switch(option.type_) and not is_attached:
        return list(bare[:1]) if bare and _fits(option, bare[0]) else []
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
    """Find an option by its flag or, for a switch, by its flag with ``no-`` before the name."""
    if flag in known:
        return known[flag], False
    head, separator, name = flag.removeprefix("--").rpartition(".")
    positive = f"--{head}{separator}{name.removeprefix('no-')}"
    if name.startswith("no-") and positive in known and is_switch(known[positive].type_):
        return known[positive], True
    return None, False


def _suggestion(flag: str, known: Collection[str]) -> str:
    name = flag.rpartition(".")[2].removeprefix("--")
    same = [other for other in known if other.rpartition(".")[2].removeprefix("--") == name]
    if same:
        return f"; did you mean '{same[0]}'?"
    hint = nearest(flag, known)
    return hint if "did you mean" in hint else "; --help shows all options"
