"""How fast the toolbox trains, beside Stable-Baselines3 and SBX.

Each round measures every system in turn, each in a fresh process, from when it is warm. Speeds of
machines drift, so the ratios within a round count more than the figures. Run nothing else
meanwhile: two busy processes on two cores slow each other many times over.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import cast

if __name__ == "__main__":  # run by path: make the package importable instead of its modules
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from bench.child import Json, run_child
from bench.machine import machine_line
from bench.measurement import Figures, Found, measure_in_turn, measurements_of
from bench.speed_table import import_line, speed_overview, speed_table
from bench.suite import Part, run_suite, suite_parser
from bench.workloads import PRODUCTS, WORKLOADS

_IMPORT = "import"
_IMPORT_REPETITIONS = 5
_PRODUCT_SECONDS = 2.0


def main(arguments: Sequence[str] | None = None) -> int:
    parts: dict[str, Part] = {name: partial(measure_workload, name) for name in WORKLOADS}
    parts[_IMPORT] = measure_import
    parser = suite_parser("speed", __doc__, parts, seconds=20.0)
    parser.add_argument("--threads", type=int, help="instead of each workload's own")
    parser.add_argument("--device", default="cpu", help="of the networks, such as cuda")
    return run_suite("speed", parts, render, parser.parse_args(arguments), overview)


def measure_workload(name: str, options: argparse.Namespace) -> Found:
    """Measure all systems of a workload, one after the other, round by round."""
    workload = WORKLOADS[name]
    threads, seconds = options.threads or workload.threads, options.seconds
    shared = {"name": name, "seconds": seconds, "threads": threads, "device": options.device}
    systems = {
        system: partial(
            run_child, "bench.worker:measure_speed", {**shared, "system": system}, threads
        )
        for system in workload.systems
    }
    if workload.has_product_limit and options.device == "cpu":
        payload: dict[str, Json] = {"workload": name, "seconds": min(seconds, _PRODUCT_SECONDS)}
        systems[PRODUCTS] = partial(run_child, "bench.products:measure", payload, threads)

    def describe(figures: Figures) -> str:
        if "flops" in figures:
            return f"{figures['mkl'] / 1e9:.0f} and {figures['onednn'] / 1e9:.0f} GFLOP/s"
        warm = figures["warm_up_seconds"]
        return f"{figures['rate']:,.0f} {workload.unit}, warm after {warm:.1f} s"

    machine = machine_line(threads, options.device)
    return measure_in_turn(name, systems, options.rounds, seconds, machine, describe)


def measure_import(options: argparse.Namespace) -> Found:
    """Measure import times several times over; the first, from a cold disk, does not count."""
    repetitions = [
        run_child("bench.worker:measure_import", {}, 1) for _ in range(_IMPORT_REPETITIONS + 1)
    ][1:]
    found = {name: [one[name] for one in repetitions] for name in ("torch", "rl_core")}
    return Found(cast("Json", found), is_complete=True)


def overview(results: Mapping[str, Mapping[str, Json]]) -> str:
    """Render how every processor's ratios compare."""
    return speed_overview(
        {processor: measurements_of(found, WORKLOADS) for processor, found in results.items()}
    )


def render(results: Mapping[str, Json]) -> str:
    """Render everything that was measured."""
    parts = [speed_table(measurements_of(results, WORKLOADS))]
    if _IMPORT in results:
        parts.append(import_line(cast("dict[str, list[float]]", results[_IMPORT])))
    return "\n\n".join(parts)


if __name__ == "__main__":
    sys.exit(main())
