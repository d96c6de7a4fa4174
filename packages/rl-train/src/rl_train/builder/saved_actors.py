"""Actors of other runs, rebuilt from their recipes and checkpoints."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import RLock
from typing import cast

import torch

from rl_core.actor import Actor
from rl_core.config import ComponentSpec, Recipe
from rl_core.errors import CheckpointError, ConfigError
from rl_core.spaces import Space
from rl_train.builder.components import construct_component
from rl_train.checkpoint import Checkpoint, read_run
from rl_train.checkpoint.weights import actor_weights
from rl_train.recipe_files import from_toml


def recipe_of(checkpoint: Checkpoint) -> Recipe:
    """Read the recipe in a checkpoint.

    Raises:
        CheckpointError: when it has none.
    """
    if checkpoint.recipe_text is None:
        raise CheckpointError(f"{checkpoint.path} holds no recipe to build its parts from")
    return from_toml(checkpoint.recipe_text, str(checkpoint.path / "recipe.toml"))


def new_actor(
    spec: ComponentSpec, observation_space: Space, action_space: Space, device: torch.device
) -> Actor:
    """Build an actor with initial weights, drawn from torch's global generator."""
    context = {
        "observation_space": observation_space,
        "action_space": action_space,
        "device": device,
    }
    return cast("Actor", construct_component("actor", spec, context)).to(device)


_LOCK = RLock()


@contextmanager
def global_generator_kept() -> Iterator[None]:
    """Restore torch's global generator after a block; all threads share it, so they take turns."""
    with _LOCK, torch.random.fork_rng(devices=[]):
        yield


def build_actor(
    spec: ComponentSpec, observation_space: Space, action_space: Space, device: torch.device
) -> Actor:
    """Build a run's actor for given spaces, without its weights.

    Torch's global generator is left as it was.

    Raises:
        ConfigError: when it was built from Python objects.
        SpaceError: when it does not support the spaces.
    """
    if spec.is_custom:
        raise ConfigError(
            "the run's actor was built from Python objects, which a recipe cannot name"
        )
    with global_generator_kept():
        return new_actor(spec, observation_space, action_space, device)


def load_actor(
    directory: str | Path,
    observation_space: Space,
    action_space: Space,
    device: torch.device | str = "cpu",
) -> Actor:
    """Load the actor that a run trained, without its environments.

    Args:
        directory: run directory, its folder ``best``, or one checkpoint.
        observation_space: observation space of the environments to act in.
        action_space: their action space.
        device: device of the actor.

    Returns:
        The actor in evaluation mode; its parameters require no gradients.

    Raises:
        CheckpointError: when the run has no readable checkpoint, or was made for other spaces.
        ConfigError: when its actor was built from Python objects.
    """
    checkpoint = read_run(directory)
    recipe = recipe_of(checkpoint)
    try:
        actor = build_actor(recipe.actor, observation_space, action_space, torch.device(device))
    except ConfigError as error:
        raise ConfigError(f"{directory}: {error}") from error
    try:
        actor.load_state_dict(actor_weights(checkpoint))
    except RuntimeError as error:
        raise CheckpointError(
            f"the actor of {directory}, trained on {recipe.env.name}, does not fit the spaces "
            f"{observation_space} and {action_space}; choose a run on an environment like this one"
        ) from error
    return actor.eval().requires_grad_(False)
