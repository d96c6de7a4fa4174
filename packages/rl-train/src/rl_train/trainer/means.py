"""Means over the updates between two lines of the log."""

from collections.abc import Mapping

from rl_core.stateful import StateReader
from rl_core.types import StateDict


class UpdateMeans:
    """Means of what updates answered since the last reading."""

    def __init__(self) -> None:
        self._totals: dict[str, float] = {}
        self._counts: dict[str, int] = {}

    def add(self, metrics: Mapping[str, float]) -> None:
        """Take in the metrics of one update."""
        for name, value in metrics.items():
            self._totals[name] = self._totals.get(name, 0.0) + value
            self._counts[name] = self._counts.get(name, 0) + 1

    def read(self) -> dict[str, float]:
        """Average each name over the updates that answered it, and begin anew."""
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
