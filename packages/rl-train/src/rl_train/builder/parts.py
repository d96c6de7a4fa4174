"""From recipes to parts."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import gymnasium
import torch
from gymnasium.vector import VectorEnv

from rl_core.actor import Actor
from rl_core.algorithm import Algorithm, AnyAlgorithm
from rl_core.config import Recipe, decode
from rl_core.env import VecEnv
from rl_core.errors import ConfigError, nearest
from rl_core.seeding import spawn_seed
from rl_core.storage import AnyStorage, Storage
from rl_core.types import Json
from rl_envs import as_vec_env
from rl_train.builder.actors import build_actor, load_actor
from rl_train.builder.components import LOAD_ACTOR, construct_component, read_actors, record_actors
from rl_train.builder.devices import resolve_device
from rl_train.builder.environments import build_envs, build_test_envs
from rl_train.checkpoint import WeightSource, load_weights
from rl_train.trainer import Trainer, TrainerConfig


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
            what the recipe names; those that it calls ``custom`` must be here.
        restart_model: where the actor's first weights come from, see `load_weights`; None draws
            them. The recipe keeps a record of it, by which nothing is loaded again.
        is_saved: a checkpoint follows, with all weights; other runs, whose policies the recipe's
            add-ons look at, are not needed then.

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
        algorithm = build_algorithm(recipe, envs, device, given, restart_model, is_saved)
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
    resolved: dict[str, Json] = {**recipe.resolved, "device": str(device)}
    if actors := record_actors(algorithm.add_ons.loaded_actors):
        resolved["actors"] = dict(actors)
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
    is_saved: bool = False,
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
    spaces = envs.single_observation_space, envs.single_action_space, device
    named = dict(zip(("observation_space", "action_space", "device"), spaces, strict=True))
    with _seeded(spawn_seed(recipe.seed, "weights")):
        actor = (
            given["actor"]
            if "actor" in given
            else construct_component("actor", recipe.actor, named)
        )
        cast("Actor", actor).to(device)
        if restart_model is not None:
            load_weights(cast("Actor", actor), restart_model)
        saved = read_actors(recipe.resolved.get("actors", {})) if is_saved else {}

        def load(directory: str) -> Actor:
            if directory in saved:
                return build_actor(saved[directory], *spaces)
            return load_actor(directory, *spaces)

        context = {"actor": actor, LOAD_ACTOR: load}
        return cast("AnyAlgorithm", construct_component("algorithm", recipe.algorithm, context))


def build_trainer(parts: Parts, **options: object) -> Trainer:
    """Put built parts into a `Trainer`; test environments are made on first use.

    Where the environments are Python objects there are none, unless they are given here.
    """
    recipe = parts.recipe
    made = {} if recipe.env.is_custom else {"test_envs": lambda: build_test_envs(recipe)}
    return Trainer(
        parts.envs,
        parts.algorithm,
        parts.storage,
        config=parts.trainer_config,
        seed=recipe.seed,
        recipe=recipe,
        **{**made, **options},  # type: ignore[arg-type]  # checked by Trainer's own signature
    )


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
