"""What single differences do: Stable-Baselines3 as it is, and with one of our ways.

The runs of Stable-Baselines3 as it is, and of ours, are those of the learning benchmark.
"""

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

if __name__ == "__main__":  # run by path: make the package importable instead of its modules
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np

from bench.comparison import CELLS, comparison_cells
from bench.learning import RESULTS, add_run_options, all_plans, run_missing
from bench.markdown import table, write_block
from bench.plan import PEER, Key, PlanError, PlanRow, load_plans, select_rows, select_runs
from bench.results import Record, read_records, records_of

_RESULTS = RESULTS.with_name("causes.jsonl")
_DIVISOR = ("population's standard deviation",)
_ON_POLICY = ("statistics once per update", *_DIVISOR)
_DQN = ("targets move after gradient steps",)
_WAYS: Mapping[str, tuple[str, ...]] = {
    "dqn/CartPole-v1": _DQN,
    "dqn/LunarLander-v3": _DQN,
    "ppo/Pendulum-v1": _DIVISOR,  # which normalizes no observations
    "ppo/HalfCheetah-v5": _ON_POLICY,
    "ppo/Walker2d-v5": _ON_POLICY,
}
_HEADER = ("row", "SB3 with our way", *CELLS)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="causes", description=__doc__)
    parser.add_argument("--only", metavar="PATTERN", help="such as sac/Pendulum*, 'statistics'")
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
        status = run_missing(select_runs(rows, [PEER]), options)
    records = {**read_records(RESULTS), **read_records(options.results)}
    write_block(options.page, "causes", causes_table(changed, records))
    return status


def changed_rows(rows: Iterable[PlanRow]) -> list[tuple[PlanRow, PlanRow]]:
    """Return rows with one of our ways, each with the row that it differs from."""
    return [
        (replace(row, note=way, options={PEER: {**row.options[PEER], "as_ours": way}}), row)
        for row in rows
        for way in _WAYS.get(row.label, ())
    ]


def causes_table(changed: Iterable[tuple[PlanRow, PlanRow]], records: Mapping[Key, Record]) -> str:
    """Render the rows of which both were run, on the same episodes.

    Args:
        changed: rows with one of our ways, each with the row that it differs from.
        records: of both.
    """
    generator = np.random.default_rng(0)
    lines: list[list[str]] = []
    for row, plain in changed:
        with_way, without = (
            np.array(
                [run.returns.mean() for run in records_of(each, records)[PEER] if run.is_comparable]
            )
            for each in (row, plain)
        )
        if min(len(with_way), len(without)) < 2:
            continue
        cells, _ = comparison_cells(with_way, without, generator)
        lines.append([f"`{plain.label}`", row.note, *cells])
    return table(_HEADER, lines, left=2) if lines else "Nothing was run yet."


if __name__ == "__main__":
    sys.exit(main())
