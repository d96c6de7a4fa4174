"""The table of the speed benchmark."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

from bench.child import Json
from bench.markdown import table
from bench.workloads import SYSTEMS, WORKLOADS

Round: TypeAlias = Mapping[str, Mapping[str, float]]
"""What one round measured: figures by name, by system; a system that failed is missing."""

_PEERS = ("sb3", "sbx")


@dataclass(frozen=True, slots=True)
class Measurement:
    """All rounds of a workload.

    Attributes:
        rounds: in the order in which they were made.
        seconds: length of each measured span.
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


def speed_table(measurements: Mapping[str, Measurement]) -> str:
    """Render all workloads that were measured, in the order of the registry.

    Args:
        measurements: by name of the workload.
    """
    rows: list[list[str]] = []
    for name, workload in WORKLOADS.items():
        if name in measurements:
            found = measurements[name]
            rows += [_row(name, system, found, workload.unit) for system in workload.systems]
    if not rows:
        return "Nothing was measured yet."
    header = ["workload", "system", "speed", "x SB3", "x SBX", "warm after", "peak memory"]
    known = {name: found for name, found in measurements.items() if name in WORKLOADS}
    titles = [f"- `{name}`: {WORKLOADS[name].title}" for name in WORKLOADS if name in known]
    return "\n\n".join([table(header, rows, left=2), "\n".join(titles), _footer(known)])


def import_line(measured: Mapping[str, Sequence[float]]) -> str:
    """Render the import times.

    Args:
        measured: seconds by ``torch`` and ``rl_core``, one per repetition.
    """
    torch, ours = (statistics.median(measured[name]) for name in ("torch", "rl_core"))
    return (
        f"`import rl_core` adds {ours:.2f} s to the {torch:.2f} s of `import torch` "
        f"(medians of {len(measured['torch'])})."
    )


def _row(name: str, system: str, measurement: Measurement, unit: str) -> list[str]:
    rate = measurement.median(system, "rate")
    warm = measurement.median(system, "warm_up_seconds")
    memory = measurement.median(system, "peak_memory_mb")
    is_ours = system not in _PEERS
    ratios = [_ratio(measurement.ratios(system, peer)) if is_ours else "" for peer in _PEERS]
    return [
        f"`{name}`",
        SYSTEMS[system],
        "failed" if rate is None else f"{rate:,.0f} {unit}",
        *ratios,
        "-" if warm is None else f"{warm:.1f} s",
        "-" if memory is None else f"{memory:,.0f} MB",
    ]


def _ratio(ratios: Sequence[float]) -> str:
    if not ratios:
        return "-"
    each = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    return f"**{statistics.median(ratios):.2f}** ({each})"


def _footer(measurements: Mapping[str, Measurement]) -> str:
    by_setting: dict[str, list[str]] = {}
    for name, found in measurements.items():
        rounds = "one round" if len(found.rounds) == 1 else f"{len(found.rounds)} rounds"
        setting = f"medians of {rounds} of {found.seconds:g} s on {found.machine}."
        by_setting.setdefault(setting, []).append(f"`{name}`")
    return "\n".join(f"{', '.join(names)}: {setting}" for setting, names in by_setting.items())
