"""Draws tasks, from a distribution or from a fixed number of them."""

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from rl_core.config import Count, check_argument
from rl_core.env import TaskSplit
from rl_core.errors import ConfigError, DataError, in_brief
from rl_core.seeding import spawn_generator

DrawTasks: TypeAlias = Callable[[int, torch.Generator], Tensor]
"""From a number and a generator to so many tasks, shape `(count, ...)`."""


class TaskSampler:
    """Draws train and test tasks; see `TaskVecEnv.sample_tasks`.

    Args:
        draw: draws independent tasks.
        num_train_tasks: how many train tasks there are, always the same ones; None draws new ones
            every time.
        num_test_tasks: the same for test tasks.
        with_replacement: draw each of a fixed number of train tasks independently of the others,
            so that a batch may hold one twice and lack another. Test tasks are drawn without.

    Raises:
        ConfigError: when a number of tasks is below 1, or ``with_replacement`` has no effect,
            because the number of train tasks is not fixed.
    """

    def __init__(
        self,
        draw: DrawTasks,
        num_train_tasks: int | None = None,
        num_test_tasks: int | None = None,
        with_replacement: bool = False,
    ) -> None:
        numbers: dict[TaskSplit, int | None] = {"train": num_train_tasks, "test": num_test_tasks}
        for split, number in numbers.items():
            check_argument(f"num_{split}_tasks", number, Count | None)
        if with_replacement and num_train_tasks is None:
            raise ConfigError(
                "with_replacement has no effect without num_train_tasks, where every draw is new; "
                "give both or neither"
            )
        self._draw = draw
        self._with_replacement = with_replacement
        self._fixed = {
            split: None if number is None else draw(number, spawn_generator(0, split))
            for split, number in numbers.items()
        }

    def num_tasks(self, split: TaskSplit) -> int | None:
        """Return how many different tasks there are; None without a limit."""
        check_argument("split", split, TaskSplit)
        tasks = self._fixed[split]
        return None if tasks is None else len(tasks)

    def sample(self, count: int, generator: torch.Generator, split: TaskSplit = "train") -> Tensor:
        """Draw tasks; without replacement each once before any is drawn again."""
        check_argument("split", split, TaskSplit)
        tasks = self._fixed[split]
        if tasks is None:
            return self._draw(count, generator)
        return draw_fixed(tasks, count, generator, self._with_replacement and split == "train")


class SampledTasks:
    """Gives an environment the tasks of a `TaskEnv`; the first base of a class.

    Args:
        num_train_tasks: how many train tasks there are; None draws new ones every time.
        num_test_tasks: the same for test tasks.
        with_replacement: draw train tasks of a fixed number with replacement.
        **kwargs: those of the environment.
    """

    def __init__(
        self,
        num_train_tasks: int | None = None,
        num_test_tasks: int | None = None,
        with_replacement: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._sampler = TaskSampler(
            self.draw_tasks, num_train_tasks, num_test_tasks, with_replacement
        )

    def draw_tasks(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw independent tasks, shape `(count, ...)`."""
        raise NotImplementedError

    def sample_tasks(
        self, count: int, generator: torch.Generator, split: TaskSplit = "train"
    ) -> Tensor:
        """Draw tasks; see `TaskVecEnv.sample_tasks`."""
        return self._sampler.sample(count, generator, split)

    def num_tasks(self, split: TaskSplit) -> int | None:
        """Return how many different tasks there are; None without a limit."""
        return self._sampler.num_tasks(split)


def draw_fixed(
    tasks: Tensor, count: int, generator: torch.Generator, with_replacement: bool = False
) -> Tensor:
    """Draw from given tasks `(n, ...)`; without replacement each once before any again."""
    if with_replacement:
        return tasks[torch.randint(len(tasks), (count,), generator=generator)]
    rounds = -(-count // len(tasks))
    order = [torch.randperm(len(tasks), generator=generator) for _ in range(rounds)]
    return tasks[torch.cat(order)[:count]]


def checked_tasks(tasks: object, shape: tuple[int, ...]) -> Tensor:
    """Return a copy of tasks, after a look at their shape.

    Raises:
        DataError: for another shape, or what is not a tensor or array.
    """
    try:
        found = torch.as_tensor(tasks)
    except (RuntimeError, TypeError, ValueError) as error:
        raise DataError(f"the tasks are not a tensor: {in_brief(error)}") from error
    if found.shape != shape:
        raise DataError(
            f"the tasks have shape {tuple(found.shape)}; expected {shape}: one task for each "
            "environment"
        )
    return found.detach().clone()


def uniform(low: float, high: float, size: int) -> DrawTasks:
    """Return a function that draws vectors of independent numbers, uniform in [low, high).

    Raises:
        ConfigError: when low is above high.
    """
    if low > high:
        raise ConfigError(f"low={low} is above high={high}; change one of them")

    def draw(count: int, generator: torch.Generator) -> Tensor:
        return low + (high - low) * torch.rand(count, size, generator=generator)

    return draw
