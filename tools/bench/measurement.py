"""What was measured of several systems in turn, and the files it is kept in."""

import json
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, cast

from bench.child import ChildError, Json
from bench.machine import measured_on

Figures: TypeAlias = Mapping[str, float]
"""What one process measured, by name."""

Round: TypeAlias = Mapping[str, Figures]
"""What one round measured, by system; a system that failed is missing."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """All rounds of a comparison.

    Attributes:
        rounds: in the order in which they were made.
        seconds: length of each measured span; 0 for whole runs.
        machine: what they were made on.
    """

    rounds: Sequence[Round]
    seconds: float
    machine: str

    def as_dict(self) -> dict[str, Json]:
        """Return plain data."""
        rounds = [{name: dict(figures) for name, figures in one.items()} for one in self.rounds]
        return {
            "machine": self.machine,
            "seconds": self.seconds,
            "rounds": cast("list[Json]", rounds),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Json]) -> "Measurement":
        """Read what `as_dict` returned."""
        return cls(
            rounds=cast("list[Round]", values["rounds"]),
            seconds=cast("float", values["seconds"]),
            machine=cast("str", values["machine"]),
        )

    def median(self, system: str, figure: str) -> float | None:
        """Return the median over rounds of a figure; None when the system failed in all."""
        values = [one[system][figure] for one in self.rounds if system in one]
        return statistics.median(values) if values else None

    def ratios(self, system: str, peer: str) -> list[float]:
        """Return how many times faster a system was than a peer, round by round."""
        return [
            one[system]["rate"] / one[peer]["rate"]
            for one in self.rounds
            if system in one and peer in one
        ]


@dataclass(frozen=True, slots=True)
class Found:
    """What one part of a benchmark measured.

    Attributes:
        values: to be kept.
        is_complete: whether nothing failed.
    """

    values: Json
    is_complete: bool


def measure_in_turn(
    name: str,
    systems: Mapping[str, Callable[[], Mapping[str, object]]],
    rounds: int,
    seconds: float,
    machine: str,
    describe: Callable[[Figures], str],
) -> Found:
    """Measure systems one after the other, round by round.

    Args:
        name: of what is compared, for messages.
        systems: what returns figures, by system, in the order of a round; a system that raises
            `ChildError` is missing in that round.
        rounds: how many.
        seconds: length of each measured span.
        machine: what it is made on.
        describe: put a system's figures in words.

    Returns:
        A `Measurement` as plain data.
    """
    measured: list[Round] = []
    for number in range(1, rounds + 1):
        one: dict[str, Figures] = {}
        for system, measure in systems.items():
            try:
                one[system] = cast("Figures", measure())
            except ChildError as error:
                print(f"{name} round {number}: {system} failed: {error}", flush=True)
                continue
            print(f"{name} round {number}: {system} {describe(one[system])}", flush=True)
        measured.append(one)
    is_complete = all(len(one) == len(systems) for one in measured)
    return Found(Measurement(measured, seconds, machine).as_dict(), is_complete)


def timed(call: Callable[[], object]) -> Figures:
    """Return the ``seconds`` that a call takes, and its ``rate`` per second."""
    start = time.perf_counter()
    call()
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "rate": 1.0 / seconds}


def measurements_of(results: Mapping[str, Json], names: Iterable[str]) -> dict[str, Measurement]:
    """Return those of the results that are measurements of these names."""
    return {
        name: Measurement.from_dict(cast("dict[str, Json]", results[name]))
        for name in names
        if name in results
    }


def ratio_cell(ratios: Sequence[float]) -> str:
    """Render the median of ratios, and those of each round."""
    if not ratios:
        return "-"
    each = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    return f"**{statistics.median(ratios):.2f}** ({each})"


def overview_cell(found: Measurement | None, system: str, *peers: str) -> str:
    """Render how many times faster a system was than a peer, with further peers in brackets."""
    ratios = [found.ratios(system, peer) for peer in peers] if found else [[]]
    first, *others = [f"{statistics.median(each):.2f}" if each else "-" for each in ratios]
    return " ".join((first, *(f"({other})" for other in others if other != "-")))


def settings_lines(measurements: Mapping[str, Measurement]) -> str:
    """Say how and on what was measured, with one line for all that have this in common."""
    by_setting: dict[str, list[str]] = {}
    machines: list[str] = []
    for name, found in measurements.items():
        rounds = "one round" if len(found.rounds) == 1 else f"{len(found.rounds)} rounds"
        span = f" of {found.seconds:g} s" if found.seconds else ""
        machine, _, threads = found.machine.partition("; threads ")
        setting = f"medians of {rounds}{span}, {threads} thread{'s' if threads != '1' else ''}."
        by_setting.setdefault(setting, []).append(f"`{name}`")
        machines.append(machine)
    lines = [f"- {', '.join(names)}: {setting}" for setting, names in by_setting.items()]
    return "\n".join((*lines, "", measured_on(machines)))


def read_results(path: Path) -> dict[str, Json]:
    """Read what `write_results` wrote; nothing where there is no file."""
    if not path.exists():
        return {}
    return cast("dict[str, Json]", json.loads(path.read_text(encoding="utf-8")))


def write_results(path: Path, results: Mapping[str, Json]) -> None:
    """Write results to a file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    temporary.replace(path)
