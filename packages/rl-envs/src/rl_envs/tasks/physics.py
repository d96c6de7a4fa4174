"""Classic control whose physics differ by task."""

from typing import Any, ClassVar

import torch
from gymnasium.envs.classic_control import CartPoleEnv, PendulumEnv
from torch import Tensor

from rl_core.errors import ConfigError
from rl_core.types import Array
from rl_envs.tasks.sampler import SampledTasks, uniform


class _Physics(SampledTasks):
    """An environment of which a task multiplies some numbers by factors.

    Args:
        spread: how far factors are from 1, below 1.
        **kwargs: those of the environment, and ``num_train_tasks``, ``num_test_tasks``,
            ``with_replacement``.

    Raises:
        ConfigError: when ``spread`` is not in [0, 1).
    """

    _varied: ClassVar[tuple[str, ...]]
    """Attributes that the factors of a task are for."""

    def __init__(self, spread: float = 0.5, **kwargs: Any) -> None:
        if not 0.0 <= spread < 1.0:
            raise ConfigError(f"spread must be a number in [0, 1), got {spread}")
        self._draw_factors = uniform(1.0 - spread, 1.0 + spread, len(self._varied))
        super().__init__(**kwargs)
        self._usual = tuple(getattr(self, name) for name in self._varied)

    def draw_tasks(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw factors, shape `(count, 3)`."""
        return self._draw_factors(count, generator)

    def set_task(self, task: Array) -> None:
        """Take over the factors of a task."""
        for name, factor, usual in zip(self._varied, task.tolist(), self._usual, strict=True):
            setattr(self, name, factor * usual)


class CartPolePhysics(_Physics, CartPoleEnv):
    """CartPole with another pole and another push in each task.

    A task is three factors: on the pole's length, on its mass, and on the force of a push, each
    uniform in [1 - spread, 1 + spread). Without a task it is CartPole.

    Args:
        spread: how far factors are from 1, below 1.
        **kwargs: those of CartPole, and ``num_train_tasks``, ``num_test_tasks``,
            ``with_replacement``.
    """

    _varied = ("length", "masspole", "force_mag")

    def set_task(self, task: Array) -> None:
        """Take over the factors of a task."""
        super().set_task(task)
        self.total_mass = self.masspole + self.masscart
        self.polemass_length = self.masspole * self.length


class PendulumPhysics(_Physics, PendulumEnv):
    """Pendulum with another pole and another gravity in each task.

    A task is three factors: on gravity, on the pole's mass and on its length, each uniform in
    [1 - spread, 1 + spread). Without a task it is Pendulum.

    Args:
        spread: how far factors are from 1, below 1.
        **kwargs: those of Pendulum, and ``num_train_tasks``, ``num_test_tasks``,
            ``with_replacement``.
    """

    _varied = ("g", "m", "l")
