"""The contract of environments whose task can be chosen, as meta-learning needs them."""

from abc import abstractmethod
from typing import Literal, TypeAlias, cast

import torch
from torch import Tensor

from rl_core.env.contract import VecEnv
from rl_core.errors import ConfigError, EnvironmentFaultError
from rl_core.seeding import spawn_generator

TaskSplit: TypeAlias = Literal["train", "test"]
"""Which tasks: those that are learned from, or those that are kept for evaluation."""


class TaskVecEnv(VecEnv):
    """A vector environment that solves one task of a distribution in each row.

    A task is plain data: a row of numbers, such as a goal or a velocity. What it changes,
    rewards or dynamics, is not part of the observation.
    """

    @abstractmethod
    def sample_tasks(
        self, count: int, generator: torch.Generator, split: TaskSplit = "train"
    ) -> Tensor:
        """Draw tasks.

        Where there are only so many, each is drawn once before any is drawn again.

        Args:
            count: how many.
            generator: draws them; on the CPU.
            split: which tasks to draw from.

        Returns:
            Shape `(count, ...)`, two axes or more: a row of numbers for each task, float32, on the
            CPU.
        """

    def tasks_of_evaluation(self, count: int, seed: int) -> Tensor:
        """Return the test tasks of an evaluation `(count, ...)`, the same for the same seed.

        Raises:
            ConfigError: when there are fewer.
            EnvironmentFaultError: when `sample_tasks` returns something else.
        """
        available = self.num_tasks("test")
        if available is not None and available < count:
            raise ConfigError(
                f"{self.spec_id} has only {available} test tasks, got {count} to evaluate on; make "
                "num_test_episodes of the trainer, or the number of episodes of this evaluation, "
                "smaller"
            )
        tasks = self.sample_tasks(count, spawn_generator(seed, "tasks"), "test")
        return self.check_returned(tasks, "sample_tasks", count)

    def check_returned(
        self, rows: object, call: str, count: int, *, has_columns: bool = True
    ) -> Tensor:
        """Check what an environment returned for some tasks, and return it.

        Args:
            rows: shape `(count, ...)`, two axes or more.
            call: what was called.
            count: how many tasks.
            has_columns: False for one number for each task, `(count,)`.

        Raises:
            EnvironmentFaultError: when it is not a tensor of that shape.
        """
        shape = tuple(rows.shape) if isinstance(rows, Tensor) else ()
        if shape[:1] == (count,) and (len(shape) > 1) is has_columns:
            return cast("Tensor", rows)
        got = f"shape {shape}" if isinstance(rows, Tensor) else type(rows).__name__
        expected = f"({count}, ...), a row of numbers" if has_columns else f"({count},), a number"
        raise EnvironmentFaultError(
            f"{self.spec_id}: {call} of {count} tasks returned {got}; expected a tensor of shape "
            f"{expected} for each"
        )

    @abstractmethod
    def set_tasks(self, tasks: Tensor) -> None:
        """Give each row its task, from its next episode on.

        Where episodes can be resumed exactly, the tasks are part of `state_dict`.

        Args:
            tasks: shape `(B, ...)`, rows as `sample_tasks` returns them.
        """

    def num_tasks(self, split: TaskSplit) -> int | None:
        """Return how many different tasks there are; None where their number is not limited."""
        return None

    def oracle_returns(self, tasks: Tensor) -> Tensor | None:
        """Return what the best policy that knows its task gets in an episode of each.

        Args:
            tasks: shape `(count, ...)`, rows as `sample_tasks` returns them.

        Returns:
            Shape `(count,)`; None where that is not known.
        """
        return None
