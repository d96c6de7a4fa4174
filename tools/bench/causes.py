"""What single differences do: Stable-Baselines3 with one of our ways, and ours with other options.

The runs of both systems as they are come from the learning benchmark.
"""

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

if __name__ == "__main__":  # run by path: make the package importable instead of its modules
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np

from bench.child import Json
from bench.comparison import (
    CELLS,
    comparison_cells,
    probability_of_improvement,
    training_scores,
)
from bench.learning import RESULTS, add_run_options, all_plans, run_missing
from bench.markdown import table, write_block
from bench.plan import (
    OURS,
    PEER,
    SYSTEMS,
    Key,
    PlanError,
    PlanRow,
    load_plans,
    select_rows,
    select_runs,
)
from bench.results import Record, read_records, records_of

_RESULTS = RESULTS.with_name("causes.jsonl")
_DIVISOR = ("population's standard deviation",)
_ON_POLICY = ("statistics once per update", *_DIVISOR)
_DQN = ("targets move after gradient steps",)
_PEERS_WAYS: Mapping[str, tuple[str, ...]] = {
    "dqn/CartPole-v1": _DQN,
    "dqn/LunarLander-v3": _DQN,
    "ppo/Pendulum-v1": _DIVISOR,  # which normalizes no observations
    "ppo/HalfCheetah-v5": _ON_POLICY,
    "ppo/Walker2d-v5": _ON_POLICY,
}
_AFTER: Mapping[str, Json] = {"recurrent_first": True}
_UNIFORM: Mapping[str, Json] = {"initial_weights": "uniform"}
_OUR_OPTIONS: Mapping[str, Mapping[str, Mapping[str, Mapping[str, Json]]]] = {
    "ppo/CartPole-v1 velocities hidden, LSTM": {
        "layers after the memory": {"actor": _AFTER},
        "uniform weights": {"actor": _UNIFORM},
        "layers after the memory, uniform weights": {"actor": {**_AFTER, **_UNIFORM}},
        "sequences as long as the rollout": {"storage": {"sequence_length": 32}},
    },
}
"""By row and by what they are called, options by section that are not those of the row."""

_HEADER = (
    *("row", "system", "changed"),
    *(cell.replace("peer", "unchanged") for cell in CELLS),
    *("while learning", "unchanged while learning", "P(better) while learning"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="causes", description=__doc__)
    parser.add_argument("--only", metavar="PATTERN", help="such as ppo/Pendulum*, 'statistics'")
    add_run_options(parser, _RESULTS)
    options = parser.parse_args(arguments)
    changed = changed_rows(load_plans(all_plans()))
    status = 0
    if not options.table:
        try:
            rows = [row for row, _ in changed]
            rows = select_rows(rows, options.only) if options.only else rows
        except PlanError as error:
            print(error, file=sys.stderr)
            return 2
        status = run_missing(select_runs(rows, SYSTEMS), options)
    records = {**read_records(RESULTS), **read_records(options.results)}
    write_block(options.page, "causes", causes_table(changed, records))
    return status


def changed_rows(rows: Iterable[PlanRow]) -> list[tuple[PlanRow, PlanRow]]:
    """Return rows of one system, in which one thing is changed, each with the unchanged row."""
    changed: list[tuple[PlanRow, PlanRow]] = []
    for row in rows:
        for way in _PEERS_WAYS.get(row.label, ()):
            options = {PEER: {**row.options[PEER], "as_ours": way}}
            changed.append((replace(row, note=way, options=options), row))
        for name, sections in _OUR_OPTIONS.get(row.label, {}).items():
            ours = cast("Mapping[str, Mapping[str, Json]]", row.options[OURS])
            merged = {
                key: {**ours.get(key, {}), **sections.get(key, {})} for key in {**ours, **sections}
            }
            changed.append((replace(row, note=name, preset=None, options={OURS: merged}), row))
    return changed


def causes_table(changed: Iterable[tuple[PlanRow, PlanRow]], records: Mapping[Key, Record]) -> str:
    """Render the rows of which both were run, on the same episodes.

    Args:
        changed: rows in which one thing is changed, each with the unchanged row.
        records: of both.
    """
    generator = np.random.default_rng(0)
    lines: list[list[str]] = []
    for row, plain in changed:
        (system,) = row.options
        runs, plain_runs = (
            [run for run in records_of(each, records)[system] if run.is_comparable]
            for each in (row, plain)
        )
        if min(len(runs), len(plain_runs)) < 2:
            continue
        with_change, without = (
            np.array([run.returns.mean() for run in each]) for each in (runs, plain_runs)
        )
        cells, _ = comparison_cells(with_change, without, generator)
        learning = ["-"] * 3
        if (curves := training_scores(runs, plain_runs)) is not None:
            means = [f"{each.mean():.1f}" for each in curves]
            learning = [*means, f"{probability_of_improvement(*curves):.2f}"]
        name = plain.peer if system == PEER else OURS
        lines.append([f"`{plain.label}`", name, row.note, *cells, *learning])
    return table(_HEADER, lines, left=3) if lines else "Nothing was run yet."


if __name__ == "__main__":
    sys.exit(main())
