"""Bit flipping: a goal task that exploration alone does not solve when there are many bits."""

from collections.abc import Mapping
from typing import Any, TypeAlias, cast

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from rl_core.config import Count, check_argument

Bits: TypeAlias = npt.NDArray[np.int8]


class BitFlipping(gymnasium.Env[dict[str, Bits], np.int64]):
    """Flip one bit per step until all n bits equal the goal; the reward is -1 until they do.

    The observation is a dict of ``observation`` and ``achieved_goal``, both the bits, and
    ``desired_goal``; each is an array of n zeros and ones. Action i flips bit i. An episode
    terminates when the bits equal the goal, and is truncated after ``max_steps``; its info reports
    ``is_success``. `compute_reward` and `compute_terminated` work as in Gymnasium-Robotics'
    ``GoalEnv``.

    Source: Andrychowicz et al. 2017, https://arxiv.org/abs/1707.01495, section 3.1.

    Args:
        num_bits: n.
        max_steps: truncate an episode after so many steps; None takes n.
        varies: truncate each episode after a random number of steps, from half of ``max_steps``
            to all of them.
        ends_on_success: whether an episode terminates when the bits equal the goal.

    Raises:
        ConfigError: if a number is out of range.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012  # Gymnasium's attribute

    def __init__(
        self,
        num_bits: int = 15,
        *,
        max_steps: int | None = None,
        varies: bool = False,
        ends_on_success: bool = True,
    ) -> None:
        self.num_bits = num_bits = check_argument("num_bits", num_bits, Count)
        self.max_steps = check_argument("max_steps", max_steps, Count | None) or num_bits
        self.varies = varies
        self.ends_on_success = ends_on_success
        bits = spaces.Box(0, 1, (num_bits,), np.int8)
        keys = ("observation", "achieved_goal", "desired_goal")
        entries: dict[str, gymnasium.Space[Any]] = dict.fromkeys(keys, bits)
        self.observation_space = cast("gymnasium.Space[dict[str, Bits]]", spaces.Dict(entries))
        self.action_space = spaces.Discrete(num_bits)
        self._bits: Bits = np.zeros(num_bits, dtype=np.int8)
        self._goal: Bits = self._bits
        self._left = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Bits], dict[str, Any]]:
        """Draw new bits, and a goal that differs from them."""
        super().reset(seed=seed)
        self._bits = self._drawn()
        self._goal = self._drawn()
        if (self._bits == self._goal).all():
            self._goal[self.np_random.integers(self.num_bits)] ^= 1
        least = -(-self.max_steps // 2) if self.varies else self.max_steps
        self._left = int(self.np_random.integers(least, self.max_steps + 1))
        return self._observation(), {}

    def step(self, action: np.int64) -> tuple[dict[str, Bits], float, bool, bool, dict[str, Any]]:
        """Flip one bit."""
        self._bits[action] ^= 1
        self._left -= 1
        is_success = bool((self._bits == self._goal).all())
        return (
            self._observation(),
            0.0 if is_success else -1.0,
            is_success and self.ends_on_success,
            self._left <= 0,
            {"is_success": is_success},
        )

    def compute_reward(
        self, achieved_goal: Bits, desired_goal: Bits, info: Mapping[str, object]
    ) -> npt.NDArray[np.float32]:
        """Return 0 where all bits equal the goal, and -1 elsewhere.

        Args:
            achieved_goal: shape `(..., n)`.
            desired_goal: shape `(..., n)`.
            info: ignored.

        Returns:
            Shape `(...)`.
        """
        is_success = (achieved_goal == desired_goal).all(-1)
        return np.where(is_success, np.float32(0.0), np.float32(-1.0))

    def compute_terminated(
        self, achieved_goal: Bits, desired_goal: Bits, info: Mapping[str, object]
    ) -> npt.NDArray[np.bool_]:
        """Return where all bits equal the goal, if that ends an episode; see above."""
        is_success: npt.NDArray[np.bool_] = (achieved_goal == desired_goal).all(-1)
        return is_success & self.ends_on_success

    def _drawn(self) -> Bits:
        return self.np_random.integers(2, size=self.num_bits, dtype=np.int8)

    def _observation(self) -> dict[str, Bits]:
        return {
            "observation": self._bits.copy(),
            "achieved_goal": self._bits.copy(),
            "desired_goal": self._goal.copy(),
        }
