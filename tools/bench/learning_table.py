"""The table of the learning benchmark."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bench.machine import measured_on
from bench.markdown import table
from bench.plan import OURS, PEER, Key, PlanRow
from bench.results import Record, records_of
from rl_train.evaluation import interquartile_mean, stratified_bootstrap_interval

_HEADER = (
    "algorithm",
    "environment",
    "steps",
    "one seed of ours",
    "seeds",
    "mean",
    "IQM [95 % interval]",
    "target",
    "peer",
    "peer seeds",
    "peer mean",
    "peer IQM [95 % interval]",
    "steps/s",
    "peer steps/s",
)


@dataclass(frozen=True, slots=True)
class Summary:
    """What several runs with different seeds say together.

    Attributes:
        num_seeds: how many there are.
        mean: over seeds, of each seed's mean return.
        centre: interquartile mean over seeds, of each seed's mean return.
        interval: its 95 % bootstrap interval, over seeds.
        steps_per_second: median over the seeds that were timed; None if none was.
    """

    num_seeds: int
    mean: float
    centre: float
    interval: tuple[float, float]
    steps_per_second: float | None


def summarize(records: Sequence[Record], metric: str = "return") -> Summary:
    """Put the runs of a row together.

    Args:
        records: of one system, one per seed; at least one.
        metric: what the row is judged by.
    """
    means = np.array([record.values(metric).mean() for record in records])
    speeds = [record.steps_per_second for record in records if record.is_timed]
    return Summary(
        num_seeds=len(records),
        mean=float(means.mean()),
        centre=float(interquartile_mean(means)),
        interval=stratified_bootstrap_interval(
            [means], interquartile_mean, generator=np.random.default_rng(0)
        ),
        steps_per_second=statistics.median(speeds) if speeds else None,
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
            system: [run for run in runs if len(run.values(row.metric))]
            for system, runs in records_of(row, records).items()
        }
        if any(found.values()):
            summaries = {name: summarize(runs, row.metric) for name, runs in found.items() if runs}
            lines.append(_line(row, summaries))
            machines.update(dict.fromkeys(run.machine for runs in found.values() for run in runs))
    if not lines:
        return "Nothing was run yet."
    return f"{table(_HEADER, lines, left=4)}\n\n{measured_on(machines)}"


def _line(row: PlanRow, summaries: Mapping[str, Summary]) -> list[str]:
    ours, peer = summaries.get(OURS), summaries.get(PEER)
    unit = " %" if row.metric == "success" else ""
    return [
        row.written,
        f"`{row.env}`{', ' + row.note if row.note else ''}",
        short_count(row.steps),
        f"`{row.train_command}`",
        _seeds(row, OURS, ours),
        _mean_cell(ours, unit),
        _interval(ours, unit),
        _target(row, ours, peer),
        row.peer,
        _seeds(row, PEER, peer),
        _mean_cell(peer, unit),
        _interval(peer, unit),
        _speed(ours),
        _speed(peer),
    ]


def _seeds(row: PlanRow, system: str, summary: Summary | None) -> str:
    if system not in row.options:
        return "-"
    found, wanted = 0 if summary is None else summary.num_seeds, len(row.seeds)
    return str(found) if found == wanted else f"{found} of {wanted}"


def _speed(summary: Summary | None) -> str:
    if summary is None or summary.steps_per_second is None:
        return "-"
    return f"{summary.steps_per_second:,.0f}"


def _mean_cell(summary: Summary | None, unit: str) -> str:
    return "-" if summary is None else f"{summary.mean:.1f}{unit}"


def _interval(summary: Summary | None, unit: str) -> str:
    if summary is None:
        return "-"
    low, high = summary.interval
    return f"{summary.centre:.1f}{unit} [{low:.1f}, {high:.1f}]"


def _target(row: PlanRow, summary: Summary | None, peer: Summary | None) -> str:
    if row.target is None:
        return "-"
    if isinstance(row.target, str):
        wanted = f"not below {row.peer}"
        if summary is None or peer is None:
            return wanted
        is_met = summary.interval[1] >= peer.interval[0]
        return f"{wanted}: {'reached' if is_met else 'missed'}"
    target = f"{row.target:g}{' % success' if row.metric == 'success' else ''}"
    target = f"at most {target}" if row.at_most else target
    if summary is None:
        return target
    is_met = summary.mean <= row.target if row.at_most else summary.mean >= row.target
    return f"{target}: {'reached' if is_met else 'missed'}"


def short_count(steps: int) -> str:
    """Write a number of steps short, such as 100k."""
    for size, unit in ((1_000_000, "M"), (1_000, "k")):
        if steps >= size and steps % (size // 10) == 0:
            return f"{steps / size:g}{unit}"
    return str(steps)
