"""The commands ``rl train`` and ``rl resume``."""

import signal
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from rl_command.errors import UsageError, held_warnings
from rl_command.options import command_options
from rl_command.parser import Command, parse
from rl_command.run_directory import Run, check_new, new_run_dir, open_run, warn_of_skipped
from rl_command.sections import lengths_of
from rl_command.summary import print_training
from rl_command.train_arguments import chosen_goal, read_train_request
from rl_core.config import LENGTHS, Recipe, decode
from rl_train import Progress, Trainer
from rl_train.builder import build, build_trainer
from rl_train.trainer import Budget, Interruption

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True, kw_only=True, slots=True)
class ResumeArguments:
    """Arguments of ``rl resume``.

    Attributes:
        run_dir: Directory of the run.
        total_steps: Environment steps to train for, including those already done. Without a new
            total the run keeps the length it was started with.
        total_episodes: Finished episodes to train for, in place of steps.
        total_updates: Updates to train for, in place of steps.
        device: Device of the networks, in place of the one the run was started on.
    """

    run_dir: str
    total_steps: int | None = None
    total_episodes: int | None = None
    total_updates: int | None = None
    device: str | None = None


def train(words: Sequence[str]) -> int:
    """Train a new agent.

    Args:
        words: the arguments after ``rl train``.

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
            interruption = Interruption(_SIGNALS, "rl: ")
            callbacks = [Progress(), interruption]
            trainer = build_trainer(parts, run_dir=run_dir, callbacks=callbacks)
        return _run(trainer, request.goal, run_dir, interruption)


def resume(words: Sequence[str]) -> int:
    """Continue a run from its newest checkpoint.

    Args:
        words: the arguments after ``rl resume``.

    Returns:
        The exit status.
    """
    options = command_options(
        ResumeArguments,
        positional={"run_dir": "RUN_DIR"},
        placeholders={"device": "auto|cpu|cuda"},
    )
    command = Command(
        "rl resume", "Continue a run from its newest checkpoint.", options, required=1
    )
    arguments = decode(ResumeArguments, parse(command, words))
    typed = {name: getattr(arguments, name) for name in LENGTHS}
    goal = chosen_goal(typed, {}, None)
    with held_warnings():
        run = open_run(arguments.run_dir)
        goal = goal or chosen_goal({}, lengths_of(dict(run.recipe.resolved)), run.path)
        if goal is None:
            raise UsageError(
                f"the recipe of {run.path} does not give the length of the run; give --total-steps"
            )
        recipe = _continued(run.recipe, goal, arguments.device)
        parts = build(recipe, is_saved=True)
        interruption = Interruption(_SIGNALS, "rl: ")
        callbacks = [Progress(), interruption]
        trainer = build_trainer(parts, run_dir=run.path, callbacks=callbacks)
    try:
        _restore(trainer, run, goal)
        return _run(trainer, goal, run.path, interruption)
    finally:
        parts.envs.close()


def _continued(recipe: Recipe, goal: Budget, device: str | None) -> Recipe:
    kept = {name: value for name, value in recipe.resolved.items() if name not in LENGTHS}
    return recipe.replace(resolved={**kept, **goal.arguments}, device=device)


def _restore(trainer: Trainer, run: Run, goal: Budget) -> None:
    warn_of_skipped(trainer.resume())
    reached = goal.reached_before(trainer)
    if reached >= goal.target:
        raise UsageError(
            f"the run has finished: it has {reached} of {goal.target} {goal.unit}; to continue: "
            f"{_longer(trainer, goal, run.path)}"
        )


def _longer(trainer: Trainer, goal: Budget, run_dir: Path) -> str:
    # Whole iterations may exceed the target, so the suggestion doubles what was reached.
    return f"rl resume {run_dir} --total-{goal.unit} {2 * goal.reached_before(trainer)}"


def _run(trainer: Trainer, goal: Budget, run_dir: Path, interruption: Interruption) -> int:
    assert trainer.recipe is not None
    with interruption:
        result = trainer.train(**goal.arguments, progress=False)
    if interruption.number is not None:
        advice = (
            f"to continue: rl resume {run_dir}"
            if goal.reached_before(trainer) < goal.target
            else f"only the final evaluation is missing: rl eval {run_dir}"
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
