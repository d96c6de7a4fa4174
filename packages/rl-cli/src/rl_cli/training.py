"""``rl train`` and ``rl resume``."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from rl_cli.errors import UsageError, held_warnings
from rl_cli.interruption import Interrupted, Interruption
from rl_cli.options import command_options
from rl_cli.parser import Command, parse
from rl_cli.progress import ProgressBar
from rl_cli.run_directory import (
    Run,
    check_new,
    default_run_dir,
    discard_if_fresh,
    open_run,
    tell_of_skipped,
)
from rl_cli.summary import print_training
from rl_cli.train_arguments import checked_total_steps, read_train_request
from rl_core.build import build, build_trainer
from rl_core.codec import decode
from rl_core.recipe import Recipe
from rl_core.trainer import Trainer


@dataclass(frozen=True, kw_only=True, slots=True)
class ResumeArguments:
    """What ``rl resume`` takes.

    Attributes:
        run_dir: directory of the run.
        total_steps: environment steps until the run is over, those done included; otherwise as
            many as it was started with.
        device: another one than the run was started on.
    """

    run_dir: str
    total_steps: int | None = None
    device: str | None = None


def train(words: Sequence[str]) -> int:
    """Train a new agent.

    Args:
        words: as typed after ``rl train``.

    Returns:
        The exit status.
    """
    with held_warnings():
        request = read_train_request(words)
        run_dir = request.run_dir or default_run_dir(request.recipe, datetime.now())
        check_new(run_dir)
        parts = build(request.recipe, restart_model=request.restart_model)
        interruption = Interruption()
        callbacks = [ProgressBar(sys.stderr), interruption]
        trainer = build_trainer(parts, run_dir=run_dir, callbacks=callbacks)
    try:
        return _run(trainer, request.total_steps, run_dir, interruption)
    except BaseException:
        discard_if_fresh(run_dir)
        raise
    finally:
        parts.envs.close()


def resume(words: Sequence[str]) -> int:
    """Go on with a run.

    Args:
        words: as typed after ``rl resume``.

    Returns:
        The exit status.
    """
    options = command_options(
        ResumeArguments,
        positional={"run_dir": "RUN_DIR"},
        placeholders={"total_steps": "INT", "device": "auto|cpu|cuda"},
    )
    command = Command(
        "rl resume", "Go on with a run from its newest checkpoint.", options, required=1
    )
    arguments = decode(ResumeArguments, parse(command, words))
    if arguments.total_steps is not None:
        checked_total_steps(arguments.total_steps)
    with held_warnings():
        run = open_run(arguments.run_dir)
        total_steps = arguments.total_steps or _intended_steps(run)
        recipe = _continued(run.recipe, total_steps, arguments.device)
        parts = build(recipe)
        interruption = Interruption()
        callbacks = [ProgressBar(sys.stderr), interruption]
        trainer = build_trainer(parts, run_dir=run.path, callbacks=callbacks)
    try:
        _restore(trainer, run, total_steps)
        return _run(trainer, total_steps, run.path, interruption)
    finally:
        parts.envs.close()


def _continued(recipe: Recipe, total_steps: int, device: str | None) -> Recipe:
    resolved = {**recipe.resolved, "total_steps": total_steps}
    return recipe.replace(resolved=resolved, device=device)


def _intended_steps(run: Run) -> int:
    total_steps = run.recipe.resolved.get("total_steps")
    if total_steps is None:
        raise UsageError(
            f"the recipe of {run.path} does not say how long the run is to be; give --total-steps"
        )
    where = f"{run.path}: total_steps"
    return checked_total_steps(decode(int, total_steps, where), where)


def _restore(trainer: Trainer, run: Run, total_steps: int) -> None:
    tell_of_skipped(trainer.resume())
    if trainer.total_steps >= total_steps:
        raise UsageError(
            f"the run has finished: it is at step {trainer.total_steps} of {total_steps}; to go "
            f"on: rl resume {run.path} --total-steps {2 * trainer.total_steps}"
        )


def _run(trainer: Trainer, total_steps: int, run_dir: Path, interruption: Interruption) -> int:
    assert trainer.recipe is not None
    try:
        with interruption:
            result = trainer.train(total_steps)
    except Interrupted as interrupted:
        checkpoint = trainer.save_checkpoint()
        print(
            f"rl: stopped at step {trainer.total_steps}; saved {checkpoint}; to go on: "
            f"rl resume {run_dir}",
            file=sys.stderr,
        )
        return 128 + interrupted.number
    print_training(sys.stdout, trainer.recipe, run_dir, result)
    return 0
