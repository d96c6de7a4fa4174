"""What behavior cloning keeps of an expert, by the plan in ``cloning.toml``.

Every run is recorded when it ends, and a run that is recorded is not made again.
"""

import argparse
import json
import statistics
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

if __name__ == "__main__":  # run by path: make the package importable instead of its modules
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from bench.child import ChildError, Json, run_child
from bench.machine import machine_line, measured_on, source_version
from bench.markdown import PAGE, table, write_block

_HERE = Path(__file__).resolve().parent
_PLAN = _HERE / "cloning.toml"
_RESULTS = _HERE / "results" / "cloning.jsonl"
_HEADER = (
    "environment",
    "expert",
    "seeds",
    "expert's mean",
    "BC from the expert",
    "share",
    "BC from data",
    "share",
)

Row = Mapping[str, Json]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="cloning", description=__doc__)
    parser.add_argument("--only", metavar="ENV", help="rows of one environment")
    parser.add_argument("--seeds", type=int, help="only the first so many seeds")
    parser.add_argument("--table", action="store_true", help="run nothing, rewrite the table")
    parser.add_argument("--results", type=Path, default=_RESULTS, help="where runs are recorded")
    parser.add_argument("--page", type=Path, default=PAGE, help="where the table is written")
    options = parser.parse_args(arguments)
    rows = cast("list[Row]", tomllib.loads(_PLAN.read_text(encoding="utf-8"))["row"])
    status = 0
    if not options.table:
        for row in rows:
            if options.only in (None, row["env"]):
                seeds = cast("list[int]", row["seeds"])[: options.seeds]
                status |= max([_run(row, seed, options.results) for seed in seeds], default=0)
    write_block(options.page, "cloning", cloning_table(rows, _read(options.results)))
    return status


def cloning_table(rows: Sequence[Row], records: Sequence[Row]) -> str:
    """Render the rows of which anything was run."""
    lines: list[list[str]] = []
    machines: dict[str, None] = {}
    for row in rows:
        found = [record for record in records if record["row"] == dict(row)]
        if not found:
            continue
        machines |= {str(record["machine"]): None for record in found}
        expert, watched, read = (
            statistics.fmean(
                statistics.fmean(cast("list[float]", record[name])) for record in found
            )
            for name in ("expert", "from_expert", "from_data")
        )
        cells = [f"`{row['env']}`", str(row["expert"]).upper(), str(len(found)), f"{expert:.1f}"]
        for mean in (watched, read):
            cells += [f"{mean:.1f}", f"{100.0 * share(mean, expert):.0f} %"]
        lines.append(cells)
    if not lines:
        return "Nothing was run yet."
    return f"{table(_HEADER, lines, left=2)}\n\n{measured_on(machines)}"


def share(mean: float, expert: float) -> float:
    """Return what part of the expert's return a clone reaches; of costs, the inverse."""
    return mean / expert if expert > 0.0 else expert / mean


def _run(row: Row, seed: int, results: Path) -> int:
    """Make a run that is not recorded yet, and return an exit status."""
    done = [record["seed"] for record in _read(results) if record["row"] == dict(row)]
    if seed in done:
        return 0
    print(f"{row['expert']} on {row['env']}, seed {seed}", flush=True)
    source = source_version()
    try:
        found = run_child("bench.cloning_run:clone", {**row, "seed": seed}, threads=1)
    except ChildError as error:
        print(f"    failed: {error}", flush=True)
        return 1
    facts = {"row": dict(row), "seed": seed, "machine": machine_line(1)}
    line = {**facts, "source": source, **found}
    with results.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line, allow_nan=False) + "\n")
    for name, returns in found.items():
        print(f"    {name}: {statistics.fmean(cast('list[float]', returns)):.1f}", flush=True)
    return 0


def _read(results: Path) -> list[Row]:
    if not results.exists():
        return []
    lines = results.read_text(encoding="utf-8").splitlines()
    return [cast("Row", json.loads(line)) for line in lines]


if __name__ == "__main__":
    sys.exit(main())
