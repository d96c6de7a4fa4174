"""The commands ``rl train`` and ``rl resume``."""

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from rl_command.errors import UsageError, held_warnings
from rl_command.options import command_options
from rl_command.parser import Command, parse
from rl_command.run_directory import (
    check_new,
    command_on,
    new_run_dir,
    open_run,
)
from rl_command.seeds import SIGNALS, final_mean, train_seeds
from rl_command.summary import print_training
from rl_command.train_arguments import (
    ProgressMode,
    chosen_budget,
    import_modules,
    lengths_of,
    read_train_request,
)
from rl_core.config import Config, Count
from rl_train import Callback, Progress, Trainer
from rl_train.builder import build, build_trainer
from rl_train.trainer import Budget, Interruption, check_unchanged


@dataclass(frozen=True, kw_only=True)
class ResumeArguments(Config):
    """Options of ``rl resume``.

    Attributes:
        total_steps: Environment steps to train for, including those already done. Without a new
            total the run keeps the length it was started with.
        total_episodes: Finished episodes to train for, in place of steps.
        total_updates: Updates to train for, in place of steps.
        device: Device of the networks, in place of the one the run was started on.
        progress: A bar, log lines, or none; auto draws a bar on a terminal, lines elsewhere.
        imports: Module to import first, which registers environments; may be repeated.
    """

    total_steps: Count | None = None
    total_episodes: Count | None = None
    total_updates: Count | None = None
    device: str | None = None
    progress: ProgressMode = "auto"
    imports: tuple[str, ...] = ()


def train(words: Sequence[str], title: str = "") -> int:
    """Train a new agent, or one for each of several seeds.

    Args:
        words: the arguments after ``rl train``.
        title: text before the lines of progress; with one, the run ends without a summary.

    Returns:
        The exit status.
    """
    with ExitStack() as stack:
        with held_warnings():
            request = read_train_request(words)
            arguments = request.arguments
            given = None if arguments.run_dir is None else Path(arguments.run_dir)
            if arguments.seeds is None:
                check_new(given)
                parts = build(request.recipe, restart_model=arguments.restart_model)
                stack.callback(parts.envs.close)
                reserved = new_run_dir(given, request.recipe, datetime.now())
                run_dir = stack.enter_context(reserved)
                callbacks = _progress(arguments.progress, title)
                trainer = build_trainer(parts, run_dir=run_dir, callbacks=callbacks)
        if arguments.seeds is not None:
            return train_seeds(request, train, resume)
        return _run(trainer, request.budget, title, arguments.imports)


def resume(words: Sequence[str], title: str = "") -> int:
    """Continue a run from its newest checkpoint.

    Args:
        words: the arguments after ``rl resume``.
        title: as for `train`.

    Returns:
        The exit status.
    """
    options = command_options(ResumeArguments)
    summary = "Continue a run from its newest checkpoint."
    given = parse(Command("rl resume", summary, options, ("RUN_DIR",), required=1), words)
    budget = chosen_budget(given.tables, {}, None)
    arguments = given.into(ResumeArguments)
    with held_warnings():
        import_modules(given.tables)
        run = open_run(given.names[0])
        budget = budget or chosen_budget({}, lengths_of(dict(run.recipe.resolved)), run.path)
        if budget is None:
            raise UsageError(
                f"the recipe of {run.path} does not give the length of the run; give --total-steps"
            )
        check_unchanged(run.path)
        recipe = run.recipe
        if arguments.device is not None:
            recipe = replace(recipe, device=arguments.device)
        parts = build(recipe, is_saved=True)
        callbacks = _progress(arguments.progress, title)
        trainer = build_trainer(parts, run_dir=run.path, callbacks=callbacks)
    try:
        _restore(trainer, budget, arguments.imports)
        return _run(trainer, budget, title, arguments.imports)
    finally:
        parts.envs.close()


def _progress(mode: ProgressMode, title: str) -> list[Callback]:
    return [] if mode == "none" else [Progress(mode, sys.stderr, title=title)]


def _restore(trainer: Trainer, budget: Budget, imports: Sequence[str]) -> None:
    with held_warnings():
        trainer.resume()
    if budget.is_over(trainer):
        reached = budget.reached_before(trainer)
        how = "already" if reached >= budget.target else "and was ended by a callback"
        assert trainer.run_dir is not None
        planned = chosen_budget({}, lengths_of(dict(trainer.recipe.resolved)), trainer.run_dir)
        is_unfinished = planned is not None and not planned.is_over(trainer)
        run = command_on("resume", trainer.run_dir, imports)
        advice = [f"to continue: {run if is_unfinished else _longer(trainer, budget, imports)}"]
        if not is_unfinished and final_mean(trainer.run_dir) is None:  # it was to be evaluated
            advice.insert(0, _missing_evaluation(trainer.run_dir, imports))
        raise UsageError(
            f"the run has {reached:,} of {budget.target:,} {budget.unit} {how}; "
            + "; ".join(advice)
        )


def _missing_evaluation(run_dir: Path, imports: Sequence[str]) -> str:
    return f"only the final evaluation is missing: {command_on('eval', run_dir, imports)}"


def _longer(trainer: Trainer, budget: Budget, imports: Sequence[str]) -> str:
    # Whole iterations may exceed the target, so the suggestion doubles what was reached.
    length = f"--total-{budget.unit} {2 * budget.reached_before(trainer)}"
    assert trainer.run_dir is not None
    return f"{command_on('resume', trainer.run_dir, imports)} {length}"


def _run(trainer: Trainer, budget: Budget, title: str, imports: Sequence[str]) -> int:
    run_dir = trainer.run_dir
    assert run_dir is not None
    interruption = Interruption(SIGNALS, "rl: ")
    trainer.callbacks = (*trainer.callbacks, interruption)
    with interruption:
        result = trainer.train(**budget.arguments, progress=False)
    if interruption.number is not None:
        advice = (
            _missing_evaluation(run_dir, imports)
            if budget.is_over(trainer)
            else f"to continue: {command_on('resume', run_dir, imports)}"
        )
        print(
            f"rl: stopped at step {trainer.total_steps:,}; saved {trainer.save_checkpoint()}; "
            f"{advice}",
            file=sys.stderr,
        )
        return 128 + interruption.number
    if not title:
        following = (command_on("eval", run_dir, imports), _longer(trainer, budget, imports))
        print_training(trainer.recipe, run_dir, result, following)
    return 0
