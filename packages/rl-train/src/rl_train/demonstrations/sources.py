"""Sources of demonstrations, read as trajectories."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias, cast

import torch

from rl_core.actor import Actor
from rl_core.batch import Trajectory
from rl_core.errors import ConfigError, SpaceError
from rl_core.storage import AnyStorage, HasTrajectories, Storage
from rl_train.builder.saved_actors import build_actor, recipe_of
from rl_train.builder.saved_envs import run_problem
from rl_train.checkpoint import Checkpoint, is_checkpoint, is_run, read_run
from rl_train.demonstrations.minari import EpisodeDataset, dataset_trajectories, load_minari
from rl_train.demonstrations.trajectories import checked_trajectory
from rl_train.storage_files import storage_of

Source: TypeAlias = str | Path | AnyStorage | EpisodeDataset | Iterable[Trajectory]
"""A directory or Minari id, a storage, a Minari data set, or trajectories."""


def read_demonstrations(source: Source, actor: Actor) -> Iterator[Trajectory]:
    """Read demonstrations as trajectories with the actor's own actions.

    Args:
        source: a run directory, a directory that `save_storage` wrote, the directory or id of a
            Minari data set; or an object: a storage, a Minari data set, trajectories.
        actor: actor that learns from them.

    Returns:
        The trajectories, in the order of the source. Actions of another run are converted by its
        actor, which its recipe describes. Actions of a storage without a recipe, and of
        trajectories, must be the actor's own.

    Raises:
        ConfigError: when there is no such source.
        CheckpointError: when a directory is damaged.
        SpaceError: when a data set, or the environment that a run names, has other spaces.
        DataError: when a trajectory is not complete, or does not fit the actor.
    """
    if isinstance(source, str | Path):
        path = Path(source)
        if is_run(path) or is_checkpoint(path):
            return _of_checkpoint(read_run(path), actor, str(source))
        return dataset_trajectories(load_minari(str(source)), actor, str(source))
    if isinstance(source, Storage):
        return _converted(_trajectories_of(source), None, actor, type(source).__name__)
    if hasattr(source, "iterate_episodes"):
        return dataset_trajectories(cast("EpisodeDataset", source), actor)
    if not isinstance(source, Iterable):
        raise ConfigError(
            f"demonstrations: got {type(source).__name__}; expected a directory, the id of a "
            "Minari data set, a data set, a storage or trajectories"
        )
    return _converted(iter(source), None, actor, "the demonstrations")


def _trajectories_of(storage: AnyStorage) -> Iterator[Trajectory]:
    if not isinstance(storage, HasTrajectories):
        raise ConfigError(f"{type(storage).__name__} gives no trajectories; replay storages do")
    return storage.trajectories()


def _of_checkpoint(checkpoint: Checkpoint, actor: Actor, name: str) -> Iterator[Trajectory]:
    recorder, hint, is_scaled = None, "", False
    if checkpoint.recipe_text is not None:
        recipe = recipe_of(checkpoint)
        problem = run_problem(recipe, actor.observation_space, actor.action_space)
        if problem is not None:
            raise SpaceError(f"{name}, {problem}")
        is_scaled = bool(recipe.trainer.get("scale_rewards"))
        try:
            recorder = build_actor(
                recipe.actor, actor.observation_space, actor.action_space, actor.device
            )
        except (ConfigError, SpaceError) as error:
            raise ConfigError(f"{name} does not fit: {error}") from error
        if "algorithm" in checkpoint.state:  # of a whole run
            env = "ENV" if recipe.env.is_custom else recipe.env.name
            hint = f". To imitate the run's policy: rl train bc {env} --algorithm.expert {name}"
    try:
        trajectories = _trajectories_of(storage_of(checkpoint))
    except ConfigError as error:
        raise ConfigError(
            f"demonstrations: {name} cannot be learned from: {error}{hint}"
        ) from error
    if is_scaled:
        raise ConfigError(
            f"demonstrations: {name} holds rewards that scale_rewards divided by a scale that "
            "moved; record them without it"
        )
    return _converted(trajectories, recorder, actor, name)


def _converted(
    trajectories: Iterator[Trajectory], recorder: Actor | None, actor: Actor, name: str
) -> Iterator[Trajectory]:
    """Check trajectories, and convert actions that another actor recorded."""
    for index, given in enumerate(trajectories):
        trajectory = checked_trajectory(given, recorder or actor, f"{name}, trajectory {index}")
        if recorder is not None:
            with torch.no_grad():
                env_action = recorder.to_env_action(trajectory.action.to(recorder.device))
                trajectory = replace(trajectory, action=actor.from_env_action(env_action).cpu())
        yield trajectory
