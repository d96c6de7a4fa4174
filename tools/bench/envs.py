"""Steps per second of every vectorizer, beside those of Gymnasium, Stable-Baselines3 and EnvPool.

Each system steps the same environments with the same actions in a process of its own; what
`VecEnv` adds to a step of another vectorizer is measured by turns in one process. Run nothing else
meanwhile. The whole takes some 20 minutes.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

if __name__ == "__main__":  # run by path: make the package importable instead of its modules
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from bench.child import Json, run_child
from bench.machine import machine_line
from bench.markdown import table
from bench.measurement import (
    Found,
    Measurement,
    measure_in_turn,
    measurements_of,
    overview_cell,
    settings_lines,
)
from bench.suite import Part, processor_table, run_suite, suite_parser

ENVS: Mapping[str, str | None] = {
    "cartpole": "CartPole-v1",
    "half-cheetah": "HalfCheetah-v5",
    "pong": "ALE/Pong-v5",
    "millisecond": None,
}
"""Ids by name; the last one sleeps for 1 ms in each step."""

COUNTS = (1, 8, 32)
"""Numbers of environments."""

PARTS = {f"{env}-{count}": (env, count) for env in ENVS for count in COUNTS}
"""What is measured, by the name that the command line takes."""

SYSTEMS: Mapping[str, str] = {
    "ours-sync": "ours, sync",
    "ours-async": "ours, async",
    "ours-cores": "ours, async, one process per core",
    "ours-native": "ours, native",
    "ours-envpool": "ours, EnvPool",
    "gymnasium-sync": "Gymnasium, sync",
    "gymnasium-async": "Gymnasium, async",
    "gymnasium-native": "Gymnasium, native",
    "sb3-dummy": "SB3, DummyVecEnv",
    "sb3-subproc": "SB3, SubprocVecEnv",
    "envpool": "EnvPool",
}
"""A title for each."""

ADDED = "added"
"""The part that measures what `VecEnv` adds to a step."""

ADDED_TO: Mapping[str, str] = {
    "ours-sync": "gymnasium-sync",
    "ours-native": "gymnasium-native",
    "ours-envpool": "envpool",
}
"""The bare vectorizer by ours."""

_ADDED_COUNT = 8
_ADDED_GOAL_US = 10.0

_NATIVE = ("cartpole",)
_POOLED = ("cartpole", "half-cheetah", "pong")


def systems_of(env: str) -> list[str]:
    """Return the systems that have an environment."""
    lacks_native, lacks_pool = env not in _NATIVE, env not in _POOLED
    return [
        system
        for system in SYSTEMS
        if not (lacks_native and system.endswith("native"))
        and not (lacks_pool and system.endswith("envpool"))
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parts: dict[str, Part] = {name: partial(measure_part, *of) for name, of in PARTS.items()}
    parts[ADDED] = measure_added
    parser = suite_parser("envs", __doc__, parts, seconds=1.5)
    parser.set_defaults(rounds=2)
    parser.add_argument("--system", action="append", choices=SYSTEMS, help="may be repeated")
    return run_suite("envs", parts, render, parser.parse_args(arguments), overview)


def measure_part(env: str, count: int, options: argparse.Namespace) -> Found:
    """Measure all systems with a number of environments."""
    shared = {"env": env, "count": count, "seconds": options.seconds}
    systems = {
        system: partial(run_child, "bench.envs_run:measure", {**shared, "system": system}, 1)
        for system in options.system or systems_of(env)
    }
    return measure_in_turn(
        f"{env} x {count}",
        systems,
        options.rounds,
        options.seconds,
        machine_line(1),
        lambda figures: f"{figures['rate']:,.0f} steps/s",
    )


def measure_added(options: argparse.Namespace) -> Found:
    """Measure what `VecEnv` adds to a step of other vectorizers."""
    shared = {"count": _ADDED_COUNT, "seconds": options.seconds}
    systems = {
        system: partial(run_child, "bench.envs_run:measure_added", {**shared, "system": system}, 1)
        for system in ADDED_TO
    }
    return measure_in_turn(
        ADDED,
        systems,
        options.rounds,
        options.seconds,
        machine_line(1),
        lambda figures: f"{figures['added_us']:.1f} us on {figures['bare_us']:.1f}",
    )


def overview(results: Mapping[str, Mapping[str, Json]]) -> str:
    """Render how our processes compare with others, and what is added to a step, by processor."""
    return processor_table("environment", {name: _cells(kept) for name, kept in results.items()})


def _cells(results: Mapping[str, Json]) -> dict[str, str]:
    found = measurements_of(results, [*PARTS, ADDED])
    cells = {
        f"`{env}`, {count} at once": overview_cell(
            found.get(name), "ours-async", "sb3-subproc", "gymnasium-async"
        )
        for name, (env, count) in PARTS.items()
    }
    added = found.get(ADDED)
    for system, bare_system in ADDED_TO.items():
        microseconds = added.median(system, "added_us") if added else None
        told = "-" if microseconds is None else f"{microseconds:.1f} µs"
        cells[f"added to a step of {SYSTEMS[bare_system]}"] = told
    return cells


def render(results: Mapping[str, Json]) -> str:
    """Render everything that was measured."""
    found = measurements_of(results, PARTS)
    added = measurements_of(results, [ADDED])
    if not found and not added:
        return "Nothing was measured yet."
    parts = [_rates(found), *map(_added_line, added.values())]
    return "\n\n".join(part for part in (*parts, settings_lines({**found, **added})) if part)


def _rates(found: Mapping[str, Measurement]) -> str:
    rows = []
    for env in ENVS:
        for system in systems_of(env):
            rates = [
                found[name].median(system, "rate") if (name := f"{env}-{count}") in found else None
                for count in COUNTS
            ]
            if any(rate is not None for rate in rates):
                cells = ["-" if rate is None else f"{rate:,.0f}" for rate in rates]
                rows.append([f"`{env}`", SYSTEMS[system], *cells])
    head = ["environment", "system", *(f"{count} at once" for count in COUNTS)]
    return table(head, rows, left=2) if rows else ""


def _added_line(found: Measurement) -> str:
    told = [
        f"{added:.1f} µs to the {bare:.1f} of {SYSTEMS[bare_system]}"
        for system, bare_system in ADDED_TO.items()
        if (added := found.median(system, "added_us")) is not None
        and (bare := found.median(system, "bare_us")) is not None
    ]
    return (
        f"To a step of {_ADDED_COUNT} `cartpole`, `VecEnv` adds {', '.join(told)} "
        f"(goal: at most {_ADDED_GOAL_US:g})."
    )


if __name__ == "__main__":
    sys.exit(main())
