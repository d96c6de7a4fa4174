"""An environment that asks for what it showed earlier."""

from typing import SupportsFloat

import gymnasium
import numpy as np
from gymnasium import spaces

from rl_core.errors import ConfigError
from rl_core.types import Array
from rl_testing.scripted.info import Info


class MemoryCueEnv(gymnasium.Env):
    """Shows a cue once and asks for it ``delay`` steps later.

    The observation is `(num_cues + 1,)`: the cue one-hot in the first one, zeros in between, and 1
    in the last entry when the action counts. That action earns 1 when it is the cue and ends the
    episode by termination; all others earn 0. A policy with memory returns 1, one without at most
    ``1 / num_cues`` on average.

    Args:
        delay: steps from the cue to the question, at least 1.
        num_cues: how many different cues, at least 2.

    Raises:
        ConfigError: when either is too small.
    """

    def __init__(self, delay: int = 3, num_cues: int = 2) -> None:
        if delay < 1 or num_cues < 2:
            raise ConfigError(
                f"delay={delay}, num_cues={num_cues}; expected at least 1 and at least 2"
            )
        self.observation_space = spaces.Box(0.0, 1.0, (num_cues + 1,), np.float32)
        self.action_space = spaces.Discrete(num_cues)
        self.delay = delay
        self.num_cues = num_cues
        self.cue = 0
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Array, Info]:
        """Draw and show a cue."""
        super().reset(seed=seed)
        self.steps = 0
        self.cue = int(self.np_random.integers(self.num_cues))
        return self._observe(), {}

    def step(self, action: object) -> tuple[Array, SupportsFloat, bool, bool, Info]:
        """Wait, or compare the answer with the cue."""
        was_asked = self.steps == self.delay
        reward = float(was_asked and np.asarray(action).item() == self.cue)
        self.steps += 1
        return self._observe(), reward, was_asked, False, {}

    def _observe(self) -> Array:
        observation = np.zeros(self.num_cues + 1, np.float32)
        if self.steps == 0:
            observation[self.cue] = 1.0
        elif self.steps == self.delay:
            observation[-1] = 1.0
        return observation
