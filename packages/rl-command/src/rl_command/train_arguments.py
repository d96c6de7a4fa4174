"""The arguments of ``rl train``: the names, then the options of the components they name."""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, cast

from rl_command.docstrings import first_sentence
from rl_command.errors import UsageError
from rl_command.options import Option, command_options, component_options
from rl_command.parser import Command, parse, print_help
from rl_command.sections import SECTIONS, ConfigFile, merged_sections
from rl_command.values import write_value
from rl_core import plugins
from rl_core.config import LENGTHS, ComponentSpec, Recipe, Tables, decode
from rl_core.errors import ConfigError, DeviceError
from rl_core.types import Json
from rl_train.builder import component_of, compose, resolve_device
from rl_train.builder.components import PARTS
from rl_train.trainer import Budget

DEFAULT_TOTAL_STEPS = 100_000
"""Environment steps of a run whose length is not given."""

_RestartModel: TypeAlias = str | dict[str, str] | None
"""A directory, or one for each part of the actor."""

_OPTION = re.compile(r"[a-z_]+(\.[a-z0-9_]+)*")
_GIVEN_APART = (("env", "env"), ("env", "seed"))

_NAME = "rl train"
_SUMMARY = """\
Train an agent and save the run in a directory.
- rl train ALGO ENV --help also shows the options of ALGO and ENV
- options on the command line win over --config, which wins over the defaults
- write a list as 64 64, 64,64 or [64, 64], and no value as none
- write a table, or a list of tables, in TOML, {name = "rnd"}, or in JSON, {"name": "rnd"}
- a true|false option needs no value for true; no- before its name means false"""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainArguments:
    """Arguments of every training run.

    Attributes:
        algo: Registered name of the algorithm, as in rl list algorithms.
        environment: Gymnasium id or registered name of the environment.
        total_steps: Environment steps to train for, summed over all environments.
        total_episodes: Finished episodes to train for, in place of steps.
        total_updates: Updates to train for, in place of steps.
        num_envs: Number of environments that step together; short for --env.num-envs.
        seed: Seed for all random generators (>= 0).
        device: Device of the networks; auto takes a GPU if there is one.
        run_dir: New or empty directory for everything that the run writes.
        config: File with a recipe, or part of one, in TOML, or in JSON if its name ends in .json;
            it may name ALGO and ENV in place of the command line.
        restart_model: Run or checkpoint whose weights the actor starts with, or a table with one
            for each part of the actor, as in {policy = "runs/bc"}.
    """

    algo: str | None = None
    environment: str | None = None
    total_steps: int | None = None
    total_episodes: int | None = None
    total_updates: int | None = None
    num_envs: int | None = None
    seed: int = 0
    device: str = "auto"
    run_dir: str | None = None
    config: str | None = None
    restart_model: _RestartModel = None


@dataclass(frozen=True, slots=True)
class TrainRequest:
    """A training run to start.

    Attributes:
        recipe: the complete recipe.
        goal: when the run ends.
        run_dir: run directory; None chooses one.
        restart_model: source of the initial weights; None draws them.
    """

    recipe: Recipe
    goal: Budget
    run_dir: Path | None
    restart_model: _RestartModel


def read_train_request(words: Sequence[str]) -> TrainRequest:
    """Read the command line, and the configuration file if it names one.

    Args:
        words: as typed after ``rl train``.

    Raises:
        RLError: when something is unknown, out of range, or contradicts something else.
        SystemExit: after printing the help.
    """
    wants_help = "-h" in words or "--help" in words
    arguments = _read_arguments(words)
    file = ConfigFile(arguments.pop("config", None))
    algo, environment = arguments.get("algo"), arguments.get("environment")
    if wants_help and file.path is None and (algo is None or environment is None):
        print_help(Command(_NAME, _SUMMARY, _run_options(file)))
    algo = file.agreed_name("algorithm", algo, "ALGO")
    env = file.agreed_name("env", environment, "ENV")
    _check_order(algo, env)
    typed = {name: int(arguments[name]) for name in LENGTHS if name in arguments}
    goal = chosen_goal(typed, file.length or {"total_steps": DEFAULT_TOTAL_STEPS}, file.path)
    assert goal is not None
    bare = _compose_bare(algo, env, file, words)
    shown = compose(algo, env, file.sections) if wants_help and file.path else bare
    given = _with_num_envs(parse(_full_command(shown, file), words, is_positional=_is_algorithm))
    with _named_as_given(given, file):
        recipe = compose(
            algo,
            env,
            merged_sections(file.sections, given, {"algorithm": algo, "actor": bare.actor.name}),
            seed=cast("int", given.get("seed", file.tables.get("seed", 0))),
            device=cast("str", given.get("device", file.tables.get("device", "auto"))),
        )
        resolve_device(recipe.device)
    run_dir = arguments.get("run_dir")
    return TrainRequest(
        recipe.replace(resolved=goal.arguments),
        goal,
        None if run_dir is None else Path(run_dir),
        decode(
            TrainArguments, {"restart_model": given.get("restart_model", file.restart_model)}
        ).restart_model,
    )


def chosen_goal(
    typed: Mapping[str, int | None], filed: Tables, file: Path | str | None
) -> Budget | None:
    """Return when a run ends: as the command line says, or else a file; None if neither does.

    Args:
        typed: lengths on the command line, under the names of `rl_core.config.LENGTHS`.
        filed: lengths in the file.
        file: name of the file, for messages.

    Raises:
        RLError: when there is more than one length, or one is not a whole number of at least 1.
    """
    counts = {name: decode(int, value, f"{file}: {name}") for name, value in filed.items()}
    goal = _goal({f"{file}: {name}": (name, count) for name, count in counts.items()})
    given = {name: count for name, count in typed.items() if count is not None}
    flags = {f"--{name.replace('_', '-')}": (name, count) for name, count in given.items()}
    return _goal(flags) or goal


def _goal(lengths: Mapping[str, tuple[str, int]]) -> Budget | None:
    if not lengths:
        return None
    if len(lengths) > 1:
        raise UsageError(f"{' and '.join(lengths)} contradict each other; give just one")
    ((shown, (name, target)),) = lengths.items()
    if target < 1:
        raise UsageError(f"{shown} must be at least 1, got {target}")
    return Budget(name.removeprefix("total_"), target)


def _read_arguments(words: Sequence[str]) -> dict[str, str]:
    """Read the options that do not depend on the components."""
    given = _parse_known(words, (*_run_options(None), *_name_options(None)))
    return {key: str(value) for key, value in given.items() if key not in SECTIONS}


def _compose_bare(algo: str, env: str, file: ConfigFile, words: Sequence[str]) -> Recipe:
    """Compose from the names and the environment alone, to learn which options there are."""
    env_options = _choosable(component_options("env", component_of("env", env)))
    known = (*_run_options(None), *_name_options(None), *env_options)
    given = _with_num_envs(_parse_known(words, known))
    merged = merged_sections(file.sections, given)
    sections = {"env": merged["env"]}
    for section in ("actor", "storage"):
        sections[section] = {k: v for k, v in merged[section].items() if k == "name"}
    with _named_as_given(given, file):
        return compose(algo, env, sections)


def _check_order(algo: str, env: str) -> None:
    """Refuse names in the wrong order."""
    if _is_algorithm(env) and not _is_algorithm(algo):
        raise UsageError(
            f"ALGO is '{algo}' and ENV is '{env}'; the order is ALGO ENV: rl train {env} {algo}"
        )


def _is_algorithm(word: str) -> bool:
    return word in plugins.available("algorithm")


@contextmanager
def _named_as_given(given: Tables, file: ConfigFile) -> Iterator[None]:
    """Rewrite errors that begin with an option: as a flag, or after the file that sets it."""
    try:
        yield
    except (ConfigError, DeviceError) as error:
        message = str(error)
        begin = _OPTION.match(message)
        path = begin[0].split(".") if begin and begin[0] not in SECTIONS else [""]
        for where in (path, ["env", *path]):
            if _has(given, where):
                flag = "--" + ".".join(where).replace("_", "-")
                raise UsageError(flag + message.removeprefix(".".join(path))) from error
            if _has(file.tables, where):
                raise UsageError(f"{file.path}: {message}") from error
        raise


def _has(tables: Tables, path: Sequence[str]) -> bool:
    """Return whether tables have a value at a path."""
    inside: Json = tables
    for name in path:
        if not isinstance(inside, dict) or name not in inside:
            return False
        inside = inside[name]
    return True


def _parse_known(words: Sequence[str], known: Sequence[Option]) -> Tables:
    """Read the options that are known so far; others may become known later."""
    command = Command(_NAME, _SUMMARY, tuple(known))
    return parse(command, words, may_be_more=True, is_positional=_is_algorithm)


def _full_command(recipe: Recipe, file: ConfigFile) -> Command:
    options = list(_run_options(file))
    names = {option.path[0]: option for option in _name_options(recipe)}
    titles: dict[str, str] = {}
    for section in SECTIONS:
        spec = ComponentSpec("env", "trainer") if section == "trainer" else getattr(recipe, section)
        component = component_of(section, spec.name)
        defaults = recipe.trainer if section == "trainer" else spec.kwargs
        options += [names[section]] if section in names else []
        options += _choosable(component_options(section, component, defaults))
        options += _part_options(section, component, defaults)
        titles[section] = f"{spec.name}: {first_sentence(component)}"
    return Command(_NAME, _SUMMARY, tuple(options), titles)


def _run_options(file: ConfigFile | None) -> tuple[Option, ...]:
    filed: dict[str, Json] = {}
    if file is not None:
        filed = {key: file.tables.get(key) for key in ("seed", "device")}
        filed |= file.length or {"total_steps": DEFAULT_TOTAL_STEPS}
        filed["restart_model"] = file.restart_model
    shown = {key: write_value(value) for key, value in filed.items() if value is not None}
    return command_options(
        TrainArguments,
        positional={"algo": "ALGO", "environment": "ENV"},
        placeholders={
            "device": "auto|cpu|cuda",
            "run_dir": "DIR",
            "config": "FILE",
            "restart_model": "DIR|TABLE",
        },
        defaults={"run_dir": "runs/ALGO-ENV-sSEED-TIME", **shown},
    )


def _name_options(recipe: Recipe | None) -> tuple[Option, ...]:
    """Return the options that choose another actor or storage than the algorithm's own."""
    return tuple(
        Option(
            path=(section, "name"),
            type_=str,
            help=f"Registered name of the {section}, as in rl list {section}s.",
            default=None if recipe is None else getattr(recipe, section).name,
            placeholder="NAME",
        )
        for section in ("actor", "storage")
    )


def _part_options(
    section: str, component: Callable[..., object], defaults: Mapping[str, Json]
) -> list[Option]:
    """Return the option that holds a component's parts by name, where it takes any."""
    name, of, is_list = PARTS.get(section, ("", "", False))
    if name not in inspect.signature(component).parameters:
        return []
    what, table = _PARTS_HELP[of]
    return [
        Option(
            path=(section, name),
            type_=list[dict[str, Json]] if is_list else dict[str, Json],
            help=f"{what}, as in rl list {of}s, and options.",
            default=write_value(defaults.get(name, [] if is_list else "none")),
            placeholder="TABLES" if is_list else "TABLE",
            example=[table] if is_list else table,
        )
    ]


_PARTS_HELP: Mapping[str, tuple[str, dict[str, Json]]] = {
    "add_on": (
        "Additional terms of the policy loss: tables with a name",
        {"name": "reward-predictor", "loss_weight": 0.1},
    ),
    "sampler": (
        "Rule of which rows are drawn: a table with a name",
        {"name": "by-return", "temperature": 1.0},
    ),
}
"""By kind of a part: its help, and an example."""


def _choosable(options: tuple[Option, ...]) -> tuple[Option, ...]:
    return tuple(option for option in options if option.path not in _GIVEN_APART)


def _with_num_envs(given: Tables) -> Tables:
    """Read ``--num-envs`` as ``--env.num-envs``."""
    if "num_envs" not in given:
        return given
    short, env = given["num_envs"], cast("Tables", given.get("env", {}))
    if env.get("num_envs", short) != short:
        raise UsageError(
            f"--num-envs is {short}, but --env.num-envs is {env['num_envs']}; leave one out"
        )
    return {**given, "env": {**env, "num_envs": short}}
