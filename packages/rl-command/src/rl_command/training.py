"""``rl train`` and ``rl resume``."""

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from rl_command.errors import UsageError, held_warnings
from rl_command.interruption import Interruption
from rl_command.options import command_options
from rl_command.parser import Command, parse
from rl_command.progress import ProgressBar
from rl_command.run_directory import (
    Run,
    check_new,
    new_run_dir,
    open_run,
    tell_of_skipped,
)
from rl_command.sections import lengths_of
from rl_command.summary import print_training
from rl_command.train_arguments import checked_goal, filed_goal, read_train_request
from rl_core.config import LENGTHS, Recipe, decode
from rl_train import Trainer
from rl_train.builder import build, build_trainer
from rl_train.trainer import Budget


@dataclass(frozen=True, kw_only=True, slots=True)
class ResumeArguments:
    """What ``rl resume`` takes.

    Attributes:
        run_dir: directory of the run.
        total_steps: environment steps until the run is over, those done included; otherwise the
            run is as long as it was started.
        total_episodes: finished episodes until the run is over, in place of steps.
        total_updates: updates until the run is over, in place of steps.
        device: another one than the run was started on.
    """

    run_dir: str
    total_steps: int | None = None
    total_episodes: int | None = None
    total_updates: int | None = None
    device: str | None = None


def train(words: Sequence[str]) -> int:
    """Train a new agent.

    Args:
        words: as typed after ``rl train``.

    Returns:
        The exit status.
    """
    with ExitStack() as stack:
        with held_warnings():
            request = read_train_request(words)
            check_new(request.run_dir)
            parts = build(request.recipe, restart_model=request.restart_model)
            stack.callback(parts.envs.close)
            reserved = new_run_dir(request.run_dir, request.recipe, datetime.now())
            run_dir = stack.enter_context(reserved)
            interruption = Interruption()
            callbacks = [ProgressBar(sys.stderr), interruption]
            trainer = build_trainer(parts, run_dir=run_dir, callbacks=callbacks)
        return _run(trainer, request.goal, run_dir, interruption)


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
        placeholders={**dict.fromkeys(LENGTHS, "INT"), "device": "auto|cpu|cuda"},
    )
    command = Command(
        "rl resume", "Go on with a run from its newest checkpoint.", options, required=1
    )
    arguments = decode(ResumeArguments, parse(command, words))
    given = {name: getattr(arguments, name) for name in LENGTHS}
    typed = {name: value for name, value in given.items() if value is not None}
    goal = checked_goal(typed) if typed else None
    with held_warnings():
        run = open_run(arguments.run_dir)
        goal = goal or _intended_goal(run)
        recipe = _continued(run.recipe, goal, arguments.device)
        parts = build(recipe, is_saved=True)
        interruption = Interruption()
        callbacks = [ProgressBar(sys.stderr), interruption]
        trainer = build_trainer(parts, run_dir=run.path, callbacks=callbacks)
    try:
        _restore(trainer, run, goal)
        return _run(trainer, goal, run.path, interruption)
    finally:
        parts.envs.close()


def _continued(recipe: Recipe, goal: Budget, device: str | None) -> Recipe:
    kept = {name: value for name, value in recipe.resolved.items() if name not in LENGTHS}
    return recipe.replace(resolved={**kept, **goal.arguments}, device=device)


def _intended_goal(run: Run) -> Budget:
    lengths = lengths_of(dict(run.recipe.resolved))
    if not lengths:
        raise UsageError(
            f"the recipe of {run.path} does not say how long the run is to be; give --total-steps"
        )
    return filed_goal(lengths, run.path)


def _restore(trainer: Trainer, run: Run, goal: Budget) -> None:
    tell_of_skipped(trainer.resume())
    reached = goal.reached_before(trainer)
    if reached >= goal.target:
        raise UsageError(
            f"the run has finished: it has {reached} of {goal.target} {goal.unit}; to go on: "
            f"{_longer(trainer, goal, run.path)}"
        )


def _longer(trainer: Trainer, goal: Budget, run_dir: Path) -> str:
    # Twice what was reached: it may be more than twice what was asked for, as turns are whole.
    return f"rl resume {run_dir} --total-{goal.unit} {2 * goal.reached_before(trainer)}"


def _run(trainer: Trainer, goal: Budget, run_dir: Path, interruption: Interruption) -> int:
    assert trainer.recipe is not None
    with interruption:
        result = trainer.train(**goal.arguments)
    if interruption.number is not None:
        advice = (
            f"to go on: rl resume {run_dir}"
            if goal.reached_before(trainer) < goal.target
            else f"it is complete but for its last evaluation: rl eval {run_dir}"
        )
        print(
            f"rl: stopped at step {trainer.total_steps}; saved {trainer.save_checkpoint()}; "
            f"{advice}",
            file=sys.stderr,
        )
        return 128 + interruption.number
    longer = _longer(trainer, goal, run_dir)
    print_training(sys.stdout, trainer.recipe, run_dir, result, longer)
    return 0
