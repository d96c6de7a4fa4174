"""Tiny environments in which every number shows where it came from."""

from collections.abc import Mapping, Sequence
from typing import ClassVar, SupportsFloat, TypeAlias

import gymnasium
import numpy as np
from gymnasium import spaces

from rl_core.env import EnvStep, VecEnv, action_error, as_numpy
from rl_core.errors import EnvironmentFaultError
from rl_core.spaces import Space
from rl_core.stateful import StateFields
from rl_core.types import Array, ArrayLike

Info: TypeAlias = dict[str, object]
"""What environments return besides."""

IDENTITY_SPACES: Mapping[str, Space] = {
    "discrete": spaces.Discrete(4),
    "box": spaces.Box(-1.0, 1.0, (2,), np.float32),
    "multi_discrete": spaces.MultiDiscrete([3, 2]),
    "multi_binary": spaces.MultiBinary(3),
}
"""One space of each kind for `IdentityEnv`."""


class CountingEnv(gymnasium.Env):
    """Counts: its observation is ``[index, episode, step]``, whatever is done.

    In episode ``e`` the ``s``-th step (from 1) leads to the observation ``[index, e, s]`` and is
    rewarded with ``100 e + s``, so that every stored number tells where it came from. A reset with
    a seed starts again at episode 0.

    Args:
        lengths: of the episodes, over and over; each at least 1.
        terminate: whether an episode ends by termination or by truncation; one for all, or one
            for each episode, over and over.
        index: the first number of every observation.
        reuse_buffer: return one and the same array every time, written over.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        terminate: bool | Sequence[bool] = True,
        index: int = 0,
        *,
        reuse_buffer: bool = False,
    ) -> None:
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


class IdentityEnv(gymnasium.Env):
    """Rewards the action that equals the observation, which is drawn anew in every step.

    A right action earns 1: for Discrete it is right or wrong, for MultiDiscrete and MultiBinary
    each part earns its share, and for a Box the reward falls linearly with the mean distance, to 0
    at the width of the box. The episode terminates after ``episode_length`` steps.

    Args:
        space: both observation and action space, of a kind in `IDENTITY_SPACES`; a Box needs
            bounds.
        episode_length: steps per episode.
    """

    def __init__(self, space: Space, episode_length: int = 8) -> None:
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


class MemoryCueEnv(gymnasium.Env):
    """Shows a cue once and asks for it ``delay`` steps later.

    The observation is `(num_cues + 1,)`: the cue one-hot in the first one, zeros in between, and 1
    in the last entry when the action counts. That action earns 1 when it is the cue and ends the
    episode by termination; all others earn 0. A policy with memory returns 1, one without at most
    ``1 / num_cues`` on average.

    Args:
        delay: steps from the cue to the question, at least 1.
        num_cues: how many different cues, at least 2.
    """

    def __init__(self, delay: int = 3, num_cues: int = 2) -> None:
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
        """Wait, or compare the action with the cue."""
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


class WalkVecEnv(StateFields, VecEnv):
    """Random walks in the plane, cut after 7 steps and over at a wall.

    A checkpoint brings them back exactly, in the middle of their episodes.

    Args:
        num_envs: how many walk.
    """

    array_type = "numpy"
    resume_grade = "exact"
    single_action_space = spaces.Discrete(2)  # stay, or drift to the right
    single_observation_space = spaces.Box(-9.0, 9.0, (2,), np.float32)
    state_fields: ClassVar[tuple[str, ...]] = ("generator", "place", "age", "_has_begun")

    def __init__(self, num_envs: int) -> None:
        self._num_envs = num_envs
        self.generator = np.random.default_rng()
        self.place = np.zeros((self._num_envs, 2), np.float32)
        self.age = np.zeros(self._num_envs, np.int64)
        self._has_begun = False
        self._is_closed = False

    @property
    def num_envs(self) -> int:
        """How many walk."""
        return self._num_envs

    def reset(self, seed: int | None = None) -> Array:
        """Begin everywhere."""
        self._require_open("reset")
        if seed is not None:
            self.generator = np.random.default_rng(seed)
        self._begin(np.ones(self._num_envs, np.bool_))
        self._has_begun = True
        return self.place.copy()

    def step(self, action: ArrayLike) -> EnvStep:
        """Walk."""
        self._require_open("step")
        if not self._has_begun:
            raise EnvironmentFaultError(f"{self.spec_id} was not reset; call reset() first")
        drift = as_numpy(action)
        if drift.shape != (self._num_envs,):
            raise action_error(drift.shape, spaces.Discrete(2), self._num_envs)
        moves = self.generator.normal(0.0, 0.5, (self._num_envs, 2)).astype(np.float32)
        moves[:, 0] += 0.1 * drift
        self.place = self.place + moves
        self.age += 1
        terminated = np.abs(self.place).max(axis=1) > 1.0
        truncated = (self.age == 7) & ~terminated
        reward = -np.abs(self.place[:, 0])
        final = self.place.copy() if (terminated | truncated).any() else None
        self._begin(terminated | truncated)
        valid = np.ones(self._num_envs, np.bool_)
        return EnvStep(self.place.copy(), reward, terminated, truncated, final, valid, {})

    def close(self) -> None:
        """End it."""
        self._is_closed = True

    def _require_open(self, call: str) -> None:
        if self._is_closed:
            raise EnvironmentFaultError(f"{self.spec_id}: {call}() was called after close()")

    def _begin(self, which: Array) -> None:
        start = self.generator.uniform(-0.5, 0.5, (self._num_envs, 2)).astype(np.float32)
        self.place = np.where(which[:, None], start, self.place)
        self.age[which] = 0
