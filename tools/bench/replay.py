"""How fast replay buffers are, beside those of Stable-Baselines3 and cpprb, and how large.

Each round measures every system in turn, each in a fresh process that first fills its buffer. Run
nothing else meanwhile.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import cast

if __name__ == "__main__":  # run by path: make the package importable instead of its modules
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from bench.child import ChildError, Json, run_child
from bench.machine import machine_line
from bench.measurement import Figures, Found, measure_in_turn, measurements_of
from bench.replay_operations import MEMORY, OPERATIONS, SYSTEMS
from bench.replay_table import memory_table, replay_overview, replay_table
from bench.suite import Part, run_suite, suite_parser

_MILLION = 1_000_000
_THREADS = 1
_MEMORY = "memory"


def main(arguments: Sequence[str] | None = None) -> int:
    parts: dict[str, Part] = {name: partial(measure_operation, name) for name in OPERATIONS}
    parts[_MEMORY] = measure_memory
    parser = suite_parser("replay", __doc__, parts, seconds=3.0)
    parser.add_argument("--size", type=int, default=_MILLION, help="transitions in each buffer")
    return run_suite("replay", parts, render, parser.parse_args(arguments), overview)


def measure_operation(name: str, options: argparse.Namespace) -> Found:
    """Measure all systems in an operation, one after the other, round by round."""
    shared = {"name": name, "seconds": options.seconds, "size": options.size}
    systems = {
        system: partial(
            run_child, "bench.replay_run:measure", {**shared, "system": system}, _THREADS
        )
        for system in OPERATIONS[name].systems
    }

    def describe(figures: Figures) -> str:
        return f"{1e6 / figures['rate']:,.1f} µs with {figures['transitions']:,.0f} transitions"

    machine = machine_line(_THREADS)
    return measure_in_turn(name, systems, options.rounds, options.seconds, machine, describe)


def measure_memory(options: argparse.Namespace) -> Found:
    """Count the bytes of a million transitions, by their name and by system."""
    found: dict[str, dict[str, float]] = {data: {} for data in MEMORY}
    for data, systems in MEMORY.items():
        for system in systems:
            payload: dict[str, Json] = {"data": data, "system": system, "size": _MILLION}
            try:
                answer = run_child("bench.replay_run:count_bytes", payload, _THREADS)
            except ChildError as error:
                print(f"memory of {data}: {SYSTEMS[system]} failed: {error}", flush=True)
                continue
            found[data][system] = cast("float", answer["bytes"])
            count = found[data][system]
            print(f"memory of {data}: {SYSTEMS[system]} {count:,.0f} bytes", flush=True)
    is_complete = all(len(found[data]) == len(systems) for data, systems in MEMORY.items())
    return Found(cast("Json", found), is_complete)


def overview(results: Mapping[str, Mapping[str, Json]]) -> str:
    """Render how every processor's ratios compare."""
    return replay_overview(
        {processor: measurements_of(found, OPERATIONS) for processor, found in results.items()}
    )


def render(results: Mapping[str, Json]) -> str:
    """Render everything that was measured."""
    parts = [replay_table(measurements_of(results, OPERATIONS))]
    if _MEMORY in results:
        parts.append(memory_table(cast("dict[str, dict[str, float]]", results[_MEMORY])))
    return "\n\n".join(parts)


if __name__ == "__main__":
    sys.exit(main())
