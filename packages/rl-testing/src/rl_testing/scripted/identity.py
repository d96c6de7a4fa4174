"""An environment whose right action is what it shows."""

from collections.abc import Mapping
from typing import SupportsFloat

import gymnasium
import numpy as np
from gymnasium import spaces

from rl_core.errors import SpaceError
from rl_core.spaces import Space
from rl_core.types import Array
from rl_testing.scripted.info import Info

IDENTITY_SPACES: Mapping[str, Space] = {
    "discrete": spaces.Discrete(4),
    "box": spaces.Box(-1.0, 1.0, (2,), np.float32),
    "multi_discrete": spaces.MultiDiscrete([3, 2]),
    "multi_binary": spaces.MultiBinary(3),
}
"""One space of each kind for `IdentityEnv`."""


class IdentityEnv(gymnasium.Env):
    """Rewards the action that equals the observation, which is drawn anew in every step.

    A right action earns 1: for Discrete it is right or wrong, for MultiDiscrete and MultiBinary
    each part earns its share, and for a Box the reward falls linearly with the mean distance, to 0
    at the width of the box. The episode terminates after ``episode_length`` steps.

    Args:
        space: both observation and action space, such as one of `IDENTITY_SPACES`.
        episode_length: steps per episode.

    Raises:
        SpaceError: for another kind of space, or a Box without bounds.
    """

    def __init__(self, space: Space, episode_length: int = 8) -> None:
        if not isinstance(space, tuple(type(known) for known in IDENTITY_SPACES.values())):
            raise SpaceError(
                f"{space} has no identity task; expected Box, Discrete, MultiDiscrete or "
                "MultiBinary"
            )
        if isinstance(space, spaces.Box) and not space.is_bounded():
            raise SpaceError(f"{space} is unbounded; expected bounds on both sides")
        self.observation_space = space
        self.action_space = space
        self.episode_length = episode_length
        self.steps = 0
        self._target: Array = np.zeros(0)

    @property
    def optimal_return(self) -> float:
        """The return of the best policy."""
        return float(self.episode_length)

    @property
    def constant_return(self) -> float:
        """The expected return of the best policy that does not look."""
        space = self.observation_space
        if isinstance(space, spaces.Discrete):
            return self.episode_length / float(space.n)
        if isinstance(space, spaces.MultiDiscrete):
            return self.episode_length * float(np.mean(1.0 / space.nvec))
        if isinstance(space, spaces.MultiBinary):
            return self.episode_length * 0.5
        return self.episode_length * 0.75

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Array, Info]:
        """Begin a new episode."""
        super().reset(seed=seed)
        self.steps = 0
        return self._observe(), {}

    def step(self, action: object) -> tuple[Array, SupportsFloat, bool, bool, Info]:
        """Reward the action and draw the next observation."""
        reward = self._reward(np.asarray(action))
        self.steps += 1
        return self._observe(), reward, self.steps >= self.episode_length, False, {}

    def _reward(self, action: Array) -> float:
        space = self.action_space
        if isinstance(space, spaces.Box):
            distance = np.abs(np.subtract(action, self._target)) / (space.high - space.low)
            return 1.0 - float(np.mean(distance))
        return float(np.mean(action == self._target))

    def _observe(self) -> Array:
        space, generator = self.observation_space, self.np_random
        if isinstance(space, spaces.Box):
            self._target = generator.uniform(space.low, space.high).astype(space.dtype)
        elif isinstance(space, spaces.Discrete):
            self._target = np.asarray(space.start + generator.integers(space.n))
        elif isinstance(space, spaces.MultiDiscrete):
            self._target = space.start + generator.integers(space.nvec)
        else:
            self._target = generator.integers(0, 2, space.shape).astype(np.int8)
        return self._target.copy()
