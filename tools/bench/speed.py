"""How fast the toolbox trains, beside Stable-Baselines3 and SBX.

Each round measures every system in turn, each in a fresh process, from when it is warm. Speeds of
machines drift, so the ratios within a round count more than the figures. Run nothing else
meanwhile: two busy processes on two cores slow each other many times over.
"""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

if __name__ == "__main__":  # run by path: make the package importable instead of its modules
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from bench.child import Json, run_child, termination_interrupts
from bench.machine import machine_line
from bench.markdown import write_block
from bench.measurement import (
    Figures,
    Job,
    Measurement,
    measure_in_turn,
    read_results,
    write_results,
)
from bench.speed_table import import_line, speed_table
from bench.workloads import ON_ALL_CORES, PRODUCTS, SYSTEMS, WORKLOADS

_HERE = Path(__file__).resolve().parent
_RESULTS = _HERE / "results" / "speed.json"
_PAGE = _HERE.parents[1] / "docs" / "pages" / "benchmarks.md"
_IMPORT_REPETITIONS = 5
_PRODUCT_SECONDS = 2.0


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    chosen = [name for name in WORKLOADS if not options.only or name in options.only]
    results = read_results(options.results)
    status = 0
    try:
        with termination_interrupts():
            for name in [] if options.table else chosen:
                threads = options.threads or WORKLOADS[name].threads
                found = measure_workload(name, options.rounds, options.seconds, threads)
                results[name] = found.as_dict()
                if not is_complete(name, found):
                    status = 1
                write_results(options.results, results)
            if not options.table and not options.only:
                results["import"] = measure_import()
                write_results(options.results, results)
    except KeyboardInterrupt:
        print("stopped; the workloads that were measured to their end are kept", flush=True)
        return 130
    content = render(results)
    print(f"\n{content}\n")
    write_block(options.page, "speed", content)
    return status


def measure_workload(name: str, rounds: int, seconds: float, threads: int) -> Measurement:
    """Measure all systems of a workload, one after the other, round by round."""
    workload = WORKLOADS[name]
    jobs: dict[str, Job] = {}
    for system in workload.systems:
        own = (os.cpu_count() or 1) if system.endswith(ON_ALL_CORES) else threads
        job: dict[str, Json] = {"workload": name, "system": system, "seconds": seconds}
        jobs[system] = Job(SYSTEMS[system], "speed", {**job, "threads": own}, own)
    if workload.is_bound_by_products:
        payload: dict[str, Json] = {"workload": name, "seconds": min(seconds, _PRODUCT_SECONDS)}
        jobs[PRODUCTS] = Job("matrix products", "products", payload, threads)

    def describe(figures: Figures) -> str:
        if "flops" in figures:
            return f"{figures['mkl'] / 1e9:.0f} and {figures['onednn'] / 1e9:.0f} GFLOP/s"
        warm = figures["warm_up_seconds"]
        return f"{figures['rate']:,.0f} {workload.unit}, warm after {warm:.1f} s"

    found = measure_in_turn(name, jobs, rounds, describe)
    return Measurement(found, seconds, machine_line(threads))


def is_complete(name: str, measurement: Measurement) -> bool:
    """Return whether nothing failed in any round of a workload."""
    workload = WORKLOADS[name]
    expected = len(workload.systems) + workload.is_bound_by_products
    return all(len(one) == expected for one in measurement.rounds)


def measure_import() -> dict[str, Json]:
    """Measure import times several times over; the first, from a cold disk, does not count."""
    repetitions = [run_child("import", {}, 1) for _ in range(_IMPORT_REPETITIONS + 1)][1:]
    return {name: [one[name] for one in repetitions] for name in ("torch", "rl_core")}


def render(results: Mapping[str, Json]) -> str:
    """Render everything that was measured."""
    measurements = {
        name: Measurement.from_dict(cast("dict[str, Json]", values))
        for name, values in results.items()
        if name in WORKLOADS
    }
    parts = [speed_table(measurements)]
    if "import" in results:
        parts.append(import_line(cast("dict[str, list[float]]", results["import"])))
    return "\n\n".join(parts)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="speed", description=__doc__)
    parser.add_argument("--only", action="append", choices=list(WORKLOADS), help="may be repeated")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0, help="measured span of each system")
    parser.add_argument("--threads", type=int, help="instead of each workload's own")
    parser.add_argument("--table", action="store_true", help="measure nothing, rewrite the table")
    parser.add_argument("--results", type=Path, default=_RESULTS, help="where figures are kept")
    parser.add_argument("--page", type=Path, default=_PAGE, help="where the table is written")
    return parser


if __name__ == "__main__":
    sys.exit(main())
