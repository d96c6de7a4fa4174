"""How well the toolbox learns, beside Stable-Baselines3: runs plans and tabulates the results.

Every run is recorded when it ends, and a run that is recorded is not made again, so that hours of
runs survive any interruption: start the same command again. Final policies are kept beside the
records, to be evaluated again.
"""

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

if __name__ == "__main__":  # run by path: make the package importable instead of its modules
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from bench.child import ChildError, Json, run_children, termination_interrupts
from bench.machine import machine_line
from bench.markdown import PAGE, PAGES, write_block
from bench.plan import SYSTEMS, PlanError, PlanRow, Run, load_plans, select_rows, select_runs
from bench.results import append_record, read_lines, read_records

_HERE = Path(__file__).resolve().parent
_PLANS = _HERE / "plans"
_WEIGHTS = _HERE / "results" / "weights"

RESULTS = _HERE / "results" / "learning.jsonl"
"""Where runs are recorded."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    given = [plan.resolve() for plan in options.plan or []]
    try:
        shown = load_plans(dict.fromkeys([*all_plans(), *given]))
        rows = load_plans(dict.fromkeys(given)) if given else shown
        rows = select_rows(rows, options.only) if options.only else rows
    except PlanError as error:
        print(error, file=sys.stderr)
        return 2
    if options.curves:
        return _draw_curves(shown, options.results)
    status = 0
    if not options.table:
        systems = SYSTEMS if options.system == "all" else (options.system,)
        runs = select_runs(rows, systems)
        status = (_evaluate_all if options.evaluate else run_missing)(runs, options)
    _write_table(shown, options.page, options.results)
    return status


def add_run_options(parser: argparse.ArgumentParser, results: Path) -> None:
    """Add the options that `run_missing` reads, and those of the table.

    Args:
        parser: to add them to.
        results: where runs are recorded if the command line says nothing.
    """
    parser.add_argument("--again", action="store_true", help="make finished runs again")
    parser.add_argument("--table", action="store_true", help="run nothing, rewrite the table")
    parser.add_argument("--threads", type=int, default=1, help="of every system")
    parser.add_argument("--device", default="cpu", help="of the networks, such as cuda")
    parser.add_argument(
        "--jobs",
        type=int,
        default=1,
        help="runs side by side, whose speeds are then left out of the table",
    )
    parser.add_argument("--results", type=Path, default=results, help="where runs are recorded")
    parser.add_argument(
        "--weights", type=Path, default=_WEIGHTS, help="where final policies are kept"
    )
    parser.add_argument("--page", type=Path, default=PAGE, help="where the table is written")


def run_missing(runs: Sequence[Run], options: argparse.Namespace) -> int:
    """Make the runs that are left, and return an exit status.

    Runs whose recorded episodes are not those of `bench.episodes` are made again.
    """
    recorded = {} if options.again else read_records(options.results)
    finished = {key for key, record in recorded.items() if record.is_comparable}
    left = [run for run in runs if run.key not in finished]
    print(f"{len(runs)} runs, {len(runs) - len(left)} of them finished before", flush=True)
    # Speeds mean nothing beside another run, or where others go first.
    is_timed = options.jobs == 1 and os.nice(0) == 0

    def record(run: Run, result: Mapping[str, Json]) -> str:
        append_record(
            options.results,
            run,
            {
                **result,
                "is_timed": is_timed,
                "finished": datetime.now(UTC).isoformat(timespec="seconds"),
                "machine": machine_line(options.threads, options.device),
            },
        )
        speed = f"{result['steps_per_second']:,.0f} steps/s, {result['wall_seconds']:.0f} s in all"
        return f"{_summary(result)}, {speed}"

    return _carry_out("bench.worker:learn", left, options, record)


def _evaluate_all(runs: Sequence[Run], options: argparse.Namespace) -> int:
    """Evaluate the policies that were kept again, and return an exit status."""
    recorded = read_lines(options.results)
    kept = [run for run in runs if run.key in recorded and _weights(run, options).exists()]
    print(f"{len(runs)} runs, the policies of {len(kept)} are in {options.weights}", flush=True)

    def record(run: Run, result: Mapping[str, Json]) -> str:
        append_record(options.results, run, {**recorded[run.key], **result})
        return _summary(result)

    return _carry_out("bench.worker:evaluate", kept, options, record)


def _carry_out(
    task: str,
    runs: Sequence[Run],
    options: argparse.Namespace,
    record: Callable[[Run, Mapping[str, Json]], str],
) -> int:
    """Carry out a task for each run, and return an exit status."""
    payloads: list[dict[str, Json]] = [
        {
            **run.as_dict(),
            "weights": str(_weights(run, options).resolve()),
            "device": options.device,
        }
        for run in runs
    ]
    status = 0
    try:
        with termination_interrupts():
            ended = run_children(task, payloads, options.threads, options.jobs)
            for count, (number, result) in enumerate(ended, start=1):
                print(f"[{count}/{len(runs)}] {runs[number]}", flush=True)
                if isinstance(result, ChildError):
                    print(f"    failed: {result}", flush=True)
                    status = 1
                else:
                    print(f"    {record(runs[number], result)}", flush=True)
    except KeyboardInterrupt:
        print("stopped; what was finished is recorded, the same command goes on", flush=True)
        return 130
    return status


def _weights(run: Run, options: argparse.Namespace) -> Path:
    folder: Path = options.weights
    return folder / f"{run.file_name}.safetensors"


def _write_table(rows: Sequence[PlanRow], page: Path, results: Path) -> None:
    from bench.comparison import comparison_table
    from bench.learning_table import learning_table

    records = read_records(results)
    write_block(page, "learning", learning_table(rows, records))
    write_block(page, "comparison", comparison_table(rows, records))
    print(f"wrote the tables into {page.name}")


def _draw_curves(rows: Sequence[PlanRow], results: Path) -> int:
    """Draw what was recorded, and return an exit status."""
    from bench.learning_curves import write_curves

    problems = write_curves(rows, read_records(results), PAGES)
    for problem in problems:
        print(problem, file=sys.stderr)
    return int(bool(problems))


def all_plans() -> list[Path]:
    """Return the plans whose rows the tables show."""
    return sorted(_PLANS.glob("*.toml"))


def _summary(result: Mapping[str, Json]) -> str:
    returns = cast("list[float]", result["returns"])
    rate = cast("float | None", result.get("success_rate"))
    success = "" if rate is None else f", success {rate:.0%}"
    return f"mean return {sum(returns) / len(returns):.1f} over {len(returns)} episodes{success}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="learning", description=__doc__)
    parser.add_argument("--plan", type=Path, action="append", help="a plan; all of plans/ if none")
    parser.add_argument(
        "--only",
        metavar="PATTERN",
        help="the row of this label, or all in which it occurs: ppo/CartPole*, pendulum, "
        "'dqn/LunarLander-v3 double'",
    )
    parser.add_argument("--system", choices=(*SYSTEMS, "all"), default="all")
    add_run_options(parser, RESULTS)
    parser.add_argument(
        "--evaluate",
        action="store_true",
        help="train nothing, evaluate again the policies that were kept",
    )
    parser.add_argument(
        "--curves",
        action="store_true",
        help="run nothing, draw the learning curves on the algorithms' pages",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
