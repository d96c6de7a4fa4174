"""Before a run: whether its parts fit together, and what ``auto`` settings become."""

from typing import TYPE_CHECKING, cast, get_args

from rl_core.algorithm import Algorithm, AnyAlgorithm
from rl_core.compile import CompileMode, check_compiler
from rl_core.env import VecEnv
from rl_core.errors import ConfigError
from rl_core.spaces import check_same_space
from rl_core.storage import AnyStorage, Storage
from rl_train.trainer.budget import Budget
from rl_train.trainer.threads import num_threads_for

if TYPE_CHECKING:
    from rl_train.trainer.trainer import Trainer

_COMPILE_PAYS_AFTER = {"cpu": 15_000, "cuda": 3_000}
"""Gradient steps from which compiling saves more time than it takes, by kind of device."""

_LONG_SEQUENCE = 32
"""Steps of a sequence up to which that holds; the graphs of longer ones take longer to compile."""


def check_parts(envs: VecEnv, algorithm: AnyAlgorithm, storage: AnyStorage) -> None:
    """Make sure that algorithm and storage fit each other and the environments.

    Raises:
        ConfigError: when one is something else, or options contradict each other.
        SpaceError: when the actor was built for other spaces than the environments have.
    """
    for name, part, expected in (
        ("algorithm", algorithm, Algorithm),
        ("storage", storage, Storage),
    ):
        if not isinstance(part, expected):
            got = part.__name__ if isinstance(part, type) else type(part).__name__
            raise ConfigError(f"{name}: expected a built {expected.__name__}, got {got}")
    needs, gives = algorithm.batch_type, storage.batch_type
    if needs is not gives:
        raise ConfigError(
            f"{type(algorithm).__name__} learns from {needs.__name__}, but "
            f"{type(storage).__name__} gives {gives.__name__}; choose a storage that fits"
        )
    actor = algorithm.actor
    check_same_space(
        actor.observation_space,
        envs.single_observation_space,
        "environments' observation space",
    )
    check_same_space(actor.action_space, envs.single_action_space, "environments' action space")
    if storage.rollout_steps is None:
        _check_sequences(algorithm, storage)
    algorithm.check_storage(storage)
    if storage.rollout_steps is None:
        return
    schedule = algorithm.schedule
    rows = storage.rollout_steps * envs.num_envs
    if schedule.update_every not in (None, rows):
        raise ConfigError(
            f"update_every={schedule.update_every}, but a rollout is learned from when it is "
            f"complete, after {rows} rows; leave update_every out"
        )
    if schedule.update_after or schedule.start_steps:
        raise ConfigError(
            "update_after and start_steps do not go with a rollout storage, which has no room "
            "for more than it is learned from; leave them at 0"
        )


def _check_sequences(algorithm: AnyAlgorithm, storage: AnyStorage) -> None:
    if algorithm.actor.is_recurrent and not storage.gives_sequences:
        raise ConfigError(
            f"the actor is recurrent, but {type(storage).__name__} replays single transitions, "
            "which say nothing about its memory; let the storage give sequences "
            "(storage.sequences), or use an actor without a recurrent core"
        )
    if storage.gives_sequences and not algorithm.actor.is_recurrent:
        raise ConfigError(
            f"{type(storage).__name__} replays sequences, but the actor has no memory that would "
            "need them; leave storage.sequences out, or use a recurrent actor"
        )


def rows_per_update(envs: VecEnv, algorithm: AnyAlgorithm, storage: AnyStorage) -> int:
    """Return how many rows of a rollout, or transitions to replay, are collected for each update.

    Environments step together; where nobody acts, steps pass one by one.

    Raises:
        ConfigError: when neither the schedule nor the storage says so.
    """
    rows = algorithm.schedule.rows_per_update(envs.num_envs if algorithm.collects else 1)
    if rows is not None:
        return rows
    if storage.rollout_steps is None:
        raise ConfigError("the algorithm's schedule names no update_every")
    return storage.rollout_steps * envs.num_envs


def worthwhile_compile_mode(
    algorithm: AnyAlgorithm, storage: AnyStorage, updates: float, rows: int
) -> CompileMode:
    """Decide whether compiling pays for itself.

    Args:
        algorithm: what learns.
        storage: what it learns from.
        updates: how many are to come.
        rows: of environments between two updates.
    """
    schedule = algorithm.schedule
    num_batches = schedule.batches_per_epoch(storage.num_envs)
    batches = num_batches or -(-rows // (schedule.minibatch_size or rows))
    pays_after = _COMPILE_PAYS_AFTER.get(algorithm.device.type, _COMPILE_PAYS_AFTER["cpu"])
    pays_later = max(1.0, storage.steps_per_sample / _LONG_SEQUENCE)
    planned = updates * schedule.num_epochs * batches
    return "auto" if planned >= pays_after * pays_later else "off"


def resolve_auto_settings(trainer: "Trainer", budget: Budget) -> int:
    """Decide once whether to compile and how many threads to use, and keep both in the recipe.

    A resumed run so computes as it began.

    Returns:
        The number of threads.
    """
    config = trainer.config
    rows = rows_per_update(trainer.envs, trainer.algorithm, trainer.storage)
    resolved = dict(trainer.recipe.resolved)
    compile_mode, threads = resolved.get("compile"), resolved.get("num_threads")
    if not isinstance(threads, int) or config.num_threads is not None:
        threads = config.num_threads or num_threads_for(trainer.algorithm.actor)
    if compile_mode not in get_args(CompileMode) or config.compile != "auto":
        compile_mode = _compile_mode(trainer, budget, rows)
    trainer.algorithm.compiled.mode = cast("CompileMode", compile_mode)
    resolved |= {"compile": compile_mode, "num_threads": threads}
    trainer.recipe = trainer.recipe.replace(resolved=resolved)
    return threads


def _compile_mode(trainer: "Trainer", budget: Budget, rows: int) -> CompileMode:
    wanted = trainer.config.compile
    if wanted == "on":
        check_compiler(trainer.algorithm.device)
    if wanted != "auto":
        return wanted
    updates = _updates_to_come(trainer, budget, rows)
    return worthwhile_compile_mode(trainer.algorithm, trainer.storage, updates, rows)


def _updates_to_come(trainer: "Trainer", budget: Budget, rows: int) -> float:
    """Return how many updates a run still has; 0 where that cannot be known."""
    left = budget.target - budget.reached(trainer)
    if budget.unit == "updates":
        return left
    if budget.unit == "episodes":
        return 0
    collected = trainer.total_steps - trainer.state.filled_since
    waits = max(0, trainer.algorithm.schedule.update_after - collected)
    return (left - waits) / rows
