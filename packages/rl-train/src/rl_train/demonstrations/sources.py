"""Where demonstrations come from, and how each kind becomes trajectories."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeAlias, cast

import torch
from torch import Tensor

from rl_core.actor import Actor
from rl_core.batch import Trajectory
from rl_core.errors import ConfigError, DataError, SpaceError
from rl_core.spaces import event_shape, leaf_spaces, tensor_dtype
from rl_core.storage import AnyStorage, Storage, TensorSpec
from rl_train.builder.saved_actors import build_actor, read_run, recipe_of
from rl_train.checkpoint import Checkpoint, is_run, load_checkpoint
from rl_train.demonstrations.minari import EpisodeDataset, dataset_trajectories, load_minari
from rl_train.storage_files import storage_of

Source: TypeAlias = str | Path | AnyStorage | EpisodeDataset | Iterable[Trajectory]
"""A directory or a Minari id, a storage, a Minari data set, or trajectories of the actor's own."""


def read_demonstrations(source: Source, actor: Actor) -> Iterator[Trajectory]:
    """Read demonstrations as trajectories with the actor's own actions.

    Args:
        source: a run directory, what `Storage.save` wrote, a Minari data set's directory or id; or
            as objects: a storage, a Minari data set, trajectories.
        actor: who is to learn from them.

    Returns:
        The trajectories, in the order of the source. Actions of another run's actor, whose recipe
        says how it scales them, are converted; those of a storage without a recipe, and of
        trajectories, are taken for the actor's own.

    Raises:
        ConfigError: when there is no such source.
        CheckpointError: when a directory is damaged.
        SpaceError: when a data set was recorded in other spaces.
        DataError: when observations or actions are not what the actor learns from.
    """
    if isinstance(source, str | Path):
        path = Path(source)
        if is_run(path):
            return _of_checkpoint(read_run(path), actor, str(source))
        if (path / "manifest.json").is_file():
            return _of_checkpoint(load_checkpoint(path), actor, str(source))
        return dataset_trajectories(load_minari(str(source)), actor, str(source))
    if isinstance(source, Storage):
        return _own(source.trajectories(), actor, type(source).__name__)
    if hasattr(source, "iterate_episodes"):
        return dataset_trajectories(cast("EpisodeDataset", source), actor)
    if not isinstance(source, Iterable):
        raise ConfigError(
            f"demonstrations: got {type(source).__name__}; expected a directory, the id of a "
            "Minari data set, a data set, a storage or trajectories"
        )
    return _own(iter(source), actor, "the demonstrations")


def _of_checkpoint(checkpoint: Checkpoint, actor: Actor, name: str) -> Iterator[Trajectory]:
    try:
        trajectories = storage_of(checkpoint).trajectories()
    except ConfigError as error:
        raise ConfigError(f"demonstrations: {name} cannot be learned from: {error}") from error
    if checkpoint.recipe_text is None:
        return _own(trajectories, actor, name)
    try:
        giver = build_actor(
            recipe_of(checkpoint).actor, actor.observation_space, actor.action_space, actor.device
        )
    except (ConfigError, SpaceError) as error:
        raise ConfigError(f"{name} does not fit: {error}") from error
    return _converted(trajectories, giver, actor, name)


def _converted(
    trajectories: Iterator[Trajectory], giver: Actor, actor: Actor, name: str
) -> Iterator[Trajectory]:
    """Bring actions from one actor's scale to another's."""
    for trajectory in trajectories:
        _check(trajectory, actor, giver.action_spec, name)
        with torch.no_grad():
            env_action = giver.to_env_action(trajectory.action.to(giver.device))
            action = actor.from_env_action(env_action).cpu()
        yield Trajectory(trajectory.observation, action, trajectory.reward, trajectory.terminated)


def _own(trajectories: Iterator[Trajectory], actor: Actor, name: str) -> Iterator[Trajectory]:
    for trajectory in trajectories:
        _check(trajectory, actor, actor.action_spec, name)
        yield trajectory


def _check(trajectory: Trajectory, actor: Actor, action: TensorSpec, name: str) -> None:
    """Compare shapes and dtypes with what an actor sees and does."""
    leaves = leaf_spaces(actor.observation_space)
    expected = leaves if isinstance(leaves, dict) else {"": leaves}
    observation = trajectory.observation
    got = {"": observation} if isinstance(observation, Tensor) else dict(observation)
    if set(got) != set(expected):
        raise DataError(
            f"{name} does not fit the environment: its observations have the entries "
            f"{sorted(got)}; expected {sorted(expected)}"
        )
    specs = {
        key: TensorSpec(event_shape(leaf), tensor_dtype(leaf)) for key, leaf in expected.items()
    }
    for key, part in got.items():
        _check_tensor(part, specs[key], f"observations {key}".strip(), name)
    _check_tensor(trajectory.action, action, "actions", name)


def _check_tensor(tensor: Tensor, spec: TensorSpec, what: str, name: str) -> None:
    if tuple(tensor.shape[1:]) != spec.shape or tensor.dtype != spec.dtype:
        raise DataError(
            f"{name} does not fit the environment: its {what} are {tensor.dtype} of shape "
            f"{tuple(tensor.shape[1:])}; expected {spec.dtype} of shape {spec.shape}"
        )
