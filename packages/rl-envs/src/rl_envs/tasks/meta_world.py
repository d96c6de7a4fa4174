"""Meta-World's ML1: a robot arm does one thing, to goals that differ by task.

Source: Yu et al. 2019, https://arxiv.org/abs/1910.10897, section 4.3.
"""

import importlib
from functools import cache
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from rl_core.config import check_argument
from rl_core.env import TaskSplit
from rl_core.errors import ConfigError, nearest
from rl_core.types import Array, StateDict
from rl_envs.state import get_state, set_state
from rl_envs.tasks.sampler import draw_fixed

_NUM_GOALS = 50


class MetaWorldML1(gymnasium.Env[Array, Array]):
    """One of Meta-World's environments with 50 goals to train on and 50 to test on.

    A task is the number of a goal, from 0 to 49 to train on and from 50 to 99 to test on. The goal
    is not part of the observation. An episode is truncated after 500 steps.

    Args:
        env_name: Meta-World's name, such as ``"push-v3"``.
        goal_seed: seed of the goals.
        with_replacement: draw the goals to train on with replacement: one may come twice in a
            batch.
        render_mode: ``"human"``, ``"rgb_array"``, ``"depth_array"`` or None.

    Raises:
        ConfigError: if there is no such environment.
    """

    def __init__(
        self,
        env_name: str = "reach-v3",
        goal_seed: int = 0,
        with_replacement: bool = False,
        render_mode: str | None = None,
    ) -> None:
        check_argument("with_replacement", with_replacement, bool)
        self._with_replacement = with_replacement
        benchmark = _ml1(env_name, goal_seed)
        (build,) = benchmark.train_classes.values()
        self._goals = [*benchmark.train_tasks, *benchmark.test_tasks]
        self._env = build(render_mode=render_mode)
        self.metadata, self.render_mode = self._env.metadata, render_mode
        self.observation_space = self._env.observation_space
        self.action_space = self._env.action_space
        self.set_task(np.zeros(1))

    def sample_tasks(
        self, count: int, generator: torch.Generator, split: TaskSplit = "train"
    ) -> Tensor:
        """Draw numbers of goals `(count, 1)`; see `TaskVecEnv.sample_tasks`."""
        first = 0.0 if split == "train" else float(_NUM_GOALS)
        goals = first + torch.arange(_NUM_GOALS).unsqueeze(1)
        return draw_fixed(goals, count, generator, self._with_replacement and split == "train")

    def num_tasks(self, split: TaskSplit) -> int:
        """Return how many goals there are."""
        return _NUM_GOALS

    def set_task(self, task: Array) -> None:
        """Take over a goal."""
        self._env.set_task(self._goals[int(task[0])])

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """Reset; the task decides everything, and the seed nothing."""
        super().reset(seed=seed)
        observation, info = self._env.reset()
        return observation, info

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Step; the info also reports ``is_success``."""
        observation, reward, terminated, truncated, info = self._env.step(action)
        info["is_success"] = bool(info["success"])
        return observation, reward, terminated, truncated, info

    def render(self) -> Any:
        """Return a picture, or show it."""
        return self._env.render()

    def close(self) -> None:
        """Close the window."""
        self._env.close()

    def state_dict(self) -> StateDict:
        """Return the simulator's state and the goal."""
        return get_state(self._env)

    def load_state_dict(self, state: StateDict) -> None:
        """Restore what `state_dict` returned."""
        set_state(self._env, state)


@cache  # drawing the goals takes seconds
def _ml1(env_name: str, goal_seed: int) -> Any:
    ml1 = importlib.import_module("metaworld").ML1
    if env_name not in ml1.ENV_NAMES:
        raise ConfigError(
            f"env_name: Meta-World has no '{env_name}'{nearest(env_name, ml1.ENV_NAMES)}"
        )
    return ml1(env_name, seed=goal_seed)


gymnasium.register(
    "MetaWorldML1-v0",
    entry_point="rl_envs.tasks.meta_world:MetaWorldML1",
    max_episode_steps=500,
)
