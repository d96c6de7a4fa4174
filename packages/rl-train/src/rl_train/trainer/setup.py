"""Before a run: whether its parts fit together, and how ``auto`` settings are resolved."""

import ctypes
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, cast, get_args

import torch
from torch import nn

from rl_core.algorithm import Algorithm, AnyAlgorithm
from rl_core.compile.compiler import check_compiler
from rl_core.compile.function import CompileMode
from rl_core.compile.library import TESTED_TORCH, is_supported
from rl_core.env import VecEnv
from rl_core.errors import ConfigError
from rl_core.storage import AnyStorage, Storage
from rl_core.types import Json
from rl_train.evaluation import check_spaces, has_custom_evaluation
from rl_train.trainer.budget import Budget
from rl_train.trainer.config import TrainerConfig
from rl_train.trainer.listeners import type_name

if TYPE_CHECKING:
    from rl_train.trainer.trainer import Trainer

_COMPILE_PAYS_AFTER = {"cpu": 7_500, "cuda": 500}
"""Gradient steps from which compiling saves more time than it takes, by kind of device."""

_LONG_SEQUENCE = 32
"""Steps of a sequence up to which that holds; the graphs of longer ones take longer to compile."""

_SMALL_STEP = 2e8
"""Operations of a gradient step up to which that holds; compiling saves more of larger steps."""

_SMALL_NETWORK = 30_000
"""Parameters below which a second thread costs more in handing over than it saves."""

_DRAWING = (
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
    nn.RReLU,
)
"""Layers of PyTorch's that draw random numbers in training."""

_AVERAGING = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
"""Layers of PyTorch's that compare the rows of a batch, and change with each one in training."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Settings of glibc's ``mallopt``."""


def check_parts(
    envs: VecEnv, algorithm: AnyAlgorithm, storage: AnyStorage, config: TrainerConfig
) -> None:
    """Check that the parts of a run fit each other.

    Raises:
        ConfigError: when one is something else, or options contradict each other.
        SpaceError: when the actor was built for other spaces than the environments have.
    """
    for name, part, expected in (
        ("algorithm", algorithm, Algorithm),
        ("storage", storage, Storage),
        ("config", config, TrainerConfig),
    ):
        if not isinstance(part, expected):
            raise ConfigError(
                f"{name}: expected an instance of {expected.__name__}, got {type_name(part)}"
            )
    needs, gives = algorithm.batch_type, storage.batch_type
    if needs is not gives:
        raise ConfigError(
            f"{type(algorithm).__name__} learns from {needs.__name__}, but "
            f"{type(storage).__name__} gives {gives.__name__}; choose a storage "
            "that gives such batches, or leave it out to get one"
        )
    check_spaces(algorithm.actor, envs)
    if storage.rollout_steps is None:
        _check_replay(algorithm, storage)
    else:
        _check_rollout(algorithm, storage.rollout_steps * envs.num_envs, config)
    if config.scale_rewards and has_custom_evaluation(algorithm):
        raise ConfigError(
            f"scale_rewards scales rewards in training, but not in evaluations, in which "
            f"{type(algorithm).__name__} adapts to them too; leave it out"
        )
    if algorithm.extras and (count := algorithm.schedule.start_steps):
        raise ConfigError(
            f"algorithm.start_steps={count} takes random actions, beside which "
            f"{type(algorithm).__name__} would store the {', '.join(algorithm.extras)} of others; "
            "set it to 0"
        )
    algorithm.check_envs(envs)
    algorithm.check_storage(storage)
    if config.explore_in_tests:
        algorithm.explorer()  # which some algorithms refuse
    known = set(algorithm.named_parameters().values())
    for name, own in vars(algorithm).items():
        if isinstance(own, nn.Module) and not known.issuperset(own.parameters()):
            raise ConfigError(
                f"algorithm.{name} has parameters that are neither learned nor saved: return it "
                "from make_modules, and freeze it (requires_grad_(False)) if it is not to learn"
            )
    for name, module in algorithm.actor.named_modules():
        if isinstance(module, _DRAWING) and getattr(module, "p", 1.0) > 0.0:
            warnings.warn(
                f"actor.{name} is {type(module).__name__}, which draws from torch's global "
                "generator, neither seeded nor saved by a run: equal seeds give different runs",
                RuntimeWarning,
                stacklevel=3,
            )
        if isinstance(module, _AVERAGING) and module.training:
            warnings.warn(
                f"actor.{name} is {type(module).__name__}, whose statistics change with every "
                "batch that acts or learns: actions depend on the other environments, and the "
                "policy that acted is not the one that is learned from; use nn.LayerNorm",
                RuntimeWarning,
                stacklevel=3,
            )


def _check_replay(algorithm: AnyAlgorithm, storage: AnyStorage) -> None:
    if algorithm.actor.is_recurrent and not storage.gives_sequences:
        raise ConfigError(
            f"the actor is recurrent, but {type(storage).__name__} replays single transitions, "
            "which have no recurrent state; let the storage give sequences (storage.sequences), "
            "or use an actor without a recurrent core"
        )
    if storage.gives_sequences and not algorithm.actor.is_recurrent:
        raise ConfigError(
            f"{type(storage).__name__} replays sequences, but the actor is not recurrent; leave "
            "storage.sequences out, or use a recurrent actor"
        )
    if len(storage):
        raise ConfigError(
            f"the {type(storage).__name__} holds {len(storage)} steps, which "
            "a new run would drop; save it and give that directory as trainer.demonstrations, "
            "or load it into a new storage when the Trainer is made, or reset it"
        )


def _check_rollout(algorithm: AnyAlgorithm, rows: int, config: TrainerConfig) -> None:
    schedule = algorithm.schedule
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
    if not config.checkpoint_replay:
        raise ConfigError(
            "checkpoint_replay=False has no effect on rollouts, which are not replayed, nor on "
            "what is kept beside them; leave it out"
        )


def check_episodes_end(trainer: "Trainer") -> None:
    """Check that a run may count episodes until it is over.

    Raises:
        ConfigError: when nobody acts, or each rollout begins new episodes and ends before they do.
    """
    algorithm, rows = trainer.algorithm, trainer.storage.rollout_steps
    begins_episodes = type(algorithm).before_rollout is not Algorithm.before_rollout
    longest = trainer.envs.max_episode_steps or 0
    if not algorithm.collects:
        problem = "learns from data alone here and finishes no episode"
    elif begins_episodes and rows is not None and rows < longest:
        problem = (
            f"begins new episodes after each rollout of {rows} steps, in which one of up to "
            f"{longest} may not end"
        )
    else:
        return
    raise ConfigError(
        f"total_episodes counts finished episodes, but {type(algorithm).__name__} {problem}; give "
        "total_steps or total_updates"
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
        raise ConfigError(
            f"the schedule of {type(algorithm).__name__} has no update_every, and its storage no "
            "rollouts to update after; give update_every to UpdateSchedule.of"
        )
    return storage.rollout_steps * envs.num_envs


def resolve_auto_settings(trainer: "Trainer", budget: Budget) -> int:
    """Decide whether to compile and how many threads to use; the recipe keeps it, and the length.

    A resumed run keeps what was decided when it began.

    Returns:
        The number of threads.
    """
    config, algorithm = trainer.config, trainer.algorithm
    resolved = dict(trainer.recipe.resolved)
    mode, threads = resolved.get("compile"), resolved.get("num_threads")
    if config.num_threads is not None or not isinstance(threads, int):
        threads = config.num_threads or num_threads_for(algorithm.actor)
    if config.compile != "auto":
        mode = config.compile
        if mode == "on":
            check_compiler(algorithm.device)
    elif mode not in get_args(CompileMode):
        rows = rows_per_update(trainer.envs, algorithm, trainer.storage)
        updates = _updates_to_come(trainer, budget, rows)
        mode = worthwhile_compile_mode(algorithm, trainer.storage, updates, rows)
        if mode == "auto" and algorithm.device.type == "cpu" and not is_supported():
            mode = "off"
            warnings.warn(
                f"torch {torch.__version__} is not among those whose compiled steps are fast "
                f"({', '.join(TESTED_TORCH)}), so this run is not compiled; install one of them, "
                "or set trainer.compile to 'on'",
                RuntimeWarning,
                stacklevel=2,
            )
    algorithm.compiled.set_mode(cast("CompileMode", mode))
    decided: dict[str, Json] = {"compile": mode, "num_threads": threads}
    if names := _custom_names(trainer):
        decided["custom"] = names
    resolved = {**budget.recorded_in(resolved), **decided}
    trainer.recipe = replace(trainer.recipe, resolved=resolved)
    return threads


def _custom_names(trainer: "Trainer") -> dict[str, Json]:
    """Return what the user's own parts are called, by kind; the recipe says no more of them."""
    names = {
        "env": trainer.envs.spec_id,
        "actor": type(trainer.algorithm.actor).__qualname__,
        "algorithm": type(trainer.algorithm).__qualname__,
        "storage": type(trainer.storage).__qualname__,
    }
    recipe = trainer.recipe
    return {kind: name for kind, name in names.items() if getattr(recipe, kind).is_custom}


def worthwhile_compile_mode(
    algorithm: AnyAlgorithm, storage: AnyStorage, updates: float, rows: int
) -> CompileMode:
    """Decide whether compiling saves more time than it takes.

    Args:
        algorithm: the algorithm.
        storage: what it learns from.
        updates: number of updates to come.
        rows: rows of environments between two updates.
    """
    schedule = algorithm.schedule
    num_batches = schedule.batches_per_epoch(storage.num_envs)
    size = schedule.minibatch_size or -(-rows // (num_batches or 1))
    batches = num_batches or -(-rows // size)
    pays_after = _COMPILE_PAYS_AFTER.get(algorithm.device.type, _COMPILE_PAYS_AFTER["cpu"])
    pays_later = max(1.0, storage.steps_per_sample / _LONG_SEQUENCE)
    pays_sooner = 1.0
    if not algorithm.actor.is_recurrent:
        weights = sum(parameter.numel() for parameter in algorithm.actor.parameters())
        # A product with each weight, and two more for the gradient.
        pays_sooner = max(1.0, 6.0 * weights * size / _SMALL_STEP)
    planned = updates * schedule.num_epochs * batches
    return "auto" if planned >= pays_after * pays_later / pays_sooner else "off"


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


def num_threads_for(network: nn.Module) -> int:
    """Choose the number of PyTorch's threads by the size of a network."""
    size = sum(parameter.numel() for parameter in network.parameters())
    return 1 if size < _SMALL_NETWORK else torch.get_num_threads()


@contextmanager
def thread_count(count: int) -> Iterator[None]:
    """Let PyTorch use so many threads within a block, and as many as before after it."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def reuse_freed_memory() -> None:
    """Let the C library keep freed memory for the next block instead of returning it.

    The system zeroes returned memory page by page when it is used again: up to a third of the time
    of updates whose tensors have some 10 MB. Only Linux's usual C library knows the settings; those
    that the user made by environment variables are left alone.
    """
    if sys.platform != "linux" or any(
        name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ
    ):
        return
    with suppress(OSError, AttributeError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        # Some versions refuse a threshold of separate mappings above 32 MiB.
        if mallopt(_M_MMAP_THRESHOLD, 2**30) or mallopt(_M_MMAP_THRESHOLD, 2**25):
            mallopt(_M_TRIM_THRESHOLD, 2**30)
