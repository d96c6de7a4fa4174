"""Minari data sets, read as trajectories and checked against an actor's spaces."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol, cast

import numpy as np
from torch import Tensor

from rl_core.actor import Actor
from rl_core.batch import Trajectory
from rl_core.errors import ConfigError, DataError, MissingExtraError, SpaceError, in_brief
from rl_core.spaces import Space, flatten_observation
from rl_core.types import Observation
from rl_train.builder.saved_envs import space_problem
from rl_train.demonstrations.trajectories import checked_column, checked_trajectory

_DATASET_ID = re.compile(r"([-\w]+/)*[-\w]+-v\d+")
"""What Minari calls data sets, such as ``D4RL/door/human-v2``."""


class EpisodeData(Protocol):
    """One episode of L steps, as Minari's ``EpisodeData`` holds it.

    Attributes:
        id: number of the episode.
        observations: L + 1 observations, nested like the space.
        actions: L actions.
        rewards: shape `(L,)`.
        terminations: shape `(L,)`, bool.
        truncations: shape `(L,)`, bool.
    """

    @property
    def id(self) -> int: ...  # noqa: D102  # described above, like all others
    @property
    def observations(self) -> object: ...  # noqa: D102
    @property
    def actions(self) -> object: ...  # noqa: D102
    @property
    def rewards(self) -> object: ...  # noqa: D102
    @property
    def terminations(self) -> object: ...  # noqa: D102
    @property
    def truncations(self) -> object: ...  # noqa: D102


class EpisodeDataset(Protocol):
    """A data set of episodes, such as a ``minari.MinariDataset``."""

    @property
    def observation_space(self) -> Space:
        """Space of one observation."""
        ...

    @property
    def action_space(self) -> Space:
        """Space of one action."""
        ...

    def iterate_episodes(self) -> Iterable[EpisodeData]:
        """Yield the episodes."""
        ...


def load_minari(name: str) -> EpisodeDataset:
    """Open a local Minari data set; nothing is downloaded.

    Args:
        name: its id, such as ``D4RL/door/human-v2``, or its directory.

    Raises:
        MissingExtraError: when Minari, or a library that reads its files, is not installed.
        ConfigError: when there is no such data set, or it cannot be read.
    """
    path = Path(name)
    if not path.exists() and not _DATASET_ID.fullmatch(name):
        raise ConfigError(
            f"there is no folder or file '{name}'; expected a run, a saved storage, or a Minari "
            "data set"
        )
    try:
        import minari

        if path.is_dir():
            data = path / "data" if (path / "data").is_dir() else path
            return cast("EpisodeDataset", minari.MinariDataset(data))
        return cast("EpisodeDataset", minari.load_dataset(name))
    except ImportError as error:
        raise MissingExtraError(
            f"reading the data set '{name}' needs Minari and what it reads files with "
            f"({in_brief(error)}): pip install 'packages/rl-train[minari]' (in a clone of "
            "the toolbox)"
        ) from error
    except FileNotFoundError as error:
        raise ConfigError(
            f"there is no folder or file '{name}', and no Minari data set of that name on this "
            f"machine; to fetch one that Minari offers: minari download {name}"
        ) from error
    except (ValueError, TypeError, KeyError, OSError) as error:
        raise ConfigError(
            f"'{name}' is neither a directory of demonstrations nor the id of a Minari data set "
            f"that can be read ({in_brief(error)})"
        ) from error


def dataset_trajectories(
    dataset: EpisodeDataset, actor: Actor, name: str = "the data set"
) -> Iterator[Trajectory]:
    """Turn episodes into trajectories for an actor.

    Observations get their storage dtypes (float64 becomes float32), and actions the scale of the
    actor. An episode without an end is taken as truncated.

    Args:
        dataset: data set with the environment's actions.
        actor: actor that learns from it.
        name: name of the data set, for messages.

    Raises:
        SpaceError: at once, when the data set was recorded in other spaces.
        DataError: when an episode does not fit the data set's spaces.
    """
    for what, recorded, expected in (
        ("observation", dataset.observation_space, actor.observation_space),
        ("action", dataset.action_space, actor.action_space),
    ):
        problem = space_problem(recorded, expected, bounds=what == "action")
        if problem is not None:
            raise SpaceError(
                f"{name} does not fit the environment: its {what} space {problem}; choose a data "
                "set that was recorded in this environment, with the same wrappers"
            )
    return _trajectories(dataset, actor, name)


def _trajectories(dataset: EpisodeDataset, actor: Actor, name: str) -> Iterator[Trajectory]:
    for episode in dataset.iterate_episodes():
        if np.size(np.asarray(episode.rewards)):
            yield _trajectory(episode, actor, f"{name}, episode {episode.id}")


def _trajectory(episode: EpisodeData, actor: Actor, where: str) -> Trajectory:
    steps = (np.size(np.asarray(episode.rewards)),)
    terminated = checked_column(episode.terminations, "terminations", steps, "bui", where) != 0
    truncated = checked_column(episode.truncations, "truncations", steps, "bui", where) != 0
    if (terminated | truncated)[:-1].any():
        step = int((terminated | truncated).argmax())
        raise DataError(
            f"{where}: it ends at step {step}, but continues to step {steps[0] - 1}; expected an "
            "end at the last step only"
        )
    try:
        observation = flatten_observation(actor.observation_space, episode.observations)
    except DataError as error:
        raise DataError(f"{where}: {error}") from error
    given = Trajectory(
        observation=cast("Observation", observation),
        action=cast("Tensor", episode.actions),
        reward=cast("Tensor", episode.rewards),
        terminated=bool(terminated[-1]),
    )
    return checked_trajectory(given, actor, where, has_env_actions=True)
