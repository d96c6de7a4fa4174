"""The parser of all commands: argparse, with options that are only known at run time."""

import argparse
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import groupby, takewhile
from typing import NoReturn, TypeVar, cast

from rl_command.errors import UsageError
from rl_command.options import Option
from rl_command.values import is_switch, read_value, takes_list
from rl_core.config import Json, Tables, decode
from rl_core.errors import ConfigError, DeviceError, closest

T = TypeVar("T")

_NUMBER = re.compile(r"[-+]?(\.?\d[\d_.,e+-]*|inf|nan)$", re.IGNORECASE)
_PATH = re.compile(r"[a-z_]+(\.[a-z0-9_]+)*")
_SECTION = re.compile(r"--(.*\.)?")
_EMPTY_LIST = "; write [] for an empty list"
_BESIDE = re.compile(r"(?<=has no effect )(with|without) ")
HELP = ("-h", "--help", "--help-all")
"""Words that ask for help."""

_FIRST = {
    *("learning_rate", "policy_learning_rate", "critic_learning_rate", "gamma", "gae_lambda"),
    *("clip_range", "entropy_coef", "num_epochs", "num_minibatches", "minibatch_size"),
    *("update_after", "test_every", "hidden_sizes", "recurrent_net", "normalize_observations"),
    *("num_steps", "size", "n_step", "loggers"),
    # of meta-learning
    *("inner_algorithm", "inner_lr", "outer_lr", "num_grad_updates", "meta_batch_size"),
    *("num_sampled_tasks", "kl_coef", "latent_dim", "encoder_learning_rate"),
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

    def put(self, option: Option, words: Sequence[str]) -> None:
        """Add the value of an option.

        Raises:
            UsageError: when it has the wrong type, or repeats or contradicts another one.
        """
        if "" in words:
            hint = _EMPTY_LIST if takes_list(option.type_) else ""
            raise UsageError(f"{option.flag} is empty; expected {option.placeholder}{hint}")
        dotted = ".".join(option.path)
        value, table = read_value(option.type_, words, option.flag), self.tables
        for path, flag in self.flags.items():
            if path == dotted and option.short == "--import":
                value = [*cast("list[Json]", table[path]), *cast("list[Json]", value)]
            elif flag == option.flag:
                raise UsageError(f"{flag} is given twice; leave one out")
            elif f"{path}.".startswith(f"{dotted}.") or f"{dotted}.".startswith(f"{path}."):
                how = "repeats" if path == dotted else "contradicts"
                raise UsageError(f"{option.flag} {how} {flag}; leave one out")
        self.flags[dotted] = option.flag
        for name in option.path[:-1]:
            table = cast("Tables", table.setdefault(name, {}))
        table[option.path[-1]] = value

    def into(self, arguments: type[T]) -> T:
        """Return the values as a dataclass of arguments.

        Raises:
            UsageError: when a value is out of range.
        """
        with self.named({}):
            return decode(arguments, self.tables)

    @contextmanager
    def named(self, filed: Tables, file: str | None = None) -> Iterator[None]:
        """Begin errors about an option as it was given: with its flag, or with the file's name."""
        try:
            yield
        except (ConfigError, DeviceError) as error:
            message = str(error)
            path = found[0] if (found := _PATH.match(message)) else ""
            for where in (path, f"env.{path}"):
                if where in self.flags:
                    rest = message.removeprefix(path).replace("or None", "or none")
                    if "." not in path:  # the other option is one of the same section
                        rest = _BESIDE.sub(rf"\1 --{where.removesuffix(path)}", rest)
                    raise UsageError(f"{self.flags[where]}{rest}") from error
                inside: Json = filed
                for name in where.split("."):
                    inside = inside.get(name) if isinstance(inside, dict) else None
                if inside is not None:
                    raise UsageError(f"{file}: {message}") from error
            raise


class _Word(str):
    """What was typed in one place, which another word may repeat; argparse keeps the object."""

    __slots__ = ()


class _Parser(argparse.ArgumentParser):
    """Leaves errors to the caller."""

    def error(self, message: str) -> NoReturn:
        # Only lists take one argument or more.
        raise UsageError(message + (_EMPTY_LIST if "at least one argument" in message else ""))


class _Formatter(argparse.HelpFormatter):
    """Keeps the lines of a description, and shows placeholders as they are."""

    def __init__(self, prog: str) -> None:
        width = min(100, shutil.get_terminal_size().columns)
        super().__init__(prog, max_help_position=34, width=width)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines = text.splitlines()
        return "\n".join(super(_Formatter, self)._fill_text(s, width, indent) for s in lines)

    def _format_args(self, action: argparse.Action, default_metavar: str) -> str:
        return f"[{action.metavar}]" if action.nargs == "?" else str(action.metavar)


def parse(
    command: Command,
    words: Sequence[str],
    *,
    partial: bool = False,
    is_name: Callable[[str], bool] = lambda word: word.lower() not in ("true", "false"),
) -> Given:
    """Read the options that the user gave, without defaults, in any order.

    Args:
        command: the command.
        words: arguments without the command's name.
        partial: other options may become known later; they are skipped, each with the word behind
            it, and nothing is missed yet.
        is_name: returns True for a word that is no value, where an option needs none or no more.

    Raises:
        UsageError: when something is unknown, missing, given twice, or of the wrong type.
        SystemExit: after printing the help, unless partial.
    """
    if not partial and (asked := [word for word in words if word in HELP]):
        print(help_text(command, "--help-all" in asked), end="")
        raise SystemExit(0)
    words = [_Word(_with_dashes(word)) for word in words if word not in HELP]
    places = {id(word): place for place, word in enumerate(words)}
    parser, _ = _build(command, everything=True)
    if partial:
        for flag in {word.partition("=")[0] for word in words if _is_flag(word)}:
            with suppress(argparse.ArgumentError):  # it is known already
                parser.add_argument(flag, dest=flag, action="append", nargs="?", const="true")
    typed, rest = parser.parse_known_args(words)
    known = {option.flag: option for option in command.options}
    if unknown := [word.partition("=")[0] for word in rest if _is_flag(word)]:
        hints = [f"{flag} ({_suggestion(flag, known, command)})" for flag in dict.fromkeys(unknown)]
        raise UsageError(f"unknown option{'s' * (len(hints) > 1)} {', '.join(hints)}")
    given, behind = Given(), list[str]()
    for flag, occurrences in vars(typed).items():
        option = known.get(flag)
        needed = 0 if option is None or is_switch(option.type_) else 1
        for value in occurrences:
            values = value if isinstance(value, list) else [value]
            # A value behind = is no word, and so no name.
            more = takewhile(
                lambda word: id(word) not in places or not is_name(word), values[needed:]
            )
            own = [*values[:needed], *more]
            behind += values[len(own) :]
            if option is not None:
                given.put(option, [*map(str, own)] or ["true"])
    names = sorted([*rest, *behind], key=lambda word: places[id(word)]) if behind else rest
    given.names = _checked_names(command, [*map(str, names)], partial)
    return given


def help_text(command: Command, everything: bool = True) -> str:
    """Return the help of a command.

    Args:
        command: the command.
        everything: show every option, and not only those that people set first.
    """
    parser, hidden = _build(command, everything)
    if hidden:
        again = " ".join((command.name, *command.places, "--help-all"))
        parser.epilog = f"{hidden} more options: {again}"
    return parser.format_help()


def _build(command: Command, everything: bool) -> tuple[_Parser, int]:
    """Return a parser, and the number of options that its help does not show."""
    parser = _Parser(
        usage=" ".join((command.name, *command.places, "[OPTIONS]")),
        description=command.summary,
        formatter_class=_Formatter,
        add_help=False,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    parser._negative_number_matcher = _NUMBER  # argparse's own knows neither -1e3 nor -inf
    hidden = 0
    for section, options in groupby(command.options, lambda option: option.section):
        inside = list(options)
        shown = inside
        if section and not everything and len(inside) > _FEW:
            shown = [o for o in inside if o.is_own or (len(o.path) == 2 and o.path[1] in _FIRST)]
        about = command.sections.get(section) if shown else None  # no heading without options
        group = parser.add_argument_group(section or "options", about)
        for option in inside:
            _add(group, option, option in shown)
        hidden += len(inside) - len(shown)
    return parser, hidden


def _add(group: argparse._ArgumentGroup, option: Option, is_shown: bool) -> None:
    takes_words = bool(option.section) and takes_list(option.type_)
    default = "" if option.default is None else f" [default: {option.default}]"
    group.add_argument(
        option.flag,
        dest=option.flag,
        action="append",
        nargs="?" if is_switch(option.type_) else "+" if takes_words else None,
        const="true" if is_switch(option.type_) else None,
        metavar=option.placeholder,
        help=f"{option.help}{default}".replace("%", "%%") if is_shown else argparse.SUPPRESS,
    )
    if is_switch(option.type_):  # as in --actor.no-squash-actions and --no-actor.squash-actions
        negations = {_SECTION.sub(r"\g<0>no-", option.flag, 1), f"--no-{option.flag[2:]}"}
        group.add_argument(
            *negations,
            dest=option.flag,
            action="append_const",
            const="false",
            help=argparse.SUPPRESS,
        )


def _is_flag(word: str) -> bool:
    return word.startswith("-") and len(word) > 1 and not _NUMBER.match(word)


def _with_dashes(word: str) -> str:
    """Write dashes for the underscores of a flag."""
    flag, equals, value = word.partition("=")
    return f"{flag.replace('_', '-')}{equals}{value}" if word.startswith("--") else word


def _checked_names(command: Command, names: list[str], partial: bool) -> list[str]:
    places = command.places
    if "" in names:
        raise UsageError(f"{places[names.index('')]} is empty; expected a name")
    if partial:  # some may be values of options that are not known yet
        return [name for name in names if not _NUMBER.match(name)][: len(places)]
    if len(names) < command.required:
        raise UsageError(f"{places[len(names)]} is missing: {command.name} --help shows how")
    if len(names) > len(places) and not (places and places[-1].endswith("...")):
        raise UsageError(
            f"'{names[len(places)]}' is one argument too many: {command.name} takes "
            f"{' '.join(places) or 'options only'}"
        )
    return names


def _suggestion(flag: str, known: Mapping[str, Option], command: Command) -> str:
    """Return a hint at the option that was meant, in any section, or called so elsewhere."""
    by_name = {option.path[-1]: other for other, option in reversed(list(known.items()))}
    name = flag.rpartition(".")[2].lstrip("-").replace("-", "_")
    if name not in by_name and "." not in flag and name.partition("_")[0] in ("algo", "env"):
        return "ALGO and ENV take no flag, as in rl train ppo CartPole-v1"
    if name == "policy" and name not in by_name:
        return "leave it out: the networks follow from the observation space"
    if f"{flag}.name" in known:
        return f"did you mean '{flag}.name'?"
    table = flag.rpartition(".")[0]
    beside = by_name
    if name not in by_name:
        beside = {
            option.path[-1]: other
            for other, option in known.items()
            if table and other.rpartition(".")[0] == table
        }
    if table != "--env" and any(option.section for option in known.values()):
        from rl_train.builder.components import components_with  # brings PyTorch

        if others := components_with(name, by_name):
            return f"an option of other parts: {others}"
    for names in (beside, {} if table == "--env" else by_name):
        if (meant := closest(name, names)) is not None:
            return f"did you mean '{names[meant]}'?"
    if table == "--env" and "--env.env-kwargs" in known:
        return (
            f"an argument of the environment itself is given as --env.env-kwargs '{{{name} = 1}}'"
        )
    if "RUN_DIR" in command.places:
        return f"a run keeps the options that it began with; {command.name} --help shows others"
    return "--help-all shows all options"
