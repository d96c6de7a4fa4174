"""Metrics as comma-separated values."""

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rl_core.logger import Logger


class CsvLogger(Logger):
    """Write one row per logged step; the metrics of the first step become the columns.

    Args:
        path: File to write; a new run replaces an existing one.
        resume_step: Step of the checkpoint that a run resumes from. The rows up to it stay, and
            those after it are dropped, because the run logs these steps again.
    """

    def __init__(self, path: str | Path, resume_step: int | None = None) -> None:
        self._path = Path(path)
        rows: list[list[str]] = []
        if resume_step is not None and self._path.exists():
            with self._path.open(newline="", encoding="utf-8") as file:
                rows = list(csv.reader(file))
            rows[1:] = [row for row in rows[1:] if int(row[0]) <= resume_step]
        self._columns = rows[0] if rows else []
        self._write("w", rows)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append a row; metrics without a column are left out."""
        if not self._columns:
            self._columns = ["step", *sorted(metrics)]
            self._write("a", [self._columns])
        row = {"step": step, **metrics}
        self._write("a", [[row.get(name, "") for name in self._columns]])

    def close(self) -> None:
        """Do nothing: every row is already written."""

    def _write(self, mode: str, rows: Iterable[Sequence[object]]) -> None:
        with self._path.open(mode, newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(rows)
