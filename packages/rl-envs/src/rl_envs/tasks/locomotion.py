"""MuJoCo's half-cheetah and ant, which run where and how fast the task says.

Source: Finn et al. 2017, https://arxiv.org/abs/1703.03400, section 5.3; directions in the plane
after Rakelly et al. 2019, https://arxiv.org/abs/1903.08254, section 6.1.
"""

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from gymnasium.envs.mujoco.ant_v5 import AntEnv
from gymnasium.envs.mujoco.half_cheetah_v5 import HalfCheetahEnv
from torch import Tensor

from rl_core.config import check_argument
from rl_core.env import TaskSplit
from rl_core.types import Array
from rl_envs.tasks.sampler import SampledTasks, draw_fixed, uniform

_DIRECTIONS = torch.tensor([[1.0], [-1.0]])

_Step: TypeAlias = tuple[npt.NDArray[np.float64], np.float64, bool, bool, dict[str, np.float64]]


class HalfCheetahDir(HalfCheetahEnv):
    """A half-cheetah that is rewarded for its velocity forward (task 1) or backward (task -1).

    Args:
        with_replacement: draw train tasks independently, not each as often as the other.
        **kwargs: those of HalfCheetah-v5.
    """

    direction = 1.0

    def __init__(self, with_replacement: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_argument("with_replacement", with_replacement, bool)
        self._with_replacement = with_replacement

    def sample_tasks(
        self, count: int, generator: torch.Generator, split: TaskSplit = "train"
    ) -> Tensor:
        """Draw directions, shape `(count, 1)`; see `TaskVecEnv.sample_tasks`."""
        replaces = self._with_replacement and split == "train"
        return draw_fixed(_DIRECTIONS, count, generator, replaces)

    def num_tasks(self, split: TaskSplit) -> int | None:
        """Return how many train tasks there are; evaluations may have any number of the two."""
        return len(_DIRECTIONS) if split == "train" else None

    def set_task(self, task: Array) -> None:
        """Take over a direction."""
        self.direction = float(task[0])

    def step(self, action: Array) -> _Step:
        """Step; the reward is the velocity in the task's direction, less the cost of control."""
        observation, _, terminated, truncated, info = super().step(action)  # type: ignore[no-untyped-call]  # Gymnasium's
        info["reward_forward"] = self._forward_reward_weight * self.direction * info["x_velocity"]
        reward = info["reward_forward"] + info["reward_ctrl"]
        return observation, np.float64(reward), terminated, truncated, info


class HalfCheetahVel(SampledTasks, HalfCheetahEnv):
    """A half-cheetah that is rewarded for running forward as fast as the task says, in m/s.

    Args:
        low: slowest velocity of a task.
        high: fastest velocity of a task.
        **kwargs: those of HalfCheetah-v5, and ``num_train_tasks``, ``num_test_tasks``,
            ``with_replacement``.
    """

    velocity = 1.0

    def __init__(self, low: float = 0.0, high: float = 2.0, **kwargs: Any) -> None:
        self._draw_velocities = uniform(low, high, 1)
        super().__init__(**kwargs)

    def draw_tasks(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw velocities, shape `(count, 1)`."""
        return self._draw_velocities(count, generator)

    def set_task(self, task: Array) -> None:
        """Take over a velocity."""
        self.velocity = float(task[0])

    def step(self, action: Array) -> _Step:
        """Step; the reward is minus the distance to the velocity, less the cost of control."""
        observation, _, terminated, truncated, info = super().step(action)  # type: ignore[no-untyped-call]  # Gymnasium's
        missed = abs(info["x_velocity"] - self.velocity)
        info["reward_forward"] = -self._forward_reward_weight * missed
        reward = info["reward_forward"] + info["reward_ctrl"]
        return observation, np.float64(reward), terminated, truncated, info


class AntDir(SampledTasks, AntEnv):
    """An ant that is rewarded for its velocity in a direction of the plane.

    A task is the direction's cosine and sine, uniform on the circle.

    Args:
        **kwargs: those of Ant-v5, and ``num_train_tasks``, ``num_test_tasks``,
            ``with_replacement``.
    """

    direction = (1.0, 0.0)

    def draw_tasks(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw directions, shape `(count, 2)`."""
        angle = 2.0 * torch.pi * torch.rand(count, generator=generator)
        return torch.stack([angle.cos(), angle.sin()], dim=1)

    def set_task(self, task: Array) -> None:
        """Take over a direction."""
        self.direction = float(task[0]), float(task[1])

    def step(self, action: Array) -> _Step:
        """Step; of Ant's reward only what is forward differs."""
        observation, _, terminated, truncated, info = super().step(action)  # type: ignore[no-untyped-call]  # Gymnasium's
        along = self.direction[0] * info["x_velocity"] + self.direction[1] * info["y_velocity"]
        info["reward_forward"] = self._forward_reward_weight * along
        reward = sum(info[f"reward_{part}"] for part in ("forward", "ctrl", "contact", "survive"))
        return observation, np.float64(reward), terminated, truncated, info
