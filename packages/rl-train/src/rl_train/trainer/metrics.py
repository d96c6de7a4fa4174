"""What a run logs of its episodes and updates."""

import math
from collections import deque
from collections.abc import Mapping, Sequence

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
        return {name: list(recent) for name, recent in self._by_name().items()}

    def load_state_dict(self, state: StateDict) -> None:
        """Take over what `state_dict` returned."""
        saved = StateReader(state, "recent episodes")
        for name, recent in self._by_name().items():
            recent.clear()
            recent.extend(saved.numbers(name))

    def _by_name(self) -> dict[str, deque[float]]:
        return {
            "returns": self._returns,
            "lengths": self._lengths,
            "successes": self._successes,
        }


class UpdateMeans:
    """Means of what updates returned since the last reading."""

    def __init__(self) -> None:
        self._totals: dict[str, float] = {}
        self._counts: dict[str, int] = {}

    def add(self, metrics: Mapping[str, float]) -> None:
        """Take in the metrics of one update."""
        for name, value in metrics.items():
            self._totals[name] = self._totals.get(name, 0.0) + value
            self._counts[name] = self._counts.get(name, 0) + 1

    def read(self) -> dict[str, float]:
        """Average each name over the updates that returned it, and begin anew."""
        means = {name: total / self._counts[name] for name, total in self._totals.items()}
        self._totals, self._counts = {}, {}
        return means

    def state_dict(self) -> StateDict:
        """Return sums and counts by name."""
        return {"totals": dict(self._totals), "counts": dict(self._counts)}

    def load_state_dict(self, state: StateDict) -> None:
        """Take over what `state_dict` returned."""
        saved = StateReader(state, "update_means")
        totals, counts = saved.reader("totals"), saved.reader("counts")
        names = list(saved.tree("totals"))
        counts.expect(names)
        self._totals = {name: totals.number(name) for name in names}
        self._counts = {name: max(1, counts.count(name)) for name in names}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan
