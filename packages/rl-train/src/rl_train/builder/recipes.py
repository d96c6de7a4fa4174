"""From names and options to whole recipes."""

from collections.abc import Callable, Mapping
from typing import cast

from rl_core import plugins
from rl_core.algorithm import AnyAlgorithm
from rl_core.config import ComponentSpec, Recipe, decode, options_of
from rl_core.errors import ConfigError, nearest
from rl_core.types import Json
from rl_envs import checked_num_envs
from rl_train.builder.components import as_table, complete_component
from rl_train.builder.environments import complete_env_options, env_component, inspect_env
from rl_train.trainer import Trainer, TrainerConfig

Sections = Mapping[str, Mapping[str, Json]]
"""Options by section: ``env``, ``actor``, ``algorithm``, ``storage``, ``trainer``."""

SECTIONS = ("env", "actor", "algorithm", "storage", "trainer")


def compose(
    algorithm: str,
    env: str,
    options: Sections | None = None,
    *,
    seed: int = 0,
    device: str = "auto",
) -> Recipe:
    """Write the whole recipe for an algorithm and an environment.

    The algorithm's `default_recipe` chooses the actor and the storage. Given options win over its
    defaults, and these win over the defaults of each component.

    Args:
        algorithm: registered name.
        env: registered name or Gymnasium id.
        options: by section; ``name`` in ``actor`` or ``storage`` chooses another component.
        seed: seed of the whole run.
        device: ``"auto"``, ``"cpu"``, ``"cuda"`` or ``"cuda:1"``.

    Raises:
        ConfigError: for an unknown section or option, naming the nearest one.
        PluginError: for an unknown component.
    """
    given = checked_sections(options)
    algorithm_class = load_algorithm(algorithm)
    env_options = given["env"]
    spec = inspect_env(ComponentSpec("env", env, {**env_options, "num_envs": 1}))
    defaults = algorithm_class.default_recipe(spec)
    components: dict[str, ComponentSpec] = {}
    recurrent: Sections = {}
    for kind, default in (("actor", defaults.actor), ("storage", defaults.storage)):
        name = given[kind].pop("name", default.name)
        if not isinstance(name, str):
            raise ConfigError(f"{kind}.name must be text, got {name!r}")
        usual = {**default.kwargs, **recurrent.get(kind, {})} if name == default.name else None
        components[kind] = complete_component(kind, name, given[kind], usual)
        if kind == "actor" and _is_recurrent(components[kind]):
            recurrent = defaults.recurrent
    trainer = {**defaults.trainer, **given["trainer"]}
    usual = {**defaults.algorithm, **recurrent.get("algorithm", {})}
    env_table = complete_env_options(env, {**defaults.env, **env_options})
    if "num_envs" in env_table:
        checked_num_envs(cast("int", env_table["num_envs"]))
    return Recipe(
        env=ComponentSpec("env", env, env_table),
        actor=components["actor"],
        algorithm=complete_component("algorithm", algorithm, given["algorithm"], usual),
        storage=components["storage"],
        trainer=as_table(decode(TrainerConfig, trainer, "trainer")),
        seed=seed,
        device=device,
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
    return cast("type[AnyAlgorithm]", plugins.load("algorithm", name))


def checked_sections(options: Sections | None) -> dict[str, dict[str, Json]]:
    """Return options by section as new tables, one for each of `SECTIONS`.

    Raises:
        ConfigError: for an unknown section, or one that is not a table.
    """
    if not isinstance(options, Mapping | None):
        raise ConfigError(f"options={options!r}; expected a mapping of sections")
    for section, table in (options or {}).items():
        if section not in SECTIONS:
            raise ConfigError(f"unknown section '{section}'{nearest(str(section), SECTIONS)}")
        if not isinstance(table, Mapping):
            raise ConfigError(f"section '{section}' is {table!r}; expected a mapping of options")
    return {section: dict((options or {}).get(section, {})) for section in SECTIONS}


def _is_recurrent(actor: ComponentSpec) -> bool:
    options = decode(options_of(plugins.load("actor", actor.name)), actor.kwargs, "actor")
    return bool(getattr(options, "is_recurrent", False))
