"""The arguments of ``rl train``: the names, then the options of the components they name."""

import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal, TypeAlias, cast

import gymnasium

from rl_command.errors import UsageError, stdout_kept_clean
from rl_command.options import Option, command_options, component_options, first_sentence
from rl_command.parser import HELP, Command, Given, help_text, parse
from rl_core import plugins
from rl_core.config import (
    CUSTOM,
    LENGTHS,
    Config,
    Count,
    Needs,
    NonNegativeInt,
    Recipe,
    Tables,
    Without,
    check_argument,
    decode,
    merged_tables,
)
from rl_core.errors import ConfigError, in_brief
from rl_core.types import Json
from rl_train.builder import SECTIONS, component_of, compose, resolve_device
from rl_train.builder.components import without_ineffective
from rl_train.recipe_files import load_tables
from rl_train.trainer import Budget, Trainer

DEFAULT_TOTAL_STEPS = 100_000
"""Environment steps of a run whose length is not given."""

ProgressMode: TypeAlias = Literal["auto", "bar", "log", "none"]
"""How a command shows its progress."""

_RestartModel: TypeAlias = str | dict[str, str] | None
"""A directory, or one for each part of the actor."""

_GIVEN_APART = ("env", "env")
_SUMMARY = """\
Train an agent and save the run in a directory.
- rl list algorithms and rl list envs show names; ENV may be any id of Gymnasium
- rl train ALGO ENV --help shows options of ALGO and ENV, --help-all every one
- typed options win over --config and --preset, and these over the defaults
- write a list as 64 64, 64,64 or [64, 64], and no value as none
- write a table in TOML, {name = "rnd"}, or in JSON, {"name": "rnd"}
- a true|false option needs no value for true; no- before its name means false"""


@dataclass(frozen=True, kw_only=True)
class TrainArguments(Config):
    """Options of every training run.

    Attributes:
        total_steps: Environment steps to train for, summed over all environments.
        total_episodes: Finished episodes to train for, in place of steps.
        total_updates: Updates to train for, in place of steps.
        seed: Seed for all random generators.
        seeds: Several seeds, one run each, in a common directory.
        jobs: Number of seeds that train side by side.
        device: Device of the networks; auto takes a GPU if there is one.
        run_dir: New or empty directory for everything that the run writes.
        preset: Begin with the options tuned for ENV, or with the preset of this name, and train for
            as long as it was tuned for; rl list presets shows all.
        config: File with a recipe, or part of one, in TOML, or in JSON if its name ends in .json;
            it may name ALGO and ENV in place of the command line.
        restart_model: Run or checkpoint whose weights the actor starts with, or a table with one
            for each part of the actor, as in {policy = "runs/bc"} off-policy, or
            {policy_torso = "runs/a", action_head = "runs/a"} on-policy.
        progress: A bar, log lines, or none; auto draws a bar on a terminal, lines elsewhere.
        imports: Module to import first, which registers environments; may be repeated.
    """

    total_steps: Count | None = None
    total_episodes: Count | None = None
    total_updates: Count | None = None
    seed: Annotated[NonNegativeInt, Without("seeds")] = 0
    seeds: str | None = None
    jobs: Annotated[Count, Needs("seeds")] = 1
    device: str = "auto"
    run_dir: str | None = None
    preset: Annotated[bool | str, Without("config")] = False
    config: str | None = None
    restart_model: _RestartModel = None
    progress: ProgressMode = "auto"
    imports: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TrainRequest:
    """A training run to start.

    Attributes:
        recipe: the complete recipe.
        budget: when the run ends.
        arguments: what else was asked for.
    """

    recipe: Recipe
    budget: Budget
    arguments: TrainArguments


class ConfigFile:
    """A configuration file: a recipe or a part of one.

    Args:
        path: the file; None stands for an empty one.

    Raises:
        ConfigError: when it cannot be read, or is not part of a recipe.
    """

    def __init__(self, path: str | None) -> None:
        self.path = path
        self.tables: Tables = {} if path is None else load_tables(Path(path))
        for section in SECTIONS:
            name = self.table(section).get("name")
            if name == CUSTOM:
                raise ConfigError(
                    f"{path}: its {section} is 'custom', an object given in Python; the command "
                    "line can only build registered names"
                )
            if name is not None and not isinstance(name, str):
                raise ConfigError(f"{path}: [{section}] name: got {name!r}; expected text")

    def table(self, section: str) -> Tables:
        """Return a table of the file; an empty one where it has none."""
        return cast("Tables", self.tables.get(section, {}))

    def sections(self) -> dict[str, Tables]:
        """Return options by section, as `rl_train.builder.compose` takes them."""
        apart = {"trainer": LENGTHS, "env": ("name",), "algorithm": ("name",)}
        return {
            section: {
                k: v for k, v in self.table(section).items() if k not in apart.get(section, ())
            }
            for section in SECTIONS
        }

    def shared(self) -> Tables:
        """Return what the file says of the whole run, besides its length."""
        tables = {**self.table("resolved"), **self.tables}
        kept = ("seed", "device", "restart_model")
        return {key: tables[key] for key in kept if key in tables}

    def length(self) -> Tables:
        """Return the length of the run, which recorded runs have in [resolved].

        Raises:
            ConfigError: when the file has two different lengths.
        """
        chosen, resolved = lengths_of(self.table("trainer")), lengths_of(self.table("resolved"))
        if chosen and resolved and chosen != resolved:
            raise ConfigError(
                f"{self.path}: [trainer] says {_written(chosen)}, but [resolved] "
                f"{_written(resolved)}; leave one of them out"
            )
        return chosen or resolved

    def agreed_name(self, section: str, typed: str | None, place: str) -> str:
        """Return the name of the algorithm or environment, from here or the command line.

        Raises:
            UsageError: when there is no name, or two different ones.
        """
        filed = cast("str | None", self.table(section).get("name"))
        if typed is not None and filed is not None and typed != filed:
            raise UsageError(
                f"{place} is '{typed}', but {self.path} says {section} '{filed}'; leave one of "
                "them out"
            )
        if (name := typed or filed) is None:
            raise UsageError(
                f"{place} is missing; give both names, as in rl train ppo CartPole-v1, or a "
                f"--config whose [{section}] has a name"
            )
        return name


def read_train_request(words: Sequence[str]) -> TrainRequest:
    """Read the command line, and the configuration file if it names one.

    Args:
        words: as typed after ``rl train``.

    Raises:
        RLError: when something is unknown, out of range, or contradicts something else.
        SystemExit: after printing the help.
    """
    first = _parse_known(words, ())
    import_modules(first.tables)
    for name in first.names:
        module, colon, env_id = name.partition(":")
        if colon:
            raise UsageError(
                f"'{name}': write --import {module}, and {env_id} as ENV if that is an id which it "
                "registers; a class or function is taken in Python, by rl_train.make"
            )
    file = ConfigFile(cast("str | None", first.tables.get("config")))
    typed = dict(zip(("algorithm", "env"), first.names, strict=False))
    wants_help = not set(HELP).isdisjoint(words)
    if wants_help and file.path is None and len(typed) < 2:
        print(help_text(_command(_run_options({"total_steps": DEFAULT_TOTAL_STEPS}))), end="")
        raise SystemExit(0)
    algo = file.agreed_name("algorithm", typed.get("algorithm"), "ALGO")
    env = file.agreed_name("env", typed.get("env"), "ENV")
    preset = cast("bool | str", first.tables.get("preset", False))
    bare = _compose_bare(algo, env, file, words, preset)
    length = file.length() or lengths_of(dict(bare.resolved))
    length = length or {"total_steps": DEFAULT_TOTAL_STEPS}
    budget = chosen_budget(first.tables, length, file.path or "the preset")
    assert budget is not None
    shown = bare
    if wants_help and file.path:
        shown = compose(algo, env, file.sections(), in_part=True)
    command = _full_command(shown, file, length)
    given = parse(command, words, is_name={algo, env}.__contains__)
    typed_apart = {key: value for key, value in given.tables.items() if key not in SECTIONS}
    shared = {**file.shared(), **typed_apart}
    if "seeds" in typed_apart:
        shared["seed"] = typed_apart.get("seed", 0)
    with given.named(file.tables, file.path):
        arguments = decode(TrainArguments, shared)
        names = {"algorithm": algo, "actor": bare.actor.name}
        sections = merged_sections(file.sections(), given.tables, names)
        recipe = compose(
            algo, env, sections, seed=arguments.seed, device=arguments.device, preset=preset
        )
        resolve_device(recipe.device)
    recipe = replace(recipe, resolved=budget.recorded_in(recipe.resolved))
    return TrainRequest(recipe, budget, arguments)


def import_modules(given: Tables) -> None:
    """Import the modules that the user typed with ``--import``, also from the current directory.

    Raises:
        UsageError: when one cannot be imported.
    """
    for module in cast("list[str]", given.get("imports", [])):
        if module.endswith(".py") or "/" in module:
            name = module.removesuffix(".py").strip("./").replace("/", ".")
            raise UsageError(f"--import {module}: give a module's name, as in --import {name}")
        if os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())
        try:
            with stdout_kept_clean():
                importlib.import_module(module)
        except (Exception, SystemExit) as error:
            raise UsageError(f"--import {module}: {in_brief(error)}") from error


def chosen_budget(typed: Tables, filed: Tables, file: object) -> Budget | None:
    """Return when a run ends: as the command line says, or else a file; None if neither does.

    Args:
        typed: what the command line gives, under the names of `rl_core.config.LENGTHS`.
        filed: lengths in the file.
        file: name of the file, for messages.

    Raises:
        RLError: when there is more than one length, or one is not a whole number of at least 1.
    """
    budget = None
    for table, shown in ((filed, f"{file}: {{}}".format), (lengths_of(typed), _flag)):
        if len(table) > 1:
            flags = " and ".join(map(shown, table))
            raise UsageError(f"{flags} contradict each other; give just one")
        for name, target in table.items():
            check_argument(shown(name), target, Count)
            budget = Budget(name.removeprefix("total_"), cast("int", target))
    return budget


def lengths_of(tables: Tables) -> Tables:
    """Return the entries of a table that are lengths of a run."""
    return {name: tables[name] for name in LENGTHS if tables.get(name) is not None}


def merged_sections(
    filed: Mapping[str, Tables], given: Tables, names: Mapping[str, str]
) -> dict[str, Tables]:
    """Merge options; the command line wins over the file.

    Args:
        filed: options of the file by section.
        given: options of the command line; values outside of sections are ignored.
        names: registered names by section. In these sections the command line also wins over
            options of the file that have no effect beside its own.
    """
    typed = {section: cast("Tables", given.get(section, {})) for section in SECTIONS}
    kept = dict(filed)
    for section, name in names.items():
        kept[section] = without_ineffective(section, name, kept[section], typed[section])
    return {section: merged_tables(kept[section], typed[section]) for section in SECTIONS}


def _compose_bare(
    algo: str, env: str, file: ConfigFile, words: Sequence[str], preset: bool | str
) -> Recipe:
    """Compose from the names and the environment alone, to learn which options there are."""
    given = _parse_known(words, _section_options("env", component_of("env", env)))
    merged = merged_sections(file.sections(), given.tables, {})
    sections = {"env": merged["env"]}
    for section in ("actor", "storage"):
        sections[section] = {k: v for k, v in merged[section].items() if k == "name"}
    with given.named(file.tables, file.path):
        return compose(algo, env, sections, preset=preset, in_part=True)


def _is_name(word: str) -> bool:
    return word in gymnasium.registry or any(
        word in plugins.available(kind) for kind in ("algorithm", "env")
    )


def _parse_known(words: Sequence[str], known: Sequence[Option]) -> Given:
    """Read the options that are known so far; others may become known later."""
    trainer = _section_options("trainer", Trainer)
    options = (*_run_options({}), *_name_options(None), *trainer, *known)
    return parse(_command(options), words, partial=True, is_name=_is_name)


def _command(options: Sequence[Option], sections: Mapping[str, str] | None = None) -> Command:
    return Command("rl train", _SUMMARY, tuple(options), ("ALGO", "ENV"), 0, sections or {})


def _full_command(recipe: Recipe, file: ConfigFile, length: Tables) -> Command:
    options = [*_run_options({**file.shared(), **length})]
    titles: dict[str, str] = {}
    for section in ("algorithm", "actor", "storage", "env", "trainer"):
        name = "" if section == "trainer" else getattr(recipe, section).name
        component = component_of(section, name)
        defaults = recipe.trainer if section == "trainer" else getattr(recipe, section).kwargs
        options += [option for option in _name_options(recipe) if option.path[0] == section]
        options += _section_options(section, component, defaults)
        titles[section] = f"{name or section}: {first_sentence(component.__doc__ or '')}"
    return _command(options, titles)


def _run_options(defaults: Tables) -> tuple[Option, ...]:
    text = "Number of environments that step together; short for --env.num-envs"
    shown = {"run_dir": "runs/ALGO-ENV-sSEED-TIME", **defaults}
    return (
        *command_options(TrainArguments, shown),
        Option(("env", "num_envs"), int, text, None, "INT", "--num-envs"),
    )


def _name_options(recipe: Recipe | None) -> tuple[Option, ...]:
    """Return the options that choose another actor or storage than the algorithm's own."""
    return tuple(
        Option(
            (section, "name"),
            str,
            f"Registered name of the {section}, as in rl list {section}s",
            None if recipe is None else getattr(recipe, section).name,
            "NAME",
        )
        for section in ("actor", "storage")
    )


def _section_options(
    section: str, component: Callable[..., object], defaults: Mapping[str, Json] | None = None
) -> list[Option]:
    options = component_options(section, component, defaults)
    return [option for option in options if option.path != _GIVEN_APART]


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _written(tables: Tables) -> str:
    return ", ".join(f"{name} = {value}" for name, value in tables.items())
