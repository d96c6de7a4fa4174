"""Whether algorithms learn with their defaults: `rl train ALGO ENV` without any options.

No default was chosen by runs with these seeds, nor on LunarLander or InvertedPendulum, which were
named before anything was run there with defaults. A record does not say what the defaults were,
only the commit; after they change, add ``--again``.
"""

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

if __name__ == "__main__":  # run by path: make the package importable instead of its modules
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from bench.learning import add_run_options, run_missing
from bench.learning_table import short_count
from bench.machine import measured_on
from bench.markdown import table, write_block
from bench.plan import Key, PlanError, PlanRow, select_rows, select_runs
from bench.results import Record, read_records, records_of

_RESULTS = Path(__file__).resolve().parent / "results" / "defaults.jsonl"
_SEEDS = tuple(range(100, 110))
_TARGETS = {
    "CartPole-v1": 475.0,
    "Acrobot-v1": -95.0,
    "Pendulum-v1": -200.0,
    "LunarLander-v3": 100.0,
    "InvertedPendulum-v5": 900.0,
}
_STEPS: Mapping[str, Mapping[str, int]] = {
    "dqn": {"CartPole-v1": 50_000, "Acrobot-v1": 100_000, "LunarLander-v3": 300_000},
    "rainbow": {"CartPole-v1": 50_000, "Acrobot-v1": 100_000},
    "ppo": {
        "CartPole-v1": 100_000,
        "Acrobot-v1": 200_000,
        "Pendulum-v1": 100_000,
        "LunarLander-v3": 300_000,
        "InvertedPendulum-v5": 100_000,
    },
    "trpo": {
        "CartPole-v1": 100_000,
        "Acrobot-v1": 200_000,
        "Pendulum-v1": 100_000,
        "InvertedPendulum-v5": 100_000,
    },
    "a2c": {"CartPole-v1": 500_000, "Acrobot-v1": 500_000, "Pendulum-v1": 500_000},
    "vpg": {"CartPole-v1": 500_000, "Acrobot-v1": 500_000, "Pendulum-v1": 500_000},
    "ddpg": {"Pendulum-v1": 20_000, "InvertedPendulum-v5": 20_000},
    "td3": {"Pendulum-v1": 20_000, "InvertedPendulum-v5": 20_000},
    "sac": {
        "Pendulum-v1": 20_000,
        "CartPole-v1": 50_000,
        "Acrobot-v1": 100_000,
        "InvertedPendulum-v5": 20_000,
    },
    "droq": {"Pendulum-v1": 5_000},
    "redq": {"Pendulum-v1": 5_000},
}
_HEADER = ("algorithm", "environment", "steps", "target", "reached", "mean of each seed, sorted")

ROWS = tuple(
    PlanRow(
        algorithm=algorithm,
        env=env,
        steps=steps,
        seeds=_SEEDS,
        target=_TARGETS[env],
        options={"ours": {}},
    )
    for algorithm, steps_of in _STEPS.items()
    for env, steps in steps_of.items()
)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="defaults", description=__doc__)
    parser.add_argument("--only", metavar="PATTERN", help="such as dqn/CartPole-v1, sac, acrobot")
    add_run_options(parser, _RESULTS)
    options = parser.parse_args(arguments)
    status = 0
    if not options.table:
        try:
            rows = select_rows(ROWS, options.only) if options.only else ROWS
        except PlanError as error:
            print(error, file=sys.stderr)
            return 2
        status = run_missing(select_runs(rows, ["ours"]), options)
    write_block(options.page, "defaults", defaults_table(ROWS, read_records(options.results)))
    return status


def defaults_table(rows: Iterable[PlanRow], records: Mapping[Key, Record]) -> str:
    """Render the rows of which anything was run."""
    lines: list[list[str]] = []
    machines: dict[str, None] = {}
    for row in rows:
        found = records_of(row, records)["ours"]
        if not found:
            continue
        assert isinstance(row.target, float)
        means = sorted(float(record.returns.mean()) for record in found)
        reached = sum(mean >= row.target for mean in means)
        lines.append(
            [
                row.written,
                f"`{row.env}`",
                short_count(row.steps),
                f"{row.target:g}",
                f"{reached} of {len(means)}",
                ", ".join(f"{mean:.0f}" for mean in means),
            ]
        )
        machines.update(dict.fromkeys(record.machine for record in found))
    if not lines:
        return "Nothing was run yet."
    return f"{table(_HEADER, lines, left=3)}\n\n{measured_on(machines)}"


if __name__ == "__main__":
    sys.exit(main())
