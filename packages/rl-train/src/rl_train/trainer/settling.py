"""What a run leaves open and is settled once, so that a resumed run computes as it began."""

from typing import TYPE_CHECKING, cast, get_args

from rl_core.compile import CompileMode, check_compiler
from rl_train.trainer.goal import Goal
from rl_train.trainer.parts import rows_per_update, worthwhile_compile_mode
from rl_train.trainer.threads import num_threads_for

if TYPE_CHECKING:
    from rl_train.trainer.trainer import Trainer


def settle(trainer: "Trainer", goal: Goal) -> int:
    """Settle whether to compile and how many threads to use, and keep both in the recipe.

    Returns:
        The number of threads.
    """
    config = trainer.config
    resolved = dict(trainer.recipe.resolved)
    compile_mode, threads = resolved.get("compile"), resolved.get("num_threads")
    if not isinstance(threads, int) or config.num_threads is not None:
        threads = config.num_threads or num_threads_for(trainer.algorithm.actor)
    if compile_mode not in get_args(CompileMode) or config.compile != "auto":
        compile_mode = _compile_mode(trainer, goal)
    trainer.algorithm.compile_mode = cast("CompileMode", compile_mode)
    resolved |= {"compile": compile_mode, "num_threads": threads}
    trainer.recipe = trainer.recipe.replace(resolved=resolved)
    return threads


def _compile_mode(trainer: "Trainer", goal: Goal) -> CompileMode:
    wanted = trainer.config.compile
    if wanted == "on":
        check_compiler(trainer.algorithm.device)
    if wanted != "auto":
        return wanted
    rows = rows_per_update(trainer.envs, trainer.algorithm, trainer.storage)
    updates = _updates_to_come(trainer, goal, rows)
    return worthwhile_compile_mode(trainer.algorithm, trainer.storage, updates, rows)


def _updates_to_come(trainer: "Trainer", goal: Goal, rows: int) -> float:
    """Return how many updates a run still has; 0 where that cannot be known."""
    left = goal.target - goal.reached(trainer)
    if goal.unit == "updates":
        return left
    if goal.unit == "episodes":
        return 0
    collected = trainer.total_steps - trainer.filled_since
    waits = max(0, trainer.algorithm.schedule.update_after - collected)
    return (left - waits) / rows
