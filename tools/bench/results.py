"""The record of finished runs: one JSON object per line, written as each run ends."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt

from bench.child import Json
from bench.episodes import FIRST_SEED
from bench.plan import Key, PlanRow, Run, options_digest


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """A finished run.

    Attributes:
        run: what was run.
        returns: shape `(episodes,)`, of the final evaluation.
        steps_per_second: of the training.
        machine: what it ran on.
        success_rate: share of the final evaluation's episodes; None where nothing told it.
        curve: shape `(points, 2)`: step, and mean return of the last 100 training episodes then;
            no points where none were noted.
        is_comparable: whether its episodes are those that `bench.episodes` starts.
        is_timed: whether the machine is known to have been its own.
    """

    run: Run
    returns: npt.NDArray[np.float64]
    steps_per_second: float
    machine: str
    success_rate: float | None = None
    curve: npt.NDArray[np.float64] = field(default_factory=lambda: np.empty((0, 2)))
    is_comparable: bool = False
    is_timed: bool = False

    def values(self, metric: str) -> npt.NDArray[np.float64]:
        """Return what a row is judged by: returns, or 100 for a success and 0 for a failure.

        Args:
            metric: one of `bench.plan.METRICS`.

        Returns:
            Shape `(episodes,)`; `(0,)` where successes are asked for and nothing told them.
        """
        if metric == "return":
            return self.returns
        if self.success_rate is None:
            return np.empty(0)
        num_episodes = len(self.returns)
        num_successes = round(self.success_rate * num_episodes)
        return np.where(np.arange(num_episodes) < num_successes, 100.0, 0.0)


def records_of(row: PlanRow, records: Mapping[Key, Record]) -> dict[str, list[Record]]:
    """Return a row's finished runs by system, in the order of its seeds; maybe none of a system."""
    return {
        system: [
            records[key] for seed in row.seeds if (key := row.run(system, seed).key) in records
        ]
        for system in row.options
    }


def append_record(path: Path, run: Run, result: Mapping[str, Json]) -> None:
    """Add a finished run to the file, and wait until the disk has it.

    Args:
        path: of the file; it and its directory need not exist.
        run: what was run.
        result: its outcome, and where it was run.
    """
    line = {**run.as_dict(), "digest": options_digest(run.options), **result}
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        file.seek(0)
        content = file.read()
        # A line torn by a crash is no record.
        file.truncate(content.rfind(b"\n") + 1)
        file.write(json.dumps(line, allow_nan=False).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def read_records(path: Path) -> dict[Key, Record]:
    """Read the file; of two records of the same run the later one counts.

    Args:
        path: of the file, which need not exist.

    Raises:
        ValueError: when a line is damaged; a torn last line is left out.
    """
    return {
        key: Record(
            run=Run.from_dict(line),
            returns=np.asarray(line["returns"], dtype=np.float64),
            steps_per_second=cast("float", line["steps_per_second"]),
            machine=cast("str", line["machine"]),
            success_rate=cast("float | None", line.get("success_rate")),
            curve=np.asarray(line.get("curve", []), dtype=np.float64).reshape(-1, 2),
            is_comparable=line.get("first_seed") == FIRST_SEED,
            is_timed=bool(line.get("is_timed", False)),
        )
        for key, line in read_lines(path).items()
    }


def read_lines(path: Path) -> dict[Key, dict[str, Json]]:
    """Read the file as plain data, as `read_records` does.

    Raises:
        ValueError: when a line is damaged; a torn last line is left out.
    """
    if not path.exists():
        return {}
    lines: dict[Key, dict[str, Json]] = {}
    whole, _, _ = path.read_text(encoding="utf-8").rpartition("\n")
    for number, text in enumerate(whole.splitlines(), start=1):
        try:
            line = cast("dict[str, Json]", json.loads(text))
            missing = {"returns", "steps_per_second", "machine"} - set(line)
            if missing:
                raise KeyError(*missing)
            lines[Run.from_dict(line).key] = line
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path.name}, line {number} is no record: {error!r}") from error
    return lines
