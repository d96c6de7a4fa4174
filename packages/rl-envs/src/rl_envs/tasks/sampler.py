"""Draws tasks, from a distribution or from a fixed number of them."""

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from rl_core.env import TaskSplit
from rl_core.seeding import spawn_generators

DrawTasks: TypeAlias = Callable[[int, torch.Generator], Tensor]
"""From a number and a generator to so many tasks, shape `(count, ...)`."""


class TaskSampler:
    """Draws train and test tasks; see `TaskVecEnv.sample_tasks`.

    Args:
        draw: draws independent tasks.
        num_train_tasks: how many train tasks there are, always the same ones; None draws new ones
            every time.
        num_test_tasks: the same for test tasks.
    """

    def __init__(
        self,
        draw: DrawTasks,
        num_train_tasks: int | None = None,
        num_test_tasks: int | None = None,
    ) -> None:
        self._draw = draw
        generators = spawn_generators(0, ["train", "test"])
        self._fixed: dict[TaskSplit, Tensor | None] = {
            "train": None
            if num_train_tasks is None
            else draw(num_train_tasks, generators["train"]),
            "test": None if num_test_tasks is None else draw(num_test_tasks, generators["test"]),
        }

    def num_tasks(self, split: TaskSplit) -> int | None:
        """Return how many different tasks there are; None without a limit."""
        tasks = self._fixed[split]
        return None if tasks is None else len(tasks)

    def sample(self, count: int, generator: torch.Generator, split: TaskSplit = "train") -> Tensor:
        """Draw tasks, each of a fixed number once before any is drawn again."""
        tasks = self._fixed[split]
        if tasks is None:
            return self._draw(count, generator)
        return draw_evenly(tasks, count, generator)


class SampledTasks:
    """Gives a `TaskEnv` the tasks of its sampler, ``tasks``."""

    tasks: TaskSampler

    def sample_tasks(
        self, count: int, generator: torch.Generator, split: TaskSplit = "train"
    ) -> Tensor:
        """Draw tasks; see `TaskVecEnv.sample_tasks`."""
        return self.tasks.sample(count, generator, split)

    def num_tasks(self, split: TaskSplit) -> int | None:
        """Return how many different tasks there are; None without a limit."""
        return self.tasks.num_tasks(split)


def draw_evenly(tasks: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Draw from given tasks `(n, ...)`, each once before any is drawn again."""
    rounds = -(-count // len(tasks))
    order = [torch.randperm(len(tasks), generator=generator) for _ in range(rounds)]
    return tasks[torch.cat(order)[:count]]


def uniform(low: float, high: float, size: int) -> DrawTasks:
    """Return a function that draws vectors of independent numbers, uniform in [low, high)."""

    def draw(count: int, generator: torch.Generator) -> Tensor:
        return low + (high - low) * torch.rand(count, size, generator=generator)

    return draw
