"""Means of a loss's metrics that are summed where they are computed."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor


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
