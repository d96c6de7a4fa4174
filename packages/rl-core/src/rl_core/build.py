"""From recipes to parts, and from names and options to whole recipes."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from typing import cast

import gymnasium
import torch
from gymnasium.vector import VectorEnv

from rl_core import plugins
from rl_core.actor import Actor
from rl_core.algorithm import Algorithm, AnyAlgorithm, EnvSpec
from rl_core.checkpoint import WeightSource, load_weights
from rl_core.codec import construct, decode, options_of
from rl_core.components import construct_component
from rl_core.env import VecEnv, as_vec_env, checked_num_envs, make_gym_vec
from rl_core.errors import ConfigError, DeviceError, nearest
from rl_core.options import Sections, as_table, checked_sections, filled, without_replaced
from rl_core.recipe import ComponentSpec, Recipe
from rl_core.seeding import spawn_seed
from rl_core.storage import AnyStorage, Storage
from rl_core.trainer import Trainer, TrainerConfig
from rl_core.types import Json

_DEVICE = re.compile(r"cpu|cuda(:[0-9]{1,3})?")

VECTORIZER = "gymnasium"
"""The environment plug-in that turns ids and functions into vector environments."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What a recipe was built into.

    Attributes:
        recipe: with every option filled in and every ``auto`` that is settled when building.
        envs: to learn in; made from the recipe's seed.
        algorithm: with its actor, on its device.
        storage: not allocated yet.
        trainer_config: options of the trainer.
    """

    recipe: Recipe
    envs: VecEnv
    algorithm: AnyAlgorithm
    storage: AnyStorage
    trainer_config: TrainerConfig


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
    given_algorithm = options.get("algorithm", {})
    env_table = _filled_env(env, {**wanted.env, **env_options})
    if "num_envs" in env_table:
        checked_num_envs(cast("int", env_table["num_envs"]))
    return Recipe(
        env=ComponentSpec("env", env, env_table),
        actor=components["actor"],
        algorithm=filled(
            "algorithm",
            algorithm,
            given_algorithm,
            without_replaced(
                algorithm, {**wanted.algorithm, **besides.get("algorithm", {})}, given_algorithm
            ),
        ),
        storage=components["storage"],
        trainer=as_table(decode(TrainerConfig, trainer, "trainer")),
        seed=seed,
        device=device,
    )


def build(
    recipe: Recipe,
    given: Mapping[str, object] | None = None,
    *,
    restart_model: WeightSource | None = None,
) -> Parts:
    """Build every part that a recipe names.

    Initial weights are drawn from the recipe's seed and nothing else; torch's global generator is
    left as it was.

    Args:
        recipe: all components by name.
        given: objects by section (``env``, ``actor``, ``algorithm``, ``storage``), used instead of
            what the recipe names; those that it calls ``custom`` must be here.
        restart_model: where the actor's first weights come from, see `load_weights`; None draws
            them. The recipe keeps a record of it, by which nothing is loaded again.

    Raises:
        CheckpointError: when ``restart_model`` does not fit.
        ConfigError: for options that are unknown or contradict each other, or when a custom
            component is not given.
        PluginError: for an unknown component.
        DeviceError: when the device is not there.
    """
    given = {} if given is None else given
    _check_given(recipe, given)
    device = resolve_device(recipe.device)
    envs = (
        as_vec_env(cast("VecEnv", given["env"]))
        if "env" in given
        else build_envs(recipe.env, spawn_seed(recipe.seed, "envs"))
    )
    try:
        algorithm = build_algorithm(recipe, envs, device, given, restart_model)
        storage = cast(
            "AnyStorage",
            given["storage"]
            if "storage" in given
            else construct_component("storage", recipe.storage, {"device": device}),
        )
        config = decode(TrainerConfig, recipe.trainer, "trainer")
    except BaseException:
        envs.close()
        raise
    resolved = {**recipe.resolved, "device": str(device)}
    if restart_model is not None:
        resolved["restart_model"] = (
            {part: str(directory) for part, directory in restart_model.items()}
            if isinstance(restart_model, Mapping)
            else str(restart_model)
        )
    return Parts(recipe.replace(resolved=resolved), envs, algorithm, storage, config)


def build_algorithm(
    recipe: Recipe,
    envs: VecEnv,
    device: torch.device,
    given: Mapping[str, object] | None = None,
    restart_model: WeightSource | None = None,
) -> AnyAlgorithm:
    """Build a recipe's actor and algorithm for given environments; see `build`."""
    given = given or {}
    if "algorithm" in given and restart_model is not None:
        raise ConfigError(
            "restart_model is for an actor whose algorithm is built from it; call load_weights "
            "before building the given algorithm"
        )
    if "algorithm" in given:
        return cast("AnyAlgorithm", given["algorithm"])
    spaces = {
        "observation_space": envs.single_observation_space,
        "action_space": envs.single_action_space,
        "device": device,
    }
    with _seeded(spawn_seed(recipe.seed, "weights")):
        actor = (
            given["actor"]
            if "actor" in given
            else construct_component("actor", recipe.actor, spaces)
        )
        cast("Actor", actor).to(device)
        if restart_model is not None:
            load_weights(cast("Actor", actor), restart_model)
        return cast(
            "AnyAlgorithm", construct_component("algorithm", recipe.algorithm, {"actor": actor})
        )


def build_trainer(parts: Parts, **options: object) -> Trainer:
    """Put built parts into a `Trainer`; test environments are made on first use."""
    recipe = parts.recipe
    return Trainer(
        parts.envs,
        parts.algorithm,
        parts.storage,
        config=parts.trainer_config,
        seed=recipe.seed,
        test_envs=lambda: build_test_envs(recipe),
        recipe=recipe,
        **options,  # type: ignore[arg-type]  # checked by Trainer's own signature
    )


def build_envs(spec: ComponentSpec, seed: int | None) -> VecEnv:
    """Make the environments of a recipe.

    Args:
        spec: a Gymnasium id or a registered name, with options.
        seed: of all of them.

    Raises:
        ConfigError: for an unknown id or option, naming the nearest one.
    """
    maker = _maker(spec.name)
    if isinstance(maker, type) and issubclass(maker, VecEnv):
        return construct(maker, {"seed": seed}, decode(options_of(maker), spec.kwargs, "env"))
    vectorizer = cast("Callable[..., VecEnv]", _vectorizer())
    options = _vectorizer_options(spec.name, spec.kwargs)
    return vectorizer(spec.name if maker is None else maker, seed=seed, **options)


def build_test_envs(recipe: Recipe) -> VecEnv:
    """Make separate environments to evaluate in."""
    return build_envs(recipe.env, spawn_seed(recipe.seed, "test"))


def inspect_env(spec: ComponentSpec) -> EnvSpec:
    """Read an environment's spaces by making one and closing it."""
    envs = build_envs(spec, None)
    try:
        return EnvSpec(spec.name, envs.single_observation_space, envs.single_action_space)
    finally:
        envs.close()


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
    if section != "env":
        return plugins.load(section, name)
    maker = _maker(name)
    is_vector = isinstance(maker, type) and issubclass(maker, VecEnv)
    return maker if maker is not None and is_vector else _vectorizer()


def load_algorithm(name: str) -> type[AnyAlgorithm]:
    """Import an algorithm's class by its registered name."""
    return cast("type[AnyAlgorithm]", plugins.load("algorithm", name))


def resolve_device(name: str) -> torch.device:
    """Turn a device's name into one that is there.

    Args:
        name: ``"cpu"``, ``"cuda"`` or ``"cuda:1"``; ``"auto"`` takes CUDA when there is some, else
            the CPU.

    Raises:
        DeviceError: when the name is none of these or the device is not there.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not _DEVICE.fullmatch(name):
        raise DeviceError(f"device '{name}' is unknown; use auto, cpu, cuda or cuda:N")
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise DeviceError(
            f"device '{name}' was asked for, but torch sees no CUDA device; use --device cpu, or "
            "install a CUDA build of torch"
        )
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise DeviceError(
            f"device '{name}' is not there: torch sees {torch.cuda.device_count()} CUDA devices, "
            "counted from cuda:0"
        )
    return device


def _maker(name: str) -> Callable[..., object] | None:
    """Return a registered environment, or None for a Gymnasium id."""
    registered = plugins.available("env")
    if name == VECTORIZER or name not in registered:
        return None
    return plugins.load("env", name)


def _vectorizer() -> Callable[..., object]:
    if VECTORIZER in plugins.available("env"):
        return plugins.load("env", VECTORIZER)
    return make_gym_vec


def _filled_env(name: str, kwargs: Mapping[str, Json]) -> dict[str, Json]:
    """Check an environment's options and add the defaults of whatever makes it."""
    maker = _maker(name)
    if isinstance(maker, type) and issubclass(maker, VecEnv):
        return as_table(decode(options_of(maker), kwargs, "env"))
    return as_table(_vectorizer_options(name, kwargs))


def _vectorizer_options(name: str, kwargs: Mapping[str, Json]) -> dict[str, object]:
    """Check the options of whatever vectorises, and add its defaults."""
    options = decode(options_of(_vectorizer()), {**kwargs, "env": name}, "env")
    assert is_dataclass(options)
    return {
        field.name: getattr(options, field.name)
        for field in fields(options)
        if field.name not in ("env", "seed")
    }


def _is_recurrent(actor: ComponentSpec) -> bool:
    options = decode(options_of(plugins.load("actor", actor.name)), actor.kwargs, "actor")
    return bool(getattr(options, "is_recurrent", False))


def _check_given(recipe: Recipe, given: Mapping[str, object]) -> None:
    """Compare the objects that were given with what the recipe calls custom."""
    if not isinstance(given, Mapping):
        raise ConfigError(f"parts={given!r}; expected a mapping of objects by section")
    specs = {
        "env": (recipe.env, (VecEnv, VectorEnv, gymnasium.Env)),
        "actor": (recipe.actor, (Actor,)),
        "algorithm": (recipe.algorithm, (Algorithm,)),
        "storage": (recipe.storage, (Storage,)),
    }
    for section, value in given.items():
        if section not in specs:
            raise ConfigError(f"parts: unknown section '{section}'{nearest(str(section), specs)}")
        classes = specs[section][1]
        if not isinstance(value, classes):
            names = " or ".join(cls.__name__ for cls in classes)
            raise ConfigError(f"parts['{section}'] is a {type(value).__name__}; expected {names}")
    missing = [
        section
        for section, (spec, _) in specs.items()
        if spec.is_custom
        and section not in given
        and not (section == "actor" and "algorithm" in given)
    ]
    if missing:
        listed = ", ".join(missing)
        raise ConfigError(
            f"the recipe's {listed} was built from Python objects; give it again with "
            f"load(directory, parts={{'{missing[0]}': ...}})"
        )


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed torch's global generator within a block, and put it back afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed CUDA's for good
        yield
