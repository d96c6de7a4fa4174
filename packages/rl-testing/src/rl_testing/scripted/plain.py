"""A vector environment as plain as can be."""

from collections.abc import Sequence
from typing import Any, Literal, cast

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

from rl_core.env import EnvStep, VecEnv, action_error, as_numpy
from rl_core.errors import EnvironmentFaultError
from rl_core.spaces import Space
from rl_core.types import Array, ArrayLike


class PlainVecEnv(VecEnv):
    """Steps environments whose observations are arrays one after the other, and checks nothing.

    Args:
        envs: at least one; closed by `close`.
        autoreset: in which step an ended row is reset.
    """

    def __init__(
        self,
        envs: Sequence[gymnasium.Env],
        autoreset: AutoresetMode = AutoresetMode.SAME_STEP,
    ) -> None:
        self.envs = list(envs)
        self.autoreset = autoreset
        self._over = np.zeros(len(envs), np.bool_)
        self._has_begun = self._is_closed = False

    @property
    def num_envs(self) -> int:
        """How many there are."""
        return len(self.envs)

    @property
    def single_observation_space(self) -> Space:
        """That of the first one."""
        return cast("Space", self.envs[0].observation_space)

    @property
    def single_action_space(self) -> Space:
        """That of the first one."""
        return cast("Space", self.envs[0].action_space)

    @property
    def array_type(self) -> Literal["numpy", "torch"]:
        """NumPy."""
        return "numpy"

    def reset(self, seed: int | None = None) -> Array:
        """Begin everywhere; row ``i`` is seeded with ``seed + i``."""
        self._require_open()
        seeds = [None if seed is None else seed + index for index in range(self.num_envs)]
        self._over[:] = False
        self._has_begun = True
        return np.stack([env.reset(seed=one)[0] for env, one in zip(self.envs, seeds, strict=True)])

    def step(self, action: ArrayLike) -> EnvStep:
        """Step each row, or reset it."""
        self._require_open()
        if not self._has_begun:
            raise EnvironmentFaultError("the environments were not reset; call reset() first")
        actions = as_numpy(action)
        if len(actions) != self.num_envs:
            raise action_error(actions.shape, self.single_action_space, self.num_envs)
        only_reset = self._over.copy()
        rows: list[tuple[Any, ...]] = []
        for env, one, is_over in zip(self.envs, actions, only_reset, strict=True):
            if is_over:
                rows.append((env.reset()[0], 0.0, False, False, {}))
            else:
                rows.append(env.step(one))
        seen, reward, terminated, truncated = (
            np.stack([row[field] for row in rows]) for field in range(4)
        )
        ended = terminated | truncated
        final = None
        if self.autoreset is AutoresetMode.NEXT_STEP:
            self._over = ended
        elif ended.any():
            final = seen.copy()
            for index in np.flatnonzero(ended):
                seen[index] = self.envs[index].reset()[0]
        return EnvStep(
            seen, reward.astype(np.float32), terminated, truncated, final, ~only_reset, {}
        )

    def close(self) -> None:
        """Close them."""
        self._is_closed = True
        for env in self.envs:
            env.close()

    def _require_open(self) -> None:
        if self._is_closed:
            raise EnvironmentFaultError("the environments are closed")
