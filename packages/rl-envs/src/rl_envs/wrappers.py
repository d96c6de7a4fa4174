"""Wrappers that turn one task into another."""

from collections.abc import Sequence
from typing import cast

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils import RecordConstructorArgs

from rl_core.errors import ConfigError, SpaceError, nearest
from rl_core.types import Array

_VELOCITIES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "CartPole": ((1, 3), (4,)),
    "Pendulum": ((2,), (3,)),
    "MountainCar": ((1,), (2,)),
    "MountainCarContinuous": ((1,), (2,)),
    "Acrobot": ((4, 5), (6,)),
    "LunarLander": ((2, 3, 5), (8,)),
    "LunarLanderContinuous": ((2, 3, 5), (8,)),
    "BipedalWalker": ((1, 2, 3, 5, 7, 10, 12), (24,)),
    "BipedalWalkerHardcore": ((1, 2, 3, 5, 7, 10, 12), (24,)),
    "InvertedPendulum": ((2, 3), (4,)),
    "InvertedDoublePendulum": ((5, 6, 7), (9, 11)),
    "Hopper": (tuple(range(5, 11)), (11,)),
    "Walker2d": (tuple(range(8, 17)), (17,)),
    "HalfCheetah": (tuple(range(8, 17)), (17,)),
    "Swimmer": (tuple(range(3, 8)), (8,)),
}
"""By id without version: the entries that are velocities, and the observation sizes it holds for.

Options or wrappers of an environment may change the size.
"""

VELOCITY_INDICES = {name: indices for name, (indices, _) in _VELOCITIES.items()}
"""Which entries of an environment's observation are velocities, by id without version."""


class MaskVelocity(gymnasium.ObservationWrapper, RecordConstructorArgs):
    """Hide the velocities, so that a single observation no longer determines the state.

    The remaining entries keep their order, and the observation space shrinks with them. The result
    is a test for recurrent policies, which can infer the velocities from earlier observations.

    Args:
        env: its observations must be vectors.
        velocity_indices: the entries to hide; None takes them from `VELOCITY_INDICES`.

    Raises:
        ConfigError: if no entries are given and the environment is not in the table, or its
            observations do not have their default size, or if an entry is not in the observation.
        SpaceError: if its observations are not vectors, or nothing would be left of them.
    """

    def __init__(self, env: gymnasium.Env, velocity_indices: Sequence[int] | None = None) -> None:
        RecordConstructorArgs.__init__(self, velocity_indices=velocity_indices)
        super().__init__(env)
        space = env.observation_space
        if not isinstance(space, spaces.Box) or len(space.shape) != 1:
            raise SpaceError(f"the observation space is {space}; expected a Box of rank 1")
        size = space.shape[0]
        hidden = _known_indices(env, size) if velocity_indices is None else tuple(velocity_indices)
        if any(not 0 <= index < size for index in hidden):
            raise ConfigError(
                f"velocity_indices={list(hidden)}; expected entries from 0 to {size - 1}"
            )
        self._kept = np.array([index for index in range(size) if index not in set(hidden)])
        if not self._kept.size:
            raise SpaceError(f"hiding {list(hidden)} leaves nothing of {space}")
        self.observation_space = spaces.Box(
            space.low[self._kept], space.high[self._kept], dtype=space.dtype.type
        )

    def observation(self, observation: Array) -> Array:
        """Return the entries that are not hidden, shape `(D - velocities,)`."""
        return cast("Array", observation[self._kept])


def _known_indices(env: gymnasium.Env, size: int) -> tuple[int, ...]:
    name = env.spec.name if env.spec is not None else type(env.unwrapped).__name__
    if name not in _VELOCITIES:
        raise ConfigError(
            f"the velocities of {name} are not known{nearest(name, _VELOCITIES)}; "
            "give velocity_indices"
        )
    indices, sizes = _VELOCITIES[name]
    if size not in sizes:
        raise ConfigError(
            f"the velocities of {name} are known in observations of "
            f"{' or '.join(map(str, sizes))} numbers, but these have {size}; give velocity_indices"
        )
    return indices
