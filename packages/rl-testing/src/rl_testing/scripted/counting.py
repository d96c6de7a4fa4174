"""An environment that counts."""

from collections.abc import Sequence
from typing import SupportsFloat

import gymnasium
import numpy as np
from gymnasium import spaces

from rl_core.errors import ConfigError
from rl_core.types import Array
from rl_testing.scripted.info import Info


class CountingEnv(gymnasium.Env):
    """Counts: its observation is ``[index, episode, step]``, whatever is done.

    In episode ``e`` the ``s``-th step (from 1) leads to the observation ``[index, e, s]`` and is
    rewarded with ``100 e + s``, so that every stored number tells where it came from. A reset with
    a seed starts again at episode 0.

    Args:
        lengths: of the episodes, over and over.
        terminate: whether an episode ends by termination or by truncation; one for all, or one
            for each episode, over and over.
        index: the first number of every observation.
        reuse_buffer: answer one and the same array every time, written over.

    Raises:
        ConfigError: when a length is less than one.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        terminate: bool | Sequence[bool] = True,
        index: int = 0,
        *,
        reuse_buffer: bool = False,
    ) -> None:
        if not lengths or min(lengths) < 1:
            raise ConfigError(f"lengths={list(lengths)}; expected numbers of at least 1")
        self.observation_space = spaces.Box(0.0, np.inf, (3,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.lengths = tuple(lengths)
        self.terminate = (terminate,) if isinstance(terminate, bool) else tuple(terminate)
        self.index = index
        self.reuse_buffer = reuse_buffer
        self.episode = -1
        self.steps = 0
        self._buffer = np.zeros(3, np.float32)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Array, Info]:
        """Begin the next episode, or with a seed the first one."""
        super().reset(seed=seed)
        self.episode = 0 if seed is not None else self.episode + 1
        self.steps = 0
        return self._observe(), {}

    def step(self, action: object) -> tuple[Array, SupportsFloat, bool, bool, Info]:
        """Count one further."""
        self.steps += 1
        has_ended = self.steps >= self.lengths[self.episode % len(self.lengths)]
        by_termination = self.terminate[self.episode % len(self.terminate)]
        reward = 100.0 * self.episode + self.steps
        return (
            self._observe(),
            reward,
            has_ended and by_termination,
            has_ended and not by_termination,
            {},
        )

    def _observe(self) -> Array:
        values = (self.index, self.episode, self.steps)
        if not self.reuse_buffer:
            return np.array(values, np.float32)
        self._buffer[:] = values
        return self._buffer
