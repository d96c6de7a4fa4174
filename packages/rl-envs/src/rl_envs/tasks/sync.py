"""Gymnasium's environments whose task can be set, as a vector."""

from numbers import Integral
from typing import Protocol, cast, runtime_checkable

import torch
from torch import Tensor

from rl_core.config import NonNegativeInt, check_argument
from rl_core.env import TaskSplit, TaskVecEnv
from rl_core.errors import CheckpointError, DataError
from rl_core.types import Array, ArrayObservation, StateDict
from rl_envs.tasks.sampler import checked_tasks
from rl_envs.vector._arrays import Info
from rl_envs.vector.sync import SyncVecEnv


@runtime_checkable
class TaskEnv(Protocol):
    """What a `gymnasium.Env` needs besides to become a row of a `TaskVecEnv`.

    It may also have ``num_tasks(split)`` and ``oracle_returns(tasks)``; see `TaskVecEnv`.
    """

    def sample_tasks(
        self, count: int, generator: torch.Generator, split: TaskSplit = "train"
    ) -> Tensor:
        """Draw tasks `(count, ...)`; see `TaskVecEnv.sample_tasks`."""

    def set_task(self, task: Array) -> None:
        """Take over a task, one row of what `sample_tasks` drew; called just before a reset."""


class SyncTaskVecEnv(SyncVecEnv, TaskVecEnv):
    """A `SyncVecEnv` of environments that are `TaskEnv`; `make_vec` returns it for these.

    Rows that were given no task keep the one that they were built with.
    """

    _next_tasks: Tensor | None = None
    _task_shape: tuple[int, ...] | None = None

    def sample_tasks(
        self, count: int, generator: torch.Generator, split: TaskSplit = "train"
    ) -> Tensor:
        """Draw tasks from the first environment; see `TaskVecEnv.sample_tasks`.

        Raises:
            EnvironmentFaultError: when it returns something else.
        """
        check_argument("split", split, TaskSplit)
        with self._locating("sample_tasks"):
            tasks = self._task_env(0).sample_tasks(count, generator, split)
        return self.check_returned(tasks, "sample_tasks", count)

    def num_tasks(self, split: TaskSplit) -> int | None:
        """Return how many different tasks there are; None where that is not limited.

        Raises:
            ConfigError: when the first environment returns something else.
        """
        check_argument("split", split, TaskSplit)
        num_tasks = getattr(self._task_env(0), "num_tasks", None)
        with self._locating("num_tasks"):
            count = None if num_tasks is None else num_tasks(split)
        count = int(count) if isinstance(count, Integral) else count  # such as NumPy's
        check_argument(f"{self.spec_id}: num_tasks('{split}')", count, NonNegativeInt | None)
        return cast("int | None", count)

    def oracle_returns(self, tasks: Tensor) -> Tensor | None:
        """Return what the first environment says of tasks; None where it says nothing.

        Raises:
            EnvironmentFaultError: when it returns something else.
        """
        oracle = getattr(self._task_env(0), "oracle_returns", None)
        with self._locating("oracle_returns"):
            returns = None if oracle is None else oracle(tasks)
        if returns is None:
            return None
        return self.check_returned(returns, "oracle_returns", len(tasks), has_columns=False)

    def set_tasks(self, tasks: Tensor) -> None:
        """Give each row its task, from its next episode on.

        Raises:
            DataError: unless there is one task for each environment, of the right shape.
        """
        if self._task_shape is None:
            self._task_shape = tuple(self.sample_tasks(1, torch.Generator()).shape[1:])
        self._next_tasks = checked_tasks(tasks, (self.num_envs, *self._task_shape))

    def state_dict(self) -> StateDict:
        """Return what a `SyncVecEnv` does, and the tasks."""
        return {**super().state_dict(), "tasks": self._next_tasks}

    def load_state_dict(self, state: StateDict) -> None:
        """Restore the tasks too, from the next `reset` on.

        Raises:
            CheckpointError: if the state does not fit.
        """
        super().load_state_dict(state)
        tasks = state.get("tasks")
        if isinstance(tasks, Tensor):
            try:
                self.set_tasks(tasks)
            except DataError as error:
                raise CheckpointError(f"{self.spec_id}: 'tasks': {error}") from error
        else:
            self._next_tasks = None

    def _reset_row(self, observation: ArrayObservation, index: int, seed: int | None) -> Info:
        if self._next_tasks is not None:
            with self._locating("set_task"):
                self._task_env(index).set_task(self._next_tasks[index].numpy(force=True))
        return super()._reset_row(observation, index, seed)

    def _task_env(self, index: int) -> TaskEnv:
        return cast("TaskEnv", self._guards[index].env.unwrapped)
