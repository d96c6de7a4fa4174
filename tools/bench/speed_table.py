"""The table of the speed benchmark."""

import statistics
from collections.abc import Mapping, Sequence

from bench.markdown import table
from bench.measurement import Measurement, Round, overview_cell, ratio_cell, settings_lines
from bench.suite import processor_table
from bench.workloads import PRODUCTS, SYSTEMS, WORKLOADS

_PEERS = {"sb3": "x SB3", "sbx": "x SBX"}


def speed_overview(measurements: Mapping[str, Mapping[str, Measurement]]) -> str:
    """Render how fast compiled training is beside its peers, and what the workloads are.

    Args:
        measurements: by processor, and by name of the workload.
    """
    columns = {
        processor: {
            f"`{name}`": overview_cell(found.get(name), "ours", *_PEERS) for name in WORKLOADS
        }
        for processor, found in measurements.items()
    }
    titles = [f"- `{name}`: {workload.title}" for name, workload in WORKLOADS.items()]
    return "\n\n".join((processor_table("workload", columns), "\n".join(titles)))


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
    header = ["workload", "system", "speed", *_PEERS.values(), "warm after", "peak memory"]
    known = {name: found for name, found in measurements.items() if name in WORKLOADS}
    limits = [_limit_line(name, found) for name, found in known.items() if _has_products(found)]
    parts = [table(header, rows, left=2), "\n".join(limits)]
    return "\n\n".join(part for part in (*parts, settings_lines(known)) if part)


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


def _has_products(measurement: Measurement) -> bool:
    return any(PRODUCTS in one for one in measurement.rounds)


def _limit_line(name: str, measurement: Measurement) -> str:
    """Say how many steps the machine's matrix products allow, and how many were made."""
    rounds = [one for one in measurement.rounds if PRODUCTS in one]
    flops, mkl, onednn = (
        statistics.median(one[PRODUCTS][figure] for one in rounds)
        for figure in ("flops", "mkl", "onednn")
    )
    limit = statistics.median(map(_limit, rounds))
    shares = {
        SYSTEMS[system]: [one[system]["rate"] / _limit(one) for one in rounds if system in one]
        for system in WORKLOADS[name].systems
    }
    reached = ", ".join(
        f"{title} {100.0 * statistics.median(each):.0f} %" for title, each in shares.items() if each
    )
    return (
        f"- Matrix-product limit of `{name}`: {flops / 1e6:.0f} MFLOP per step, at "
        f"{mkl / 1e9:.0f} GFLOP/s (MKL) or {onednn / 1e9:.0f} (oneDNN), the faster of which allows "
        f"{limit:,.0f} steps/s. Reached: {reached}."
    )


def _limit(one: Round) -> float:
    """Return the steps per second that the matrix products of a round allow."""
    found = one[PRODUCTS]
    return max(found["mkl"], found["onednn"]) / found["flops"]


def _row(name: str, system: str, measurement: Measurement, unit: str) -> list[str]:
    rate = measurement.median(system, "rate")
    warm = measurement.median(system, "warm_up_seconds")
    memory = measurement.median(system, "peak_memory_mb")
    is_ours = system not in _PEERS
    ratios = [ratio_cell(measurement.ratios(system, peer)) if is_ours else "" for peer in _PEERS]
    return [
        f"`{name}`",
        SYSTEMS[system],
        "failed" if rate is None else f"{rate:,.0f} {unit}",
        *ratios,
        "-" if warm is None else f"{warm:.1f} s",
        "-" if memory is None else f"{memory:,.0f} MB",
    ]
