"""Made-up transitions, the same for every system."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from bench.replay_operations import Data

Array: TypeAlias = npt.NDArray[Any]
Observation: TypeAlias = Array | Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class Step:
    """One step of one environment; every array has a first axis of length one.

    Attributes:
        observation: that was acted on.
        action: taken.
        reward: shape `(1,)`.
        is_last: shape `(1,)`, bool: the episode was truncated here.
        is_first: shape `(1,)`, bool: the episode began here.
        next_observation: of the same episode.
        reset_observation: the first of the next episode, where this was the last step; otherwise
            the next observation.
    """

    observation: Observation
    action: Array
    reward: npt.NDArray[np.float32]
    is_last: npt.NDArray[np.bool_]
    is_first: npt.NDArray[np.bool_]
    next_observation: Observation
    reset_observation: Observation


def make_episode(data: Data) -> list[Step]:
    """Make up an episode, which is followed by itself."""
    random = np.random.default_rng(0)
    length = data.episode_length
    data.observation_space.seed(0)
    data.action_space.seed(0)
    observations = [_row(data.observation_space) for _ in range(length + 1)]
    return [
        Step(
            observation=observations[step],
            action=np.asarray(data.action_space.sample())[None],
            reward=random.standard_normal(1, dtype=np.float32),
            is_last=np.array([step == length - 1]),
            is_first=np.array([step == 0]),
            next_observation=observations[step + 1],
            reset_observation=observations[(step + 1) % length],
        )
        for step in range(length)
    ]


def make_errors(count: int, size: int) -> npt.NDArray[np.float32]:
    """Make up temporal-difference errors, shape ``(count, size)``."""
    return np.abs(np.random.default_rng(0).standard_normal((count, size), dtype=np.float32))


def goal_reward(achieved: Array, desired: Array, info: object) -> npt.NDArray[np.float32]:
    """Reward goals as FetchReach does: 0 within 5 cm, and -1 elsewhere."""
    distance = np.linalg.norm(achieved - desired, axis=-1)
    reward: npt.NDArray[np.float32] = -(distance > 0.05).astype(np.float32)
    return reward


def _row(space: spaces.Space[object]) -> Observation:
    if isinstance(space, spaces.Dict):
        return {name: np.asarray(part.sample())[None] for name, part in space.items()}
    return np.asarray(space.sample())[None]
