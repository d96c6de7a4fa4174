"""Tasks that are environments of their own."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import gymnasium
import torch
from torch import Tensor

from rl_core.config import check_argument
from rl_core.env import TaskSplit
from rl_core.errors import ConfigError, SpaceError
from rl_core.seeding import spawn_seed
from rl_core.types import Array
from rl_envs.guard import name_and_limit
from rl_envs.tasks.sampler import draw_fixed

BuildEnv: TypeAlias = Callable[[], gymnasium.Env[Any, Any]]
"""A class or function that builds an environment."""


class TaskPool(gymnasium.Env[Any, Any]):
    """An environment that is another one in each task.

    A task is the number of an environment. Each is built when its task is first set, and kept.

    Args:
        train: environments to train on, in order of their numbers from 0.
        test: environments to test on, whose numbers follow.
        with_replacement: draw train tasks with replacement: one may come twice in a batch.

    Attributes:
        max_steps: the time limit of the first environment; None where it has none.

    Raises:
        ConfigError: when there is none to train or to test on.
        SpaceError: when one has other spaces than the first; raised as it is built.
    """

    def __init__(
        self,
        train: Sequence[BuildEnv],
        test: Sequence[BuildEnv],
        *,
        with_replacement: bool = False,
    ) -> None:
        if not (train and test):
            raise ConfigError(
                f"got {len(train)} environments to train on and {len(test)} to test on; give at "
                "least one of each"
            )
        self._builders = [*train, *test]
        self._num_train = len(train)
        check_argument("with_replacement", with_replacement, bool)
        self._with_replacement = with_replacement
        self._built: dict[int, gymnasium.Env[Any, Any]] = {}
        self._env = self._built[0] = self._builders[0]()
        _, self.max_steps = name_and_limit(self._env.spec, self._env)
        self._number = 0
        self._seed: int | None = None
        self._is_seeded: set[int] = set()
        self.observation_space = self._env.observation_space
        self.action_space = self._env.action_space

    def num_tasks(self, split: TaskSplit) -> int:
        """Return how many environments there are."""
        return self._num_train if split == "train" else len(self._builders) - self._num_train

    def sample_tasks(
        self, count: int, generator: torch.Generator, split: TaskSplit = "train"
    ) -> Tensor:
        """Draw numbers of environments `(count, 1)`; see `TaskVecEnv.sample_tasks`."""
        first = 0 if split == "train" else self._num_train
        numbers = torch.arange(first, first + self.num_tasks(split), dtype=torch.float32)
        replaces = self._with_replacement and split == "train"
        return draw_fixed(numbers.unsqueeze(1), count, generator, replaces)

    def set_task(self, task: Array) -> None:
        """Become the environment of a number."""
        number = int(task[0])
        if number not in self._built:
            env = self._builders[number]()
            if (env.observation_space, env.action_space) != (
                self.observation_space,
                self.action_space,
            ):
                raise SpaceError(f"environment {number} has other spaces than the first one")
            self._built[number] = env
        self._env, self._number = self._built[number], number

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode of the task's environment; a seed gives each one of its own."""
        if seed is not None:
            self._seed = seed
            self._is_seeded.clear()
        own = None
        if self._seed is not None and self._number not in self._is_seeded:
            own = spawn_seed(self._seed, f"environment {self._number}")
            self._is_seeded.add(self._number)
        return self._env.reset(seed=own, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the task's environment."""
        return self._env.step(action)

    def close(self) -> None:
        """Close all environments."""
        for env in self._built.values():
            env.close()
