"""What a run knows of itself, besides the states of its parts."""

import math
from collections import deque
from collections.abc import Mapping, Sequence

from rl_core.stateful import StateFields
from rl_train.collecting import Episode

_RECENT_EPISODES = 100
"""Number of episodes that ``train/episode_return`` and its like are computed from."""


class Iteration(StateFields):
    """The current iteration of the training loop: collect, update, evaluate, log.

    It is saved with the run, so that a run that was stopped in the middle of an iteration
    continues there.

    Attributes:
        start: how many ``steps``, ``episodes`` and ``updates`` the run had when it began; empty
            between iterations.
        transitions: collected toward its update, including those an earlier one left over.
        has_learned: its update is over; at most evaluation and logging are left.
    """

    state_fields = ("start", "transitions", "has_learned")

    def __init__(self) -> None:
        self.start: dict[str, int] = {}
        self.transitions = 0
        self.has_learned = False

    def begin(self, counts: Mapping[str, int]) -> None:
        """Begin an iteration, unless one has begun."""
        self.start = self.start or dict(counts)

    def end(self, left_over: int = 0) -> None:
        """Wait for the next iteration.

        Args:
            left_over: transitions beyond those that its update was due for, which count toward the
                next one. There are some where rows only reset, so that a step brings fewer
                transitions than there are environments.
        """
        self.start, self.transitions, self.has_learned = {}, left_over, False


class RecentEpisodes(StateFields):
    """Statistics of the newest episodes."""

    state_fields = ("_returns", "_lengths", "_successes")

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
        """Return the statistics by path; NaN before the first episode.

        The success rate covers the newest episodes that reported success or failure. Before the
        first of these it is left out.
        """
        mean = _mean(self._returns)
        metrics = {
            "train/episode_return": mean,
            "train/episode_return_std": math.sqrt(_mean([(r - mean) ** 2 for r in self._returns])),
            "train/episode_return_min": min(self._returns, default=math.nan),
            "train/episode_return_max": max(self._returns, default=math.nan),
            "train/episode_length": _mean(self._lengths),
        }
        return metrics | ({"train/success_rate": _mean(self._successes)} if self._successes else {})


class UpdateMeans(StateFields):
    """Means of the metrics of all updates since the last line of the log."""

    state_fields = ("_totals", "_counts")

    def __init__(self) -> None:
        self._totals: dict[str, float] = {}
        self._counts: dict[str, int] = {}

    def add(self, metrics: Mapping[str, float]) -> None:
        """Add the metrics of one update."""
        for name, value in metrics.items():
            self._totals[name] = self._totals.get(name, 0.0) + value
            self._counts[name] = self._counts.get(name, 0) + 1

    def read(self) -> dict[str, float]:
        """Average each metric over the updates that returned it, and start again."""
        means = {name: total / self._counts[name] for name, total in self._totals.items()}
        self._totals, self._counts = {}, {}
        return means


class RunState(StateFields):
    """What a run knows of itself.

    Args:
        seed: of the run.

    Attributes:
        updates: number of updates so far.
        num_demonstrations: transitions that the storage was filled with before the first step.
        filled_since: environment transitions before those that the storage holds; 0 unless the run
            was resumed without its replay buffer.
        ended: the total, by its argument of `Trainer.train`, that a callback ended before it was
            reached; empty where none did.
        iteration: how far the loop is.
        recent: statistics of the newest episodes.
        means: means of the updates' metrics since the last line of the log.
    """

    state_fields = (
        "seed",
        "updates",
        "num_demonstrations",
        "filled_since",
        "ended",
        "iteration",
        "recent",
        "means",
    )

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.updates = 0
        self.num_demonstrations = 0
        self.filled_since = 0
        self.ended: dict[str, int] = {}
        self.iteration = Iteration()
        self.recent = RecentEpisodes()
        self.means = UpdateMeans()


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan
