"""The newest episodes of a run."""

from collections import deque
from collections.abc import Sequence

from rl_core.episodes import Episode
from rl_core.stateful import StateReader
from rl_core.types import StateDict

_RECENT_EPISODES = 100
"""How many episodes ``train/episode_return`` averages over."""


class RecentEpisodes:
    """Averages over the newest episodes."""

    def __init__(self) -> None:
        self._returns: deque[float] = deque(maxlen=_RECENT_EPISODES)
        self._lengths: deque[float] = deque(maxlen=_RECENT_EPISODES)

    def extend(self, episodes: Sequence[Episode]) -> None:
        """Add episodes, in the order in which they ended."""
        for episode in episodes:
            self._returns.append(episode.episode_return)
            self._lengths.append(float(episode.length))

    def metrics(self) -> dict[str, float]:
        """Return the averages by path; NaN before the first episode."""
        return {
            "train/episode_return": _mean(self._returns),
            "train/episode_length": _mean(self._lengths),
        }

    def state_dict(self) -> StateDict:
        """Return returns and lengths, oldest first."""
        return {"recent_returns": list(self._returns), "recent_lengths": list(self._lengths)}

    def load_state_dict(self, saved: StateReader) -> None:
        """Take over what `state_dict` returned."""
        for recent, key in ((self._returns, "recent_returns"), (self._lengths, "recent_lengths")):
            recent.clear()
            recent.extend(saved.numbers(key))


def _mean(values: deque[float]) -> float:
    return sum(values) / len(values) if values else float("nan")
