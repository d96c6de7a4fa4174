"""Several seeds of one recipe: a directory with a run for each."""

import gc
import json
import multiprocessing
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import FrameType
from typing import TypeAlias, cast

from rl_command.errors import UsageError, described, print_error, print_warning
from rl_command.evaluation import described_over_runs
from rl_command.run_directory import (
    CHECKPOINTS,
    RECIPE,
    check_new,
    command_on,
    default_run_dir,
    discard_if_fresh,
)
from rl_command.train_arguments import TrainRequest, lengths_of
from rl_core.errors import CheckpointError, RLError
from rl_core.stateful import StateReader
from rl_core.types import Json
from rl_train.builder import SECTIONS, changed_option
from rl_train.checkpoint import Checkpoint, latest_checkpoint, list_checkpoints
from rl_train.evaluation import in_words, summarize
from rl_train.recipe_files import load_recipe, save_recipe
from rl_train.trainer import Budget, is_in_use

_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_NUMBER = re.compile(r"\d+")
_MOST_SEEDS = 10_000


SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)
"""They end a run with a checkpoint: Ctrl-C, the end of a job, and a terminal that is closed."""


Start: TypeAlias = Callable[[Sequence[str], str], int]
"""A command that trains: from its words, and a title for its progress, to an exit status."""

_SeedCommand: TypeAlias = tuple[Start, list[str], str]
"""A command for one seed, its words and its title."""


def read_seeds(text: str) -> tuple[int, ...]:
    """Read seeds that are written as ``1..5`` or ``1,2,7``.

    Raises:
        UsageError: when they are not.
    """
    seeds: list[int] = []
    for part in text.split(","):
        bounds = _RANGE.fullmatch(part.strip())
        if bounds is None and not _NUMBER.fullmatch(part.strip()):
            raise UsageError(f"--seeds: got '{text}'; expected seeds as in 1..5 or 1,2,7")
        first, last = (int(part), int(part)) if bounds is None else map(int, bounds.groups())
        if last - first >= _MOST_SEEDS:
            raise UsageError(f"--seeds: got '{text}'; expected at most {_MOST_SEEDS:,} seeds")
        seeds += range(first, last + 1)
    if not seeds or len(set(seeds)) < len(seeds):
        raise UsageError(f"--seeds: got '{text}', with {'a seed twice' if seeds else 'no seed'}")
    return tuple(seeds)


def train_seeds(request: TrainRequest, train: Start, resume: Start) -> int:
    """Train a run for each seed; finished ones are skipped, and interrupted ones continued.

    Args:
        request: what to train; its ``run_dir`` is the directory of all runs.
        train: starts a run.
        resume: continues a run.

    Returns:
        The exit status: 0, or that of the first run which failed.
    """
    arguments = request.arguments
    seeds = read_seeds(arguments.seeds or "")
    group = _open_group(request)
    if len(seeds) == 1 and seeds[0] > 1 and not any(group.glob("seed-*")):
        print_warning(
            f"--seeds {seeds[0]} is one run, with seed {seeds[0]}; for {seeds[0]} runs give "
            f"--seeds 1..{seeds[0]}"
        )
    runs = {seed: group / f"seed-{seed}" for seed in seeds}
    started = (_command_for(seed, run, request, train, resume) for seed, run in runs.items())
    commands = [command for command in started if command is not None]
    status = _in_turn(commands) if arguments.jobs == 1 else _side_by_side(commands, arguments.jobs)
    finished = {seed: mean for seed, run in runs.items() if (mean := final_mean(run)) is not None}
    for seed, mean in finished.items():
        print(f"seed {seed}: final return {in_words(mean)[0]}")
    if len(finished) > 1:
        print(described_over_runs(summarize(list(finished.values()))))
    if status:
        print(f"rl: to continue: the same command with --run-dir {group}", file=sys.stderr)
    else:
        following = command_on("eval", group, arguments.imports)
        plot = command_on("plot", group, ())
        print(f"runs        {group}\nnext        {following}\n            {plot}")
    return status


def _command_for(
    seed: int, run: Path, request: TrainRequest, train: Start, resume: Start
) -> _SeedCommand | None:
    """Return the command that begins or continues the run of a seed; None if it has finished."""
    arguments, title = request.arguments, f"seed {seed}"
    if _is_finished(run, request.budget):
        hint = ""
        if final_mean(run) is None:
            evaluate = command_on("eval", run, arguments.imports)
            hint = f"; it was not evaluated at its end: {evaluate}"
        print(f"{title}: has finished, and is skipped{hint}", file=sys.stderr)
        return None
    words = [f"--total-{request.budget.unit}={request.budget.target}"]
    words += [f"--import={module}" for module in arguments.imports]
    is_log = arguments.jobs > 1 and arguments.progress != "none"
    words.append(f"--progress={'log' if is_log else arguments.progress}")
    if list_checkpoints(run / CHECKPOINTS):
        return resume, [str(run), *words], title
    if (run / RECIPE).exists():
        if is_in_use(run):
            raise UsageError(f"{run} is being trained by another process; wait for its end")
        discard_if_fresh(run)  # ended before its first checkpoint
        if run.exists():
            kept = run.with_name(f"{run.name}-{datetime.now():%Y%m%d-%H%M%S}")
            run.rename(kept)
            print(
                f"{title}: begins anew, as it has no checkpoint to go on from; what it wrote is in "
                f"{kept}",
                file=sys.stderr,
            )
    config = run.parent / RECIPE
    return train, [*words, f"--config={config}", f"--seed={seed}", f"--run-dir={run}"], title


def _open_group(request: TrainRequest) -> Path:
    """Make the directory of all runs, or check that it belongs to the same recipe."""
    given, recipe = request.arguments.run_dir, request.recipe
    group = default_run_dir(recipe, datetime.now(), "seeds") if given is None else Path(given)
    file = group / RECIPE
    if file.is_file() and not (group / CHECKPOINTS).exists():
        began = load_recipe(file)
        has_other_weights = began.resolved.get("restart_model") != request.arguments.restart_model
        if changed := changed_option(began, recipe, (*SECTIONS, "device")):
            option, before, now = changed
            raise UsageError(
                f"{group} holds runs with other options ({option} is {before!r} there, {now!r} "
                "here); choose another --run-dir"
            )
        if has_other_weights:
            raise UsageError(f"{group} holds runs with other weights; choose another --run-dir")
        return group
    check_new(group)
    group.mkdir(parents=True, exist_ok=True)
    resolved: dict[str, Json] = {**recipe.resolved}
    if request.arguments.restart_model is not None:
        resolved["restart_model"] = cast("Json", request.arguments.restart_model)
    save_recipe(replace(recipe, resolved=resolved), file)
    return group


def _summary(run: Path) -> dict[str, Json]:
    try:
        summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return summary if isinstance(summary, dict) else {}


def final_mean(run: Path) -> float | None:
    """Return the mean return of a run's evaluation at its end, or None where there was none."""
    return cast("float | None", _summary(run).get("final_return_mean"))


def _is_finished(run: Path, budget: Budget) -> bool:
    """Return whether a run has nothing left to train.

    Raises:
        UsageError: when it is longer than asked for.
    """
    summary = _summary(run)
    if not summary:  # it was killed, perhaps in its last evaluation
        try:
            newest = latest_checkpoint(run / CHECKPOINTS)
        except CheckpointError:  # all are damaged, which is told when it is resumed
            return False
        return newest is not None and _is_over(newest, budget)
    if summary.get("stopped"):
        return False
    lengths = lengths_of(dict(load_recipe(run / RECIPE).resolved))
    if lengths == budget.arguments:  # it has less where a callback ended it
        return True
    reached = cast("int", summary.get(f"total_{budget.unit}", 0))
    if reached <= budget.target:
        return reached == budget.target
    trained = " and ".join(f"{name}={length}" for name, length in lengths.items())
    raise UsageError(
        f"{run} was trained with {trained}; give that length, a longer one, or another --run-dir"
    )


def _is_over(checkpoint: Checkpoint, budget: Budget) -> bool:
    """Return whether a run had nothing left to train at a checkpoint."""
    part, count = {
        "steps": ("collector", "total_steps"),
        "episodes": ("collector", "total_episodes"),
        "updates": ("run", "updates"),
    }[budget.unit]
    saved = StateReader(checkpoint.state, str(checkpoint.path))
    was_ended = saved.reader("run").tree("ended") == budget.arguments
    return was_ended or saved.reader(part).count(count) >= budget.target


def _in_turn(commands: Sequence[_SeedCommand]) -> int:
    failed = 0
    for command in commands:
        status = _run(*command)
        if status > 128:  # stopped by a signal
            return status
        failed = failed or status
        gc.collect()  # parts of a run know each other, so that its memory is not freed by itself
    return failed


def _run(start: Start, words: list[str], title: str) -> int:
    """Run one of several commands: an error of its own does not end the others."""
    try:
        return start(words, title)
    except (RLError, UsageError) as error:
        print_error(f"{title}: {described(error)}")
        return 2
    except Exception:
        traceback.print_exc()
        print_error(f"{title}: ended by the exception above")
        return 1


def _side_by_side(commands: Sequence[_SeedCommand], jobs: int) -> int:
    """Run processes, and pass signals on to them, so that each saves its run."""
    spawn = multiprocessing.get_context("spawn")
    waiting = [spawn.Process(target=_child, args=command, name=command[2]) for command in commands]
    running: list[SpawnProcess] = []
    status, is_stopped = 0, False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal status, is_stopped
        status, is_stopped = 128 + number, True
        for process in running:
            process.terminate()

    before = {
        number: signal.signal(number, stop)
        for number in SIGNALS
        if signal.getsignal(number) != signal.SIG_IGN  # as nohup sets it
    }
    try:
        while running or (waiting and not is_stopped):
            while waiting and len(running) < jobs and not is_stopped:
                process = waiting.pop(0)
                process.start()
                running.append(process)
                if is_stopped:  # a signal came meanwhile
                    process.terminate()
            wait([process.sentinel for process in running])
            for ended in [one for one in running if not one.is_alive()]:
                ended.join()
                running.remove(ended)
                code = cast("int", ended.exitcode)
                if code < 0:
                    print_error(f"{ended.name}: killed by {signal.Signals(-code).name}")
                    code = 128 - code
                status = status or code
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return status


def _child(start: Start, words: list[str], title: str) -> None:
    if hasattr(os, "setsid"):
        os.setsid()  # Ctrl-C in a terminal reaches the parent alone, which passes it on
    try:
        sys.exit(_run(start, words, title))
    except KeyboardInterrupt:  # a second signal
        sys.exit(128 + signal.SIGINT)
