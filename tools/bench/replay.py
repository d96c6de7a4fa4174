"""How fast replay buffers are, beside those of Stable-Baselines3 and cpprb, and how large.

Each round measures every system in turn, each in a fresh process that first fills its buffer. Run
nothing else meanwhile.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

if __name__ == "__main__":  # run by path: make the package importable instead of its modules
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from bench.child import ChildError, Json, run_child, termination_interrupts
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
from bench.replay_operations import MEMORY, OPERATIONS, SYSTEMS
from bench.replay_table import memory_table, replay_table

_HERE = Path(__file__).resolve().parent
_RESULTS = _HERE / "results" / "replay.json"
_PAGE = _HERE.parents[1] / "docs" / "pages" / "benchmarks.md"
_MILLION = 1_000_000
_THREADS = 1
_MEMORY = "memory"


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    chosen = options.only or [*OPERATIONS, _MEMORY]
    results = read_results(options.results)
    status = 0
    try:
        with termination_interrupts():
            for name in OPERATIONS:
                if options.table or name not in chosen:
                    continue
                found = measure_operation(name, options.rounds, options.seconds, options.size)
                results[name] = found.as_dict()
                if any(len(one) < len(OPERATIONS[name].systems) for one in found.rounds):
                    status = 1
                write_results(options.results, results)
            if not options.table and _MEMORY in chosen:
                memory = measure_memory()
                results[_MEMORY] = cast("Json", memory)
                if any(len(memory[data]) < len(systems) for data, systems in MEMORY.items()):
                    status = 1
                write_results(options.results, results)
    except KeyboardInterrupt:
        print("stopped; the operations that were measured to their end are kept", flush=True)
        return 130
    content = render(results)
    print(f"\n{content}\n")
    write_block(options.page, "replay", content)
    return status


def measure_operation(name: str, rounds: int, seconds: float, size: int) -> Measurement:
    """Measure all systems in an operation, one after the other, round by round."""
    jobs = {
        system: Job(
            SYSTEMS[system],
            "replay",
            {"operation": name, "system": system, "seconds": seconds, "size": size},
            _THREADS,
        )
        for system in OPERATIONS[name].systems
    }

    def describe(figures: Figures) -> str:
        return f"{1e6 / figures['rate']:,.1f} µs with {figures['transitions']:,.0f} transitions"

    found = measure_in_turn(name, jobs, rounds, describe)
    return Measurement(found, seconds, machine_line(_THREADS))


def measure_memory() -> dict[str, dict[str, float]]:
    """Count the bytes of a million transitions, by their name and by system."""
    found: dict[str, dict[str, float]] = {data: {} for data in MEMORY}
    for data, systems in MEMORY.items():
        for system in systems:
            payload: dict[str, Json] = {"data": data, "system": system, "size": _MILLION}
            try:
                answer = run_child("replay-bytes", payload, _THREADS)
            except ChildError as error:
                print(f"memory of {data}: {SYSTEMS[system]} failed: {error}", flush=True)
                continue
            found[data][system] = cast("float", answer["bytes"])
            count = found[data][system]
            print(f"memory of {data}: {SYSTEMS[system]} {count:,.0f} bytes", flush=True)
    return found


def render(results: Mapping[str, Json]) -> str:
    """Render everything that was measured."""
    measurements = {
        name: Measurement.from_dict(cast("dict[str, Json]", values))
        for name, values in results.items()
        if name in OPERATIONS
    }
    parts = [replay_table(measurements)]
    if _MEMORY in results:
        parts.append(memory_table(cast("dict[str, dict[str, float]]", results[_MEMORY])))
    return "\n\n".join(parts)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="replay", description=__doc__)
    parts = [*OPERATIONS, _MEMORY]
    parser.add_argument("--only", action="append", choices=parts, help="may be repeated")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="measured span of each system")
    parser.add_argument("--size", type=int, default=_MILLION, help="transitions in each buffer")
    parser.add_argument("--table", action="store_true", help="measure nothing, rewrite the table")
    parser.add_argument("--results", type=Path, default=_RESULTS, help="where figures are kept")
    parser.add_argument("--page", type=Path, default=_PAGE, help="where the table is written")
    return parser


if __name__ == "__main__":
    sys.exit(main())
