"""A corridor with a pit at its left end and a door at its right end."""

import gymnasium
from gymnasium import spaces

LEFT, RIGHT = 0, 1


class Corridor(gymnasium.Env):
    """Walk to the door: +1 at the door, -1 in the pit, nothing on the way.

    An episode begins in a random cell between the two, and is cut after ``4 * length`` steps.

    Args:
        length: cells between pit and door.
    """

    def __init__(self, length: int = 7) -> None:
        self.observation_space = spaces.Discrete(length + 2)
        self.action_space = spaces.Discrete(2)
        self.length = length
        self._cell = 0
        self._steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[int, dict[str, object]]:
        """Put the walker into a random cell; see `gymnasium.Env.reset`."""
        super().reset(seed=seed)
        self._cell = int(self.np_random.integers(1, self.length + 1))
        self._steps = 0
        return self._cell, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, object]]:
        """Move one cell; see `gymnasium.Env.step`."""
        self._cell += 1 if action == RIGHT else -1
        self._steps += 1
        at_door, in_pit = self._cell == self.length + 1, self._cell == 0
        terminated = at_door or in_pit
        truncated = not terminated and self._steps == 4 * self.length
        return self._cell, float(at_door) - float(in_pit), terminated, truncated, {}
