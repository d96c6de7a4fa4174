"""The newest episodes of a run."""

import math
from collections import deque
from collections.abc import Sequence

from rl_core.stateful import StateReader
from rl_core.types import StateDict
from rl_train.collecting import Episode

_RECENT_EPISODES = 100
"""Of how many episodes ``train/episode_return`` and its like are."""


class RecentEpisodes:
    """Figures of the newest episodes."""

    def __init__(self) -> None:
        self._returns: deque[float] = deque(maxlen=_RECENT_EPISODES)
        self._lengths: deque[float] = deque(maxlen=_RECENT_EPISODES)
        self._successes: deque[float] = deque(maxlen=_RECENT_EPISODES)

    def extend(self, episodes: Sequence[Episode]) -> None:
        """Add episodes, in the order in which they ended."""
        for episode in episodes:
            self._returns.append(episode.episode_return)
            self._lengths.append(float(episode.length))
            if episode.success is not None:
                self._successes.append(float(episode.success))

    def metrics(self) -> dict[str, float]:
        """Return the figures by path; NaN before the first episode.

        The rate of success is of the newest episodes that reported one, and left out before the
        first of those.
        """
        mean = _mean(self._returns)
        figures = {
            "train/episode_return": mean,
            "train/episode_return_std": math.sqrt(_mean([(r - mean) ** 2 for r in self._returns])),
            "train/episode_return_min": min(self._returns, default=math.nan),
            "train/episode_return_max": max(self._returns, default=math.nan),
            "train/episode_length": _mean(self._lengths),
        }
        return figures | ({"train/success_rate": _mean(self._successes)} if self._successes else {})

    def state_dict(self) -> StateDict:
        """Return returns, lengths and successes (0 or 1), oldest first."""
        return {f"recent_{name}": list(recent) for name, recent in self._by_name().items()}

    def load_state_dict(self, saved: StateReader) -> None:
        """Take over what `state_dict` returned."""
        for name, recent in self._by_name().items():
            recent.clear()
            recent.extend(saved.numbers(f"recent_{name}"))

    def _by_name(self) -> dict[str, deque[float]]:
        return {
            "returns": self._returns,
            "lengths": self._lengths,
            "successes": self._successes,
        }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan
