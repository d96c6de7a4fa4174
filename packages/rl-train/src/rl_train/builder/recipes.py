"""From names and options to whole recipes."""

from collections.abc import Callable
from typing import cast

from rl_core import plugins
from rl_core.algorithm import AnyAlgorithm
from rl_core.config import ComponentSpec, Recipe, decode, options_of
from rl_core.errors import ConfigError
from rl_envs import checked_num_envs
from rl_train.builder.environments import env_component, filled_env, inspect_env
from rl_train.builder.options import Sections, as_table, checked_sections, filled
from rl_train.trainer import Trainer, TrainerConfig


def compose(
    algorithm: str,
    env: str,
    options: Sections | None = None,
    *,
    seed: int = 0,
    device: str = "auto",
) -> Recipe:
    """Write the whole recipe for an algorithm and an environment.

    The algorithm says which actor and storage it wants; given options win over its defaults, and
    everything that nobody names takes the default of the component itself.

    Args:
        algorithm: registered name.
        env: registered name or Gymnasium id.
        options: by section; ``name`` in ``actor`` or ``storage`` chooses another component.
        seed: of the whole run.
        device: ``"auto"``, ``"cpu"``, ``"cuda"`` or ``"cuda:1"``.

    Raises:
        ConfigError: for an unknown section or option, naming the nearest one.
        PluginError: for an unknown component.
    """
    options = checked_sections(options)
    algorithm_class = load_algorithm(algorithm)
    env_options = options.get("env", {})
    spec = inspect_env(ComponentSpec("env", env, {**env_options, "num_envs": 1}))
    wanted = algorithm_class.default_recipe(spec)
    components: dict[str, ComponentSpec] = {}
    besides: Sections = {}
    for kind, default in (("actor", wanted.actor), ("storage", wanted.storage)):
        given = dict(options.get(kind, {}))
        name = given.pop("name", default.name)
        if not isinstance(name, str):
            raise ConfigError(f"{kind}.name must be text, got {name!r}")
        usual = {**default.kwargs, **besides.get(kind, {})} if name == default.name else None
        components[kind] = filled(kind, name, given, usual)
        if kind == "actor" and _is_recurrent(components[kind]):
            besides = wanted.recurrent
    trainer = {**wanted.trainer, **options.get("trainer", {})}
    env_table = filled_env(env, {**wanted.env, **env_options})
    if "num_envs" in env_table:
        checked_num_envs(cast("int", env_table["num_envs"]))
    return Recipe(
        env=ComponentSpec("env", env, env_table),
        actor=components["actor"],
        algorithm=filled(
            "algorithm",
            algorithm,
            options.get("algorithm", {}),
            {**wanted.algorithm, **besides.get("algorithm", {})},
        ),
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


def _is_recurrent(actor: ComponentSpec) -> bool:
    options = decode(options_of(plugins.load("actor", actor.name)), actor.kwargs, "actor")
    return bool(getattr(options, "is_recurrent", False))
