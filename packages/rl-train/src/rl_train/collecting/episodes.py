"""Episodes: returns, lengths, and where the next ones start."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rl_core.env import EnvStep
from rl_core.stateful import StateFields
from rl_core.types import to_flags, to_numbers


@dataclass(frozen=True, slots=True)
class Episode:
    """A finished episode.

    Attributes:
        episode_return: undiscounted sum of the environment's own rewards.
        length: number of steps.
        env: index of its environment.
        success: whether it succeeded, or None where the environment does not report it.
    """

    episode_return: float
    length: int
    env: int
    success: bool | None = None


class EpisodeTracker(StateFields):
    """Tracks the running episodes of environments that step together.

    Args:
        num_envs: number of environments.
    """

    state_fields = ("_return", "_length", "episode_start")

    def __init__(self, num_envs: int) -> None:
        self._return = np.zeros(num_envs)
        self._length = np.zeros(num_envs, dtype=np.int64)
        self.episode_start: npt.NDArray[np.bool_] = np.ones(num_envs, dtype=np.bool_)
        """Shape `(B,)`: whether the current observation is the first of its episode."""

    def track(self, outcome: EnvStep) -> list[Episode]:
        """Add one step and return the episodes that it ended."""
        valid = to_flags(outcome.valid)
        ended = to_flags(outcome.terminated) | to_flags(outcome.truncated)
        self._return += to_numbers(outcome.reward)
        self._length += valid
        # Where final observations are separate, ended rows show the next episode's first one.
        self.episode_start = ~valid if outcome.final_observation is None else ended
        if not np.count_nonzero(ended):
            return []
        episodes = [
            Episode(
                float(self._return[env]),
                int(self._length[env]),
                int(env),
                outcome.success(int(env)),
            )
            for env in np.flatnonzero(ended)
        ]
        self._return[ended] = 0.0
        self._length[ended] = 0
        return episodes

    def cut(self, limit: int) -> list[Episode]:
        """Return the running episodes that have reached a limit, and restart their counts."""
        if self._length.max() < limit:
            return []
        rows = np.flatnonzero(self._length >= limit)
        cut = [Episode(float(self._return[env]), int(self._length[env]), int(env)) for env in rows]
        self._return[rows] = 0.0
        self._length[rows] = 0
        return cut

    def reset(self) -> None:
        """Start new episodes in all environments."""
        self._return[:] = 0.0
        self._length[:] = 0
        self.episode_start = np.ones_like(self.episode_start)
