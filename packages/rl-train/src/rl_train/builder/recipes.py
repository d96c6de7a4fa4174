"""From names and options to whole recipes."""

from collections.abc import Callable, Mapping
from typing import cast

from rl_core import plugins
from rl_core.algorithm import AnyAlgorithm
from rl_core.config import (
    LENGTHS,
    ComponentSpec,
    Count,
    Recipe,
    check_argument,
    decode,
    field_types,
    options_of,
    required_options,
)
from rl_core.errors import ConfigError, nearest
from rl_core.other_names import other_names
from rl_core.types import Json
from rl_envs import AnyEnv, is_built
from rl_train.builder.components import (
    PARTS,
    as_table,
    complete_component,
    components_with,
)
from rl_train.builder.describe import SECTIONS, describe_component
from rl_train.builder.environments import describe_env, env_component, inspect_env
from rl_train.presets import read_preset
from rl_train.trainer import Trainer, TrainerConfig
from rl_train.trainer.listeners import named_specs

Sections = Mapping[str, Mapping[str, object]]
"""Options by section: ``env``, ``actor``, ``algorithm``, ``storage``, ``trainer``.

Values are plain data, or what `rl_core.config.encode` turns into such: schedules, NumPy's numbers
and dataclasses of options.
"""

_OF_TRAIN = {*LENGTHS, "run_dir", "progress"}

_BY_HAND = "build the parts in Python: it is an argument of"
_ACTOR = "give an actor that is built, parts={'actor':"
_WRAPPED = "give a function that builds the wrapped environment in the environment's place"
_ELSEWHERE = {
    "policy": (
        "leave it out: the networks follow from the observation space, and hidden_sizes and "
        "activation change them"
    ),
    "max_episode_steps": "give env_kwargs={'max_episode_steps': ...}",
    "wrappers": _WRAPPED,
    "wrapper_class": _WRAPPED,
    "test_envs": f"{_BY_HAND} rl_train.Trainer",
    "eval_env": f"{_BY_HAND} rl_train.Trainer, called test_envs",
    "feature_extractor": f"{_ACTOR} OnPolicyActor(..., feature_extractor=...)}}",
    "observation_extractor": f"{_ACTOR} OffPolicyActor(..., observation_extractor=...)}}",
    "features_extractor_class": f"{_ACTOR} OnPolicyActor(..., feature_extractor=...)}}",
}
"""What to do about options that `make` does not have, by name."""


def compose(
    algorithm: str,
    env: AnyEnv,
    options: Sections | None = None,
    *,
    seed: int = 0,
    device: str = "auto",
    preset: bool | str = False,
    unplaced: Mapping[str, object] | None = None,
    in_part: bool = False,
    parts: Mapping[str, object] | None = None,
) -> Recipe:
    """Write the whole recipe for an algorithm and an environment.

    The algorithm's `default_recipe` chooses the actor and the storage. Given options win over the
    preset's, these over the algorithm's defaults, and these over the defaults of each component.

    Args:
        algorithm: registered name.
        env: registered name or Gymnasium id, or the user's own, which the recipe calls ``custom``.
        options: by section; ``name`` in ``actor`` or ``storage`` chooses another component.
        seed: seed of the whole run.
        device: ``"auto"``, ``"cpu"``, ``"cuda"`` or ``"cuda:1"``.
        preset: begin with the algorithm's preset for the environment, or with its preset of this
            name, see `rl_train.presets`.
        unplaced: further options of any section, which is found by their names.
        in_part: options that a component requires may be missing, to be given later.
        parts: an ``actor`` and a ``storage`` that are built, which have no options here.

    Raises:
        ConfigError: for an unknown section or option, naming the nearest one, an option that is
            given twice with different values or of a part that is built, or a preset that there is
            not.
        PluginError: for an unknown component.
    """
    given, parts = _Given(options, unplaced or {}), {} if parts is None else parts
    if not isinstance(parts, Mapping):
        raise ConfigError(f"parts={parts!r}; expected a mapping of objects by section")
    for kind in parts:
        if kind not in ("actor", "storage"):
            raise ConfigError(f"parts: '{kind}' is no part that make takes; give actor or storage")
    known = plugins.available("algorithm")
    if isinstance(env, str) and env in known and algorithm not in known:
        raise ConfigError(
            f"'{algorithm}' stands where the algorithm is expected, and '{env}' where the "
            "environment is: exchange the two"
        )
    algorithm_class = load_algorithm(algorithm)
    given.place("algorithm", algorithm_class)
    given.place("trainer", Trainer)
    resolved, tuned = read_preset(algorithm, env, preset)
    env_options = {**tuned.get("env", {}), **given.place("env", env_component(env))}
    own = None if isinstance(env, str) else env
    spec = inspect_env(describe_env(env, env_options), own)
    defaults = algorithm_class.default_recipe(spec)
    components: dict[str, ComponentSpec] = {}
    recurrent: Mapping[str, Mapping[str, Json]] = {}
    for kind, default in (("actor", defaults.actor), ("storage", defaults.storage)):
        if kind in parts:
            if given.sections[kind]:
                raise ConfigError(f"parts['{kind}'] is built; leave out options['{kind}']")
            components[kind] = describe_component(kind, parts[kind])
            if getattr(parts[kind], "is_recurrent", False):
                recurrent = defaults.recurrent
            continue
        tuned_options = dict(tuned.get(kind, {}))
        tuned_name = tuned_options.pop("name", default.name)
        name = given.sections[kind].pop("name", tuned_name)
        if not isinstance(name, str):
            raise ConfigError(f"{kind}.name must be text, got {name!r}")
        usual = {**default.kwargs, **recurrent.get(kind, {})} if name == default.name else {}
        usual |= tuned_options if name == tuned_name else {}
        table = given.place(kind, plugins.load(kind, name))
        components[kind] = complete_component(kind, name, table, usual, in_part=in_part)
        if kind == "actor" and _is_recurrent(components[kind]):
            recurrent = defaults.recurrent
    given.refuse_rest()
    table = {**defaults.trainer, **tuned.get("trainer", {}), **given.sections["trainer"]}
    trainer = decode(TrainerConfig, table, "trainer")
    named_specs("logger", trainer.loggers)
    named_specs("callback", trainer.callbacks)
    usual = {**defaults.algorithm, **recurrent.get("algorithm", {}), **tuned.get("algorithm", {})}
    env_spec = describe_env(env, env_options if is_built(env) else {**defaults.env, **env_options})
    if "num_envs" in env_spec.kwargs:
        check_argument("num_envs", env_spec["num_envs"], Count)
    table = given.sections["algorithm"]
    return Recipe(
        env=env_spec,
        actor=components["actor"],
        algorithm=complete_component("algorithm", algorithm, table, usual, in_part=in_part),
        storage=components["storage"],
        trainer=as_table(trainer),
        seed=seed,
        device=device,
        resolved=resolved,
    )


def component_of(section: str, name: str) -> Callable[..., object]:
    """Return the class or function whose options a section of a recipe holds.

    Args:
        section: ``env``, ``actor``, ``algorithm``, ``storage`` or ``trainer``.
        name: the registered name; for ``env`` also a Gymnasium id. The trainer has none.

    Raises:
        PluginError: for an unknown component.
    """
    if section == "trainer":
        return Trainer
    return env_component(name) if section == "env" else plugins.load(section, name)


def load_algorithm(name: str) -> type[AnyAlgorithm]:
    """Import an algorithm's class by its registered name."""
    if isinstance(name, type):
        known = plugins.available("algorithm")
        raise ConfigError(
            f"the algorithm is the class {name.__name__}; give its registered name"
            f"{nearest(name.__name__, known)}"
        )
    return cast("type[AnyAlgorithm]", plugins.load("algorithm", name))


class _Given:
    """The options that a user gave: by section, and without one.

    Args:
        options: by section.
        unplaced: their sections are found by `place`.

    Attributes:
        sections: one table for each of `SECTIONS`.

    Raises:
        ConfigError: for an unknown section, one that is not a table, or what has no plain form.
    """

    def __init__(self, options: Sections | None, unplaced: Mapping[str, object]) -> None:
        if not isinstance(options, Mapping | None):
            raise ConfigError(f"options={options!r}; expected a mapping of sections")
        for section, table in (options or {}).items():
            if section not in SECTIONS:
                raise ConfigError(f"unknown section '{section}'{nearest(str(section), SECTIONS)}")
            if not isinstance(table, Mapping):
                raise ConfigError(
                    f"section '{section}' is {table!r}; expected a mapping of options"
                )
        self.sections: dict[str, dict[str, Json]] = {
            section: _plain((options or {}).get(section, {}), f"{section}.") for section in SECTIONS
        }
        for name in ("loggers", "callbacks"):
            given = unplaced.get(name, ())
            listed = given if isinstance(given, list | tuple) else ()
            if not all(isinstance(one, str | Mapping) for one in listed):
                raise ConfigError(f"{name}: give objects to train({name}=[...]); make takes names")
        self._unplaced = dict(unplaced)
        self._placed: dict[str, str] = {}  # the sections of options that were given without one
        self._known = set(SECTIONS)

    def place(self, section: str, component: Callable[..., object]) -> dict[str, Json]:
        """Move what a component has among the options without section to its section.

        Returns:
            The section's table.

        Raises:
            ConfigError: when an option is given in both places, with different values, or is one
                of two sections.
        """
        table = self.sections[section]
        names = {*field_types(options_of(component))}
        names |= {PARTS[section][0]} if section in PARTS else set()
        found = {name: self._unplaced.pop(name) for name in names & self._unplaced.keys()}
        for name in names & self._placed.keys():
            raise ConfigError(
                f"{name} is an option of {self._placed[name]} and of {section}; say which is "
                f"meant, as in options={{'{section}': {{'{name}': ...}}}}"
            )
        self._placed |= dict.fromkeys(found, section)
        for name, value in _plain(found, "").items():
            if table.setdefault(name, value) != value:
                raise ConfigError(
                    f"{name} is {value!r}, but options['{section}'] says {table[name]!r}; leave "
                    "one out"
                )
        self._known |= names
        return table

    def refuse_rest(self) -> None:
        """Refuse what no section has.

        Raises:
            ConfigError: naming the nearest option.
        """
        for name, value in self._unplaced.items():
            if name in SECTIONS:
                if not isinstance(value, str | Mapping):
                    raise ConfigError(
                        f"{name}: got {type(value).__name__}; make builds its parts by name, and "
                        "rl_train.Trainer combines objects of your own"
                    )
                table = {"name": value} if isinstance(value, str) else dict(value)
                raise ConfigError(
                    f"{name} is a section, not an option; give options={{'{name}': {table!r}}}"
                )
            for other in {name, *other_names().get(name, ())} & _OF_TRAIN:
                raise ConfigError(f"unknown option '{name}'; {other} is an argument of train")
            if name in _ELSEWHERE:
                raise ConfigError(f"unknown option '{name}'; {_ELSEWHERE[name]}")
            hint = nearest(name, self._known)
            if others := components_with(name, self._known):
                hint = f"; it is an option of other parts: {others}"
            elif "mean" not in hint:
                hint = "; make(...).recipe shows all options by section"
            raise ConfigError(f"unknown option '{name}'{hint}")


def _plain(options: Mapping[str, object], prefix: str) -> dict[str, Json]:
    """Return options as plain data."""
    try:
        return as_table(options)
    except ConfigError as error:
        raise ConfigError(f"{prefix}{error}") from error


def _is_recurrent(actor: ComponentSpec) -> bool:
    cls = options_of(plugins.load("actor", actor.name))
    if not actor.kwargs.keys() >= set(required_options(cls)):  # it was composed in part
        return False
    return bool(getattr(decode(cls, actor.kwargs, "actor"), "is_recurrent", False))
