"""The arguments of ``rl train``: names first, then the options of whatever they name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from rl_cli.docstrings import first_sentence
from rl_cli.errors import UsageError
from rl_cli.options import Option, command_options, component_options
from rl_cli.parser import Command, parse
from rl_core import plugins
from rl_core.build import component_of, compose
from rl_core.codec import decode
from rl_core.errors import ConfigError
from rl_core.recipe import CUSTOM, Recipe, load_tables
from rl_core.types import Json

DEFAULT_TOTAL_STEPS = 100_000

Tables = dict[str, Json]

_SECTIONS = ("env", "actor", "algorithm", "storage", "trainer")
_NAMED = ("env", "actor", "algorithm", "storage")
_HIDDEN = {("env", "env"), ("env", "seed")}
_SUMMARY = (
    "Train an agent, and keep all about the run in a directory. ALGO and ENV bring options of "
    "their own: rl train ppo CartPole-v1 --help shows them. What is given here wins over "
    "--config, and that over the defaults. Lists are written as 64 64, 64,64 or [64,64]; what may "
    "be left out takes none; a true|false option alone means true, with no- before its name false."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainArguments:
    """What every training run can be given.

    Attributes:
        algo: registered name of the algorithm, as in rl list algorithms.
        environment: Gymnasium id or registered name of the environment.
        total_steps: environment steps until the run is over, counted over all environments.
        num_envs: environments that step together; short for --env.num-envs.
        seed: of every random generator in the run.
        device: auto takes a GPU where there is one.
        run_dir: new or empty directory for all that the run writes.
        config: recipe, or part of one, to start from; ALGO and ENV may be left out then.
    """

    algo: str | None = None
    environment: str | None = None
    total_steps: int = DEFAULT_TOTAL_STEPS
    num_envs: int | None = None
    seed: int = 0
    device: str = "auto"
    run_dir: str | None = None
    config: str | None = None


@dataclass(frozen=True, slots=True)
class TrainRequest:
    """What the user asked to train.

    Attributes:
        recipe: complete, with the run's length among what was resolved.
        total_steps: environment transitions until the run is over.
        run_dir: None leaves the choice to the program.
    """

    recipe: Recipe
    total_steps: int
    run_dir: Path | None


def read_train_request(words: Sequence[str]) -> TrainRequest:
    """Read the command line, and the file that it names.

    Args:
        words: as typed after ``rl train``.

    Raises:
        RLError: when something is unknown, out of range, or contradicts something else.
        SystemExit: after printing the help.
    """
    names = _parse_names(words)
    arguments = decode(TrainArguments, _without_sections(names))
    file = {} if arguments.config is None else load_tables(Path(arguments.config))
    wants_help = "-h" in words or "--help" in words
    try:
        algo = _agreed("ALGO", arguments.algo, file, "algorithm", arguments.config)
        env = _agreed("ENV", arguments.environment, file, "env", arguments.config)
    except UsageError:
        if wants_help and not file:
            parse(Command("rl train", _SUMMARY, _base_options(None)), ["--help"])
        raise
    bare = _compose_bare(algo, env, file, words)
    shown = bare if not file or not wants_help else _compose(algo, env, _file_sections(file))
    given = parse(_full_command(shown, file), words)
    _merge_num_envs(given)
    total_steps = _total_steps(given, file)
    sections = _merged_sections(_file_sections(file), given)
    seed = given.get("seed", file.get("seed", 0))
    device = given.get("device", file.get("device", "auto"))
    recipe = compose(
        algo, env, sections, seed=cast("int", seed), device=cast("str", device)
    ).replace(resolved={"total_steps": total_steps})
    run_dir = given.get("run_dir")
    return TrainRequest(recipe, total_steps, None if run_dir is None else Path(str(run_dir)))


def _parse_names(words: Sequence[str]) -> Tables:
    """Read all that needs no component to be known, which includes the components' names."""
    command = Command("rl train", _SUMMARY, (*_base_options(None), *_name_options(None)))
    algorithms = plugins.available("algorithm")
    return parse(
        command, words, open_sections=_SECTIONS, is_positional=lambda word: word in algorithms
    )


def _compose_bare(algo: str, env: str, file: Tables, words: Sequence[str]) -> Recipe:
    """Compose what names and the environment alone determine, to learn which options there are."""
    options = _visible(component_options("env", component_of("env", env)))
    command = Command(
        "rl train", _SUMMARY, (*_base_options(None), *_name_options(None), *options)
    )
    open_sections = [section for section in _SECTIONS if section != "env"]
    algorithms = plugins.available("algorithm")
    given = parse(
        command, words, open_sections=open_sections, is_positional=lambda word: word in algorithms
    )
    _merge_num_envs(given)
    merged = _merged_sections(_file_sections(file), given)
    sections = {"env": merged.get("env", {})}
    for section in ("actor", "storage"):
        sections[section] = {k: v for k, v in merged.get(section, {}).items() if k == "name"}
    return _compose(algo, env, sections)


def _compose(algo: str, env: str, sections: Mapping[str, Tables]) -> Recipe:
    return compose(algo, env, sections)


def _full_command(recipe: Recipe, file: Tables) -> Command:
    options = [*_base_options(file), *_name_options(recipe)]
    sections: dict[str, str] = {}
    for section in _SECTIONS:
        spec = getattr(recipe, section)
        name = section if section == "trainer" else spec.name
        component = component_of(section, name)
        defaults = spec if section == "trainer" else spec.kwargs
        options += _visible(component_options(section, component, defaults))
        sections[section] = f"{name}: {first_sentence(component)}"
    name = f"rl train {recipe.algorithm.name} {recipe.env.name}"
    return Command(name, _SUMMARY, tuple(options), sections)


def _base_options(file: Tables | None) -> tuple[Option, ...]:
    file = file or {}
    defaults = {key: str(file[key]) for key in ("seed", "device") if key in file}
    total_steps = _file_total_steps(file)
    if total_steps is not None:
        defaults["total_steps"] = str(total_steps)
    return command_options(
        TrainArguments,
        positional={"algo": "ALGO", "environment": "ENV"},
        placeholders={
            "num_envs": "INT", "device": "auto|cpu|cuda", "run_dir": "DIR", "config": "FILE"
        },
        defaults={"run_dir": "runs/ALGO-ENV-sSEED-TIME", **defaults},
    )


def _name_options(recipe: Recipe | None) -> tuple[Option, ...]:
    """Return the options that choose another actor or storage than the algorithm would."""
    return tuple(
        Option(
            path=(section, "name"),
            type_=str,
            help=f"registered name of the {section}, as in rl list {section}s",
            default=None if recipe is None else getattr(recipe, section).name,
            placeholder="NAME",
        )
        for section in ("actor", "storage")
    )


def _visible(options: tuple[Option, ...]) -> tuple[Option, ...]:
    return tuple(option for option in options if option.path not in _HIDDEN)


def _without_sections(given: Tables) -> Tables:
    return {key: value for key, value in given.items() if key not in _SECTIONS}


def _agreed(
    place: str, typed: str | None, file: Tables, section: str, config: str | None
) -> str:
    """Return a name that the command line or the file gives; both may, if it is the same."""
    table = file.get(section, {})
    filed = table.get("name") if isinstance(table, dict) else None
    if filed is not None and not isinstance(filed, str):
        raise ConfigError(f"{config}: [{section}] name: got {filed!r}; expected text")
    if typed is not None and filed is not None and typed != filed:
        raise UsageError(
            f"{place} is '{typed}', but {config} says {section} '{filed}'; leave one of them out"
        )
    name = typed or filed
    if name is None:
        raise UsageError(
            f"{place} is missing; give both names, as in rl train ppo CartPole-v1, or a --config "
            f"whose [{section}] has a name"
        )
    return name


def _file_sections(file: Tables) -> dict[str, Tables]:
    """Return a file's options by section, in the form that `compose` takes."""
    sections: dict[str, Tables] = {}
    for section in _SECTIONS:
        table = file.get(section, {})
        assert isinstance(table, dict)
        if section in _NAMED and table.get("name") == CUSTOM:
            raise ConfigError(
                f"the {section} of the recipe is 'custom', an object given in Python; the command "
                "line can only build registered names"
            )
        dropped = {"env": "name", "algorithm": "name", "trainer": "total_steps"}.get(section)
        sections[section] = {key: value for key, value in table.items() if key != dropped}
    return sections


def _merged_sections(file: Mapping[str, Tables], given: Tables) -> dict[str, Tables]:
    """Let what the user typed win over the file, option by option."""
    merged: dict[str, Tables] = {}
    for section in _SECTIONS:
        old, new = file.get(section, {}), given.get(section, {})
        assert isinstance(new, dict)
        if "name" in old and "name" in new and old["name"] != new["name"]:
            old = {}  # the options of one component mean nothing to another
        merged[section] = _merged(old, new)
    return merged


def _merged(old: Tables, new: Tables) -> Tables:
    merged = dict(old)
    for key, value in new.items():
        below = merged.get(key)
        both = isinstance(below, dict) and isinstance(value, dict)
        merged[key] = _merged(cast("Tables", below), cast("Tables", value)) if both else value
    return merged


def _merge_num_envs(given: Tables) -> None:
    """Put ``--num-envs`` where ``--env.num-envs`` belongs."""
    if "num_envs" not in given:
        return
    env = given.setdefault("env", {})
    assert isinstance(env, dict)
    short = given.pop("num_envs")
    if env.setdefault("num_envs", short) != short:
        raise UsageError(
            f"--num-envs is {short}, but --env.num-envs is {env['num_envs']}; leave one out"
        )


def _total_steps(given: Tables, file: Tables) -> int:
    filed = _file_total_steps(file)
    total = given.get("total_steps", DEFAULT_TOTAL_STEPS if filed is None else filed)
    where = "--total-steps" if "total_steps" in given else "total_steps"
    return checked_total_steps(decode(int, total, where), where)


def checked_total_steps(total_steps: int, where: str = "--total-steps") -> int:
    """Return the length of a run.

    Raises:
        UsageError: when it is not positive.
    """
    if total_steps < 1:
        raise UsageError(f"{where} must be at least 1, got {total_steps}")
    return total_steps


def _file_total_steps(file: Tables) -> Json:
    """Return the length of a run from the options of the trainer, or from a recorded run."""
    for section in ("trainer", "resolved"):
        table = file.get(section, {})
        if isinstance(table, dict) and "total_steps" in table:
            return table["total_steps"]
    return None
