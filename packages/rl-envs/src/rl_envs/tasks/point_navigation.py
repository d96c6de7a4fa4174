"""Navigation in the plane to a goal that is not observed."""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces
from torch import Tensor

from rl_core.config import ComponentSpec, Count, checked_arguments
from rl_core.env import EnvStep, TaskSplit, TaskVecEnv, action_error, as_numpy
from rl_core.errors import DataError, EnvironmentFaultError
from rl_core.seeding import checked_seed, set_generator_state
from rl_core.stateful import StateReader
from rl_core.types import ArrayLike, StateDict
from rl_envs.tasks.sampler import TaskSampler, checked_tasks, uniform

_Places: TypeAlias = npt.NDArray[np.float32]
"""Points of the plane, shape `(B, 2)`."""

_FASTEST = 0.1
_ACTIONS = spaces.Box(-_FASTEST, _FASTEST, (2,), np.float32)
_PLACES = spaces.Box(-np.inf, np.inf, (2,), np.float32)


class PointNavigation(TaskVecEnv):
    """A point that starts at the origin moves in the plane toward a goal that it cannot see.

    The observation is its position, the action a velocity whose parts are clipped to [-0.1, 0.1],
    the reward minus the squared distance to the goal after the move. The task is the goal, uniform
    in the square [-0.5, 0.5]². An episode is truncated after 100 steps. All rows move in one NumPy
    operation, and a checkpoint restores them exactly. Rows that were given no task draw a train
    task in every `reset`.

    Source: Finn et al. 2017, https://arxiv.org/abs/1703.03400, section 5.3, where an episode also
    ends within 0.01 of the goal; here all have the same length.

    Args:
        num_envs: how many points, ``B``.
        num_train_tasks: train with so many goals, always the same ones; None draws new ones.
        num_test_tasks: the same for test tasks.
        with_replacement: draw train tasks of a fixed number with replacement: one may come twice in
            a batch.
        seed: used by the first `reset` that is given none.

    Raises:
        ConfigError: unless these are whole numbers of at least 1.
    """

    array_type = "numpy"
    max_episode_steps = 100
    resume_grade = "exact"
    single_action_space = _ACTIONS
    single_observation_space = _PLACES
    spec_id = "PointNavigation-v0"

    @checked_arguments("env")
    def __init__(
        self,
        num_envs: Count = 1,
        num_train_tasks: Count | None = None,
        num_test_tasks: Count | None = None,
        with_replacement: bool = False,
        seed: int | None = None,
    ) -> None:
        self._num_envs = num_envs
        self._options = {
            "num_envs": num_envs,
            "num_train_tasks": num_train_tasks,
            "num_test_tasks": num_test_tasks,
            "with_replacement": with_replacement,
        }
        self._tasks = TaskSampler(
            uniform(-0.5, 0.5, 2), num_train_tasks, num_test_tasks, with_replacement
        )
        self._generator = torch.Generator()
        if seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(checked_seed(seed))
        self._place: _Places = np.zeros((num_envs, 2), np.float32)
        self._goal: _Places = np.zeros((num_envs, 2), np.float32)
        self._next_goal: _Places | None = None
        self._steps = 0
        self._is_ready = False
        self._is_closed = False

    @property
    def num_envs(self) -> int:
        """How many points move together, ``B``."""
        return self._num_envs

    @property
    def component(self) -> ComponentSpec:
        """How a recipe names these environments."""
        return ComponentSpec("env", self.spec_id, self._options)

    def num_tasks(self, split: TaskSplit) -> int | None:
        """Return how many goals there are; None without a limit."""
        return self._tasks.num_tasks(split)

    def sample_tasks(
        self, count: int, generator: torch.Generator, split: TaskSplit = "train"
    ) -> Tensor:
        """Draw goals `(count, 2)`; see `TaskVecEnv.sample_tasks`."""
        return self._tasks.sample(count, generator, split)

    def oracle_returns(self, tasks: Tensor) -> Tensor:
        """Return what moving straight to each goal gets; see `TaskVecEnv.oracle_returns`."""
        # After n moves each part of the distance is n * 0.1 less, or nothing.
        moved = _FASTEST * torch.arange(1, self.max_episode_steps + 1).view(-1, 1, 1)
        return -(tasks.abs() - moved).clamp(min=0.0).square().sum((0, 2))

    def set_tasks(self, tasks: Tensor) -> None:
        """Give each row its goal, from its next episode on.

        Args:
            tasks: shape `(B, 2)`.

        Raises:
            DataError: for another shape, or a goal that is not finite.
        """
        goals = checked_tasks(tasks, self._goal.shape).numpy(force=True).astype(np.float32)
        if not np.isfinite(goals).all():
            raise DataError(f"the tasks are {goals.tolist()}, where a goal is not finite")
        self._next_goal = goals

    def reset(self, seed: int | None = None) -> _Places:
        """Begin at the origin in every row."""
        self._require_open("reset")
        if seed is not None:
            self._generator.manual_seed(checked_seed(seed))
        if self._next_goal is None:
            self._goal = self._tasks.sample(self._num_envs, self._generator).numpy()
        self._is_ready = True
        return self._begin()

    def step(self, action: ArrayLike) -> EnvStep:
        """Move every point; all episodes end in the same step."""
        self._require_open("step")
        if not self._is_ready:
            raise EnvironmentFaultError(f"{self.spec_id} was not reset; call reset() first")
        velocity = as_numpy(action)
        if velocity.shape != self._place.shape:
            raise action_error(velocity.shape, _ACTIONS, self._num_envs)
        if not np.isfinite(velocity).all():
            raise DataError(f"the action is {velocity.tolist()}, where a velocity is not finite")
        self._steps += 1
        self._place = self._place + velocity.clip(-_FASTEST, _FASTEST).astype(np.float32)
        reward = -np.square(self._place - self._goal).sum(axis=1)
        ends = self._steps == self.max_episode_steps
        final = self._place if ends else None
        return EnvStep(
            self._begin() if ends else self._place.copy(),
            reward,
            np.zeros(self._num_envs, np.bool_),
            np.full(self._num_envs, ends),
            final,
            np.ones(self._num_envs, np.bool_),
            {},
        )

    def close(self) -> None:
        """Refuse whatever is asked next, except closing again."""
        self._is_closed = True

    def state_dict(self) -> StateDict:
        """Return positions, goals, the number of steps and the generator's state."""
        following = self._next_goal
        return {
            "place": torch.from_numpy(self._place.copy()),
            "goal": torch.from_numpy(self._goal.copy()),
            "next_goal": None if following is None else torch.from_numpy(following.copy()),
            "steps": self._steps,
            "is_ready": self._is_ready,
            "generator": self._generator.get_state(),
        }

    def load_state_dict(self, state: StateDict) -> None:
        """Take over a state returned by `state_dict`.

        Raises:
            CheckpointError: if it does not fit.
        """
        saved = StateReader(state, self.spec_id)
        like = torch.from_numpy(self._place)
        self._place = saved.tensor("place", like=like).numpy(force=True).copy()
        self._goal = saved.tensor("goal", like=like).numpy(force=True).copy()
        self._next_goal = None
        if saved.tensor_or_none("next_goal") is not None:
            self._next_goal = saved.tensor("next_goal", like=like).numpy(force=True).copy()
        self._steps, self._is_ready = saved.count("steps"), saved.flag("is_ready")
        set_generator_state(self._generator, saved.tensor("generator"))

    def _begin(self) -> _Places:
        if self._next_goal is not None:
            self._goal = self._next_goal
        self._place = np.zeros_like(self._place)
        self._steps = 0
        return self._place.copy()

    def _require_open(self, call: str) -> None:
        if self._is_closed:
            raise EnvironmentFaultError(f"{self.spec_id}: {call}() was called after close()")
