"""Means of a loss's metrics that are summed where they are computed."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from rl_core.gradients.groups import Due
from rl_core.stateful import StateReader
from rl_core.types import StateDict

_BETWEEN = "\n"
"""Stands between the names of a saved list, which hold no line breaks."""


class MetricSums:
    """Sums named numbers on the device, so that no step waits for one to be read.

    Args:
        names: of what every step answers.
        device: where the numbers are.
    """

    def __init__(self, names: Sequence[str], device: torch.device) -> None:
        self.names = tuple(names)
        self.totals = torch.zeros(len(self.names) + 1, device=device)

    def add(self, metrics: Mapping[str, Tensor], counts: Tensor) -> None:
        """Add one step's metrics where it counts.

        Args:
            metrics: 0-dim, one of each name.
            counts: 0-dim bool.
        """
        row = [metrics[name].detach().to(torch.float32) for name in self.names]
        row.append(torch.ones_like(self.totals[0]))
        self.totals.add_(torch.where(counts, torch.stack(row), 0.0))

    def clear(self) -> None:
        """Forget everything but the names."""
        self.totals.zero_()


class StepMetrics:
    """The metrics of gradient steps since the last reading, apart by what the steps moved.

    Args:
        device: where the numbers are.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._sums: dict[Due, MetricSums] = {}
        self._unseen: set[Due] = set()

    def prepare(self, due: Due, metrics: Mapping[str, Tensor]) -> None:
        """Make room for the metrics of a step, outside of its graph.

        What was loaded under other names, because the loss was changed meanwhile, is forgotten.

        Args:
            due: what the step moves.
            metrics: of its loss.
        """
        if self.is_prepared(due):
            return
        names = (*metrics, *(f"gradients/{name}_norm" for name in due.groups))
        loaded = self._sums.get(due)
        if loaded is None or loaded.names != names:
            self._sums[due] = MetricSums(names, self._device)
        self._unseen.discard(due)

    def is_prepared(self, due: Due) -> bool:
        """Say whether there is room for the metrics of steps that move these parts."""
        return due in self._sums and due not in self._unseen

    def of(self, due: Due) -> MetricSums:
        """Return the sums of steps that move these parts."""
        return self._sums[due]

    def means(self) -> dict[str, float]:
        """Average each name over the steps that answered it; empty without any step."""
        return mean_metrics(list(self._sums.values()))

    def clear(self) -> None:
        """Forget everything but the names."""
        for sums in self._sums.values():
            sums.clear()

    def state_dict(self) -> list[StateDict]:
        """Return the sums with their names."""
        return [
            {
                "groups": _BETWEEN.join(due.groups),
                "targets": _BETWEEN.join(due.targets),
                "names": _BETWEEN.join(sums.names),
                "totals": sums.totals,
            }
            for due, sums in self._sums.items()
        ]

    def load(self, saved: Sequence[StateReader]) -> None:
        """Take over what `state_dict` returned.

        Raises:
            CheckpointError: when an entry is damaged.
        """
        self.clear()
        for entry in saved:
            due = Due(_names(entry, "groups"), _names(entry, "targets"))
            names = _names(entry, "names")
            totals = entry.tensor("totals", like=torch.zeros(len(names) + 1))
            if due not in self._sums:
                self._sums[due] = MetricSums(names, self._device)
                self._unseen.add(due)
            if self._sums[due].names == names:
                self._sums[due].totals.copy_(totals)


def mean_metrics(sums: Sequence[MetricSums]) -> dict[str, float]:
    """Average each name over the steps that answered it; empty without any step."""
    totals: dict[str, float] = {}
    counts: dict[str, float] = {}
    rows = torch.cat([part.totals for part in sums]).tolist() if sums else []
    for part in sums:
        *values, count = rows[: len(part.names) + 1]
        del rows[: len(part.names) + 1]
        for name, value in zip(part.names, values, strict=True):
            totals[name] = totals.get(name, 0.0) + value
            counts[name] = counts.get(name, 0.0) + count
    return {name: total / counts[name] for name, total in totals.items() if counts[name]}


def _names(saved: StateReader, key: str) -> tuple[str, ...]:
    text = saved.text(key)
    return tuple(text.split(_BETWEEN)) if text else ()
