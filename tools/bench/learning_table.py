"""The table of the learning benchmark."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bench.markdown import table
from bench.plan import Key, PlanRow
from bench.results import Record
from rl_core.statistics import interquartile_mean, stratified_bootstrap_interval

_HEADER = (
    "algorithm",
    "environment",
    "steps",
    "command",
    "seeds",
    "mean",
    "IQM [95 % interval]",
    "target",
    "SB3 seeds",
    "SB3 mean",
    "SB3 IQM [95 % interval]",
    "steps/s",
    "SB3 steps/s",
)


@dataclass(frozen=True, slots=True)
class Summary:
    """What several runs with different seeds say together.

    Attributes:
        num_seeds: how many there are.
        mean: over seeds, of each seed's mean return.
        iqm: interquartile mean over the episodes of all seeds.
        interval: its 95 % bootstrap interval, whose strata are the seeds.
        steps_per_second: median over seeds.
    """

    num_seeds: int
    mean: float
    iqm: float
    interval: tuple[float, float]
    steps_per_second: float


def summarize(records: Sequence[Record], metric: str = "return") -> Summary:
    """Put the runs of a row together.

    Args:
        records: of one system, one per seed; at least one.
        metric: what the row is judged by. Of successes there is one figure per seed, so the
            interval is over seeds.
    """
    strata = [record.values(metric) for record in records]
    if metric == "success":
        strata = [np.concatenate(strata)]
    return Summary(
        num_seeds=len(records),
        mean=float(np.mean([values.mean() for values in strata])),
        iqm=float(interquartile_mean(np.concatenate(strata))),
        interval=stratified_bootstrap_interval(
            strata, interquartile_mean, generator=np.random.default_rng(0)
        ),
        steps_per_second=statistics.median(record.steps_per_second for record in records),
    )


def learning_table(rows: Sequence[PlanRow], records: Mapping[Key, Record]) -> str:
    """Render the rows of which anything was run.

    Args:
        rows: of all plans.
        records: finished runs; those that no row asks for are left out.
    """
    lines: list[list[str]] = []
    machines: dict[str, None] = {}
    for row in rows:
        found = {
            system: [
                records[key] for seed in row.seeds if (key := row.run(system, seed).key) in records
            ]
            for system in row.options
        }
        if any(found.values()):
            lines.append(
                _line(
                    row, {name: summarize(runs, row.metric) for name, runs in found.items() if runs}
                )
            )
            machines.update(
                dict.fromkeys(record.machine for runs in found.values() for record in runs)
            )
    if not lines:
        return "Nothing was run yet."
    measured = "\n".join(f"Measured on: {machine}." for machine in machines)
    return f"{table(_HEADER, lines, left=4)}\n\n{measured}"


def _line(row: PlanRow, summaries: Mapping[str, Summary]) -> list[str]:
    ours, sb3 = summaries.get("ours"), summaries.get("sb3")
    wanted = len(row.seeds)
    return [
        row.algorithm.upper(),
        f"`{row.env}`{', ' + row.note if row.note else ''}",
        _short_count(row.steps),
        f"`hatch run bench:learning --only {row.label}`",
        _seeds(ours, wanted),
        "-" if ours is None else f"{ours.mean:.1f}",
        _interval(ours),
        _target(row, ours) + (" (% success)" if row.metric == "success" else ""),
        _seeds(sb3, wanted),
        "-" if sb3 is None else f"{sb3.mean:.1f}",
        _interval(sb3),
        "-" if ours is None else f"{ours.steps_per_second:,.0f}",
        "-" if sb3 is None else f"{sb3.steps_per_second:,.0f}",
    ]


def _seeds(summary: Summary | None, wanted: int) -> str:
    found = 0 if summary is None else summary.num_seeds
    return str(found) if found == wanted else f"{found} of {wanted}"


def _interval(summary: Summary | None) -> str:
    if summary is None:
        return "-"
    low, high = summary.interval
    return f"{summary.iqm:.1f} [{low:.1f}, {high:.1f}]"


def _target(row: PlanRow, summary: Summary | None) -> str:
    target = f"at most {row.target:g}" if row.at_most else f"{row.target:g}"
    if summary is None:
        return target
    is_met = summary.mean <= row.target if row.at_most else summary.mean >= row.target
    return f"{target}: {'reached' if is_met else 'missed'}"


def _short_count(steps: int) -> str:
    for size, unit in ((1_000_000, "M"), (1_000, "k")):
        if steps >= size and steps % (size // 10) == 0:
            return f"{steps / size:g}{unit}"
    return str(steps)
