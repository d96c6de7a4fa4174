"""Metrics as comma-separated values."""

import csv
from collections.abc import Mapping
from pathlib import Path

from rl_core.logger import Logger


class CsvLogger(Logger):
    """Write one row per logged step; the metrics of the first step become the columns.

    Args:
        path: File to write; an existing one is replaced.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._names: list[str] | None = None

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append a row; metrics without a column are left out."""
        is_first = self._names is None
        if self._names is None:
            self._names = sorted(metrics)
        with self._path.open("w" if is_first else "a", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            if is_first:
                writer.writerow(["step", *self._names])
            writer.writerow([step, *(metrics.get(name, "") for name in self._names)])

    def close(self) -> None:
        """Do nothing: every row is already written."""
