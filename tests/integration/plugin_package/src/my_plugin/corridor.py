"""Corridors with a pit at the left end and a door at the right end."""

from typing import Literal

import numpy as np
from gymnasium import spaces

from rl_core.env import EnvStep, VecEnv, action_error, as_numpy
from rl_core.errors import EnvironmentFaultError
from rl_core.seeding import checked_seed
from rl_core.types import Array, ArrayLike

RIGHT = 1


class Corridor(VecEnv):
    """Walk to the door: +1 at the door, -1 in the pit, 0 on the way.

    An episode begins in a random cell between the two, and is truncated after ``4 * length`` steps.

    Args:
        num_envs: Number of corridors, which step together.
        length: Number of cells between pit and door.
        seed: Seed of the first `reset` without one.
    """

    def __init__(self, num_envs: int = 8, length: int = 7, seed: int | None = None) -> None:
        self._num_envs = num_envs
        self.length = length
        self._seed = seed
        self._generator = np.random.default_rng()
        self._steps = np.zeros(num_envs, np.int64)
        self._cell: Array | None = None
        self._is_closed = False

    @property
    def num_envs(self) -> int:
        """Number of corridors."""
        return self._num_envs

    @property
    def single_observation_space(self) -> spaces.Discrete:
        """The cell."""
        return spaces.Discrete(self.length + 2)

    @property
    def single_action_space(self) -> spaces.Discrete:
        """Left or right."""
        return spaces.Discrete(2)

    @property
    def max_episode_steps(self) -> int:
        """Steps after which an episode is truncated."""
        return 4 * self.length

    @property
    def array_type(self) -> Literal["numpy", "torch"]:
        """NumPy."""
        return "numpy"

    def reset(self, seed: int | None = None) -> Array:
        """Begin new episodes everywhere."""
        if self._is_closed:
            raise EnvironmentFaultError("the corridors are closed")
        seed, self._seed = (self._seed if seed is None else checked_seed(seed)), None
        if seed is not None:
            self._generator = np.random.default_rng(seed)
        self._cell = self._starts()
        self._steps[:] = 0
        return self._cell.copy()

    def step(self, action: ArrayLike) -> EnvStep:
        """Move everywhere by one cell; finished episodes reset in the same step."""
        if self._cell is None:
            raise EnvironmentFaultError("the corridors were not reset; call reset() first")
        moves = as_numpy(action)
        if moves.shape != (self.num_envs,):
            raise action_error(moves.shape, self.single_action_space, self.num_envs)
        cell = self._cell + np.where(moves == RIGHT, 1, -1)
        self._steps += 1
        at_door, in_pit = cell == self.length + 1, cell == 0
        terminated = at_door | in_pit
        truncated = ~terminated & (self._steps == self.max_episode_steps)
        ended = terminated | truncated
        self._cell = np.where(ended, self._starts(), cell)
        self._steps[ended] = 0
        reward = at_door.astype(np.float32) - in_pit.astype(np.float32)
        final = cell if ended.any() else None
        valid = np.ones(self.num_envs, np.bool_)
        return EnvStep(self._cell.copy(), reward, terminated, truncated, final, valid, {})

    def close(self) -> None:
        """Refuse all further calls."""
        self._is_closed, self._cell = True, None

    def _starts(self) -> Array:
        return self._generator.integers(1, self.length + 1, self.num_envs)
