"""From recipes to parts."""

import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import torch

from rl_core.actor import Actor
from rl_core.algorithm import Algorithm, AnyAlgorithm
from rl_core.config import CUSTOM, ComponentSpec, Recipe, decode
from rl_core.env import VecEnv
from rl_core.errors import CheckpointError, ConfigError, DeviceError, nearest
from rl_core.seeding import spawn_seed
from rl_core.storage import AnyStorage, Storage
from rl_core.types import Json
from rl_envs import AnyEnv, ProcessVecEnv, is_built
from rl_train.builder.components import LOAD_ACTOR, construct_component, spec_from
from rl_train.builder.describe import record_actors
from rl_train.builder.environments import build_envs, build_test_envs
from rl_train.builder.saved_actors import (
    build_actor,
    global_generator_kept,
    load_actor,
    new_actor,
)
from rl_train.builder.saved_envs import (
    REWARD_OPTIONS,
    changing_options,
    check_demonstrated,
    run_problem,
    saved_recipe,
    warn_of_other_env,
)
from rl_train.checkpoint import WeightSource, load_weights
from rl_train.evaluation import has_custom_evaluation
from rl_train.trainer import Trainer, TrainerConfig

_OWN = ("native", "envpool")
"""Vectorizations by the environments themselves."""

_DEVICE = re.compile(r"cpu|cuda(:[0-9]{1,3})?")


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts that were built from a recipe.

    Attributes:
        recipe: with every option filled in, and each ``auto`` that building resolves.
        envs: environments to learn in, made from the recipe's seed.
        algorithm: with its actor, on its device.
        storage: not allocated yet.
        trainer_config: options of the trainer.
        test_envs: makes separate environments to evaluate in, see `build_test_envs`; None
            where the user gave environments that were built.
    """

    recipe: Recipe
    envs: VecEnv
    algorithm: AnyAlgorithm
    storage: AnyStorage
    trainer_config: TrainerConfig
    test_envs: Callable[..., VecEnv] | None = None


def build(
    recipe: Recipe,
    given: Mapping[str, object] | None = None,
    *,
    restart_model: WeightSource | None = None,
    is_saved: bool = False,
) -> Parts:
    """Build every part that a recipe names.

    Initial weights are drawn from the recipe's seed and nothing else; torch's global generator is
    left as it was.

    Args:
        recipe: all components by name.
        given: objects by section (``env``, ``actor``, ``algorithm``, ``storage``), used instead of
            what the recipe names; those that it calls ``custom`` must be here. The environment
            may be of any kind that `rl_train.make` takes.
        restart_model: source of the actor's initial weights, see `load_weights`; None draws them.
            The recipe records it, but resuming does not load it again.
        is_saved: all weights will be loaded from a checkpoint; the runs whose policies the
            recipe's add-ons use are not needed then.

    Raises:
        CheckpointError: when ``restart_model`` does not fit, or a run whose actor is used has other
            spaces. Runs whose environments only have other names are warned of.
        ConfigError: for options that are unknown or contradict each other, or when a custom
            component is not given.
        PluginError: for an unknown component.
        DeviceError: when the device is not there.
    """
    given = {} if given is None else given
    _check_given(recipe, given)
    device = resolve_device(recipe.device)
    env = cast("AnyEnv | None", given.get("env"))
    if env is not None and not is_built(env) and recipe.env.kwargs.get("vectorization") in _OWN:
        recipe = _with_env(recipe, vectorization="auto")  # another may have no such form
    if isinstance(env, str):
        recipe, env = replace(recipe, env=replace(recipe.env, name=env)), None
    recipe, envs = _build_resolved_envs(recipe, env)
    try:
        algorithm = build_algorithm(recipe, envs, device, given, restart_model, is_saved)
        rewards = changing_options(recipe.env).keys() & REWARD_OPTIONS.keys()
        if rewards and has_custom_evaluation(algorithm):
            raise ConfigError(
                f"env.{min(rewards)} changes rewards in training, but not in evaluations, in which "
                f"{recipe.algorithm.name} adapts to them too; leave it out"
            )
        storage = cast(
            "AnyStorage",
            given["storage"]
            if "storage" in given
            else construct_component("storage", recipe.storage, {"device": device}),
        )
        config = decode(TrainerConfig, recipe.trainer, "trainer")
        if config.demonstrations is not None and not is_saved:
            check_demonstrated(config.demonstrations, recipe.env)
            warn_of_other_env(config.demonstrations, recipe.env)
    except BaseException:
        envs.close()
        raise
    recipe = _with_resolved(recipe, algorithm, device, restart_model)
    # environments that are built are not there twice: those of the recipe's name, if it has one
    again = None if env is None or is_built(env) else env
    has_more = again is not None or not recipe.env.is_custom
    test_envs = partial(build_test_envs, recipe, again) if has_more else None
    if env is not None:  # it may be another one than that of the recipe's name
        recipe = replace(recipe, env=replace(recipe.env, name=CUSTOM))
    return Parts(recipe, envs, algorithm, storage, config, test_envs)


def _build_resolved_envs(recipe: Recipe, env: AnyEnv | None) -> tuple[Recipe, VecEnv]:
    """Make the environments, and let the recipe say what an automatic vectorization became."""
    if env is not None and is_built(env) and (unused := changing_options(recipe.env)):
        warnings.warn(
            f"env.{', env.'.join(unused)}: not applied to an environment that is built; give one "
            "that is wrapped likewise, or its class or a function that builds it",
            stacklevel=3,
        )
    envs = build_envs(recipe.env, spawn_seed(recipe.seed, "envs"), env)
    chosen = getattr(envs, "vectorization", None)
    if recipe.env.kwargs.get("vectorization") == "auto" and chosen is not None:
        recipe = _with_env(recipe, vectorization=chosen)
        if isinstance(envs, ProcessVecEnv):
            recipe = _with_env(recipe, num_workers=len(envs.processes))
    return recipe, envs


def _with_env(recipe: Recipe, **options: Json) -> Recipe:
    kwargs = {**recipe.env.kwargs, **options}
    return replace(recipe, env=replace(recipe.env, kwargs=kwargs))


def _with_resolved(
    recipe: Recipe,
    algorithm: AnyAlgorithm,
    device: torch.device,
    restart_model: WeightSource | None,
) -> Recipe:
    """Let the recipe say what building resolved: device, loaded policies, initial weights."""
    resolved: dict[str, Json] = {**recipe.resolved, "device": str(device)}
    if actors := record_actors(algorithm.add_ons.loaded_actors):
        resolved["actors"] = actors
    if restart_model is not None:
        resolved["restart_model"] = (
            {part: str(directory) for part, directory in restart_model.items()}
            if isinstance(restart_model, Mapping)
            else str(restart_model)
        )
    return replace(recipe, resolved=resolved)


def build_algorithm(
    recipe: Recipe,
    envs: VecEnv,
    device: torch.device,
    given: Mapping[str, object] | None = None,
    restart_model: WeightSource | None = None,
    is_saved: bool = False,
) -> AnyAlgorithm:
    """Build a recipe's actor and algorithm for given environments; see `build`."""
    given = given or {}
    if "algorithm" in given:
        if restart_model is not None:
            raise ConfigError(
                "restart_model is for an actor whose algorithm is built from it; call load_weights "
                "before building the given algorithm"
            )
        return cast("AnyAlgorithm", given["algorithm"])
    spaces = envs.single_observation_space, envs.single_action_space
    with _seeded(spawn_seed(recipe.seed, "weights")):
        if "actor" in given:
            actor = cast("Actor", given["actor"]).to(device)
        else:
            actor = new_actor(recipe.actor, *spaces, device)
        if restart_model is not None:
            load_weights(actor, restart_model)
            if not isinstance(restart_model, Mapping):  # parts may well come from elsewhere
                warn_of_other_env(restart_model, recipe.env)
        saved = _recorded_actors(recipe) if is_saved else {}

        def load(directory: str) -> Actor:
            if directory in saved:
                return build_actor(saved[directory], *spaces, device)
            earlier = saved_recipe(directory)
            problem = None if earlier is None else run_problem(earlier, *spaces)
            if problem is not None:
                raise CheckpointError(f"the actor of {directory}, {problem}")
            warn_of_other_env(directory, recipe.env)
            return load_actor(directory, *spaces, device)

        context = {"actor": actor, LOAD_ACTOR: load}
        return cast("AnyAlgorithm", construct_component("algorithm", recipe.algorithm, context))


def build_trainer(parts: Parts, **options: object) -> Trainer:
    """Build a `Trainer` from parts, with test environments that are made on first use.

    There are none where the user gave environments that were built, unless they are given here.
    """
    recipe = parts.recipe
    return Trainer(
        parts.envs,
        parts.algorithm,
        parts.storage,
        config=parts.trainer_config,
        seed=recipe.seed,
        recipe=recipe,
        **{"test_envs": parts.test_envs, **options},  # type: ignore[arg-type]  # checked by Trainer's own signature
    )


def resolve_device(name: str) -> torch.device:
    """Return a device by its name.

    Args:
        name: ``"cpu"``, ``"cuda"`` or ``"cuda:1"``; ``"auto"`` takes CUDA where it is available,
            else the CPU.

    Raises:
        DeviceError: when the name is unknown or the device is not available.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not _DEVICE.fullmatch(name):
        raise DeviceError(f"device '{name}' is unknown; use auto, cpu, cuda or cuda:N")
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise DeviceError(
            f"device '{name}' was asked for, but torch sees no CUDA device; use 'cpu', or install "
            "a CUDA build of torch"
        )
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise DeviceError(
            f"device '{name}' is not available: torch sees {torch.cuda.device_count()} CUDA "
            "devices, counted from cuda:0"
        )
    return device


def _recorded_actors(recipe: Recipe) -> dict[str, ComponentSpec]:
    """Return the actors that `record_actors` recorded when the run began."""
    record = recipe.resolved.get("actors", {})
    if not isinstance(record, Mapping):
        raise ConfigError(f"resolved.actors: got {record!r}; expected tables with names")
    return {key: spec_from("actor", record[key], f"resolved.actors.{key}") for key in record}


def _check_given(recipe: Recipe, given: Mapping[str, object]) -> None:
    """Check the types of given objects, and that none which the recipe needs is missing."""
    if not isinstance(given, Mapping):
        raise ConfigError(f"parts={given!r}; expected a mapping of objects by section")
    specs = {
        "env": (recipe.env, object),
        "actor": (recipe.actor, Actor),
        "algorithm": (recipe.algorithm, Algorithm),
        "storage": (recipe.storage, Storage),
    }
    for section, value in given.items():
        if section not in specs:
            raise ConfigError(f"parts: unknown section '{section}'{nearest(str(section), specs)}")
        cls = specs[section][1]
        if not isinstance(value, cls):
            raise ConfigError(
                f"parts['{section}'] is a {type(value).__name__}; expected {cls.__name__}"
            )
    supplied = {*given, "actor"} if "algorithm" in given else set(given)
    missing = [name for name, (spec, _) in specs.items() if spec.is_custom and name not in supplied]
    if missing:
        raise ConfigError(
            f"the recipe's {', '.join(missing)} was built from Python objects; give it again with "
            f"load(directory, parts={{{', '.join(f'{name!r}: ...' for name in missing)}}})"
            + (", or env=... for new episodes in it" if missing == ["env"] else "")
        )


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed torch's global generator within a block, and restore it afterwards."""
    with global_generator_kept():
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed CUDA's for good
        yield
