"""Tiny environments whose every value is known beforehand."""

import os
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Literal, SupportsFloat, TypeAlias, get_args

import gymnasium
import numpy as np
from gymnasium import spaces

from rl_core.errors import ConfigError, SpaceError, nearest
from rl_core.spaces import Space
from rl_core.types import Array

Info: TypeAlias = dict[str, object]
"""What an environment tells besides."""


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


FaultName: TypeAlias = Literal[
    "nan_observation",
    "inf_observation",
    "none_observation",
    "wrong_shape",
    "wrong_dtype",
    "nan_reward",
    "inf_reward",
    "none_reward",
    "array_reward",
    "none_terminated",
    "none_truncated",
    "none_info",
    "four_values",
    "raise_step",
    "raise_unpicklable",
    "raise_reset",
    "raise_close",
    "hang",
    "exit",
    "kill",
]
"""What `FaultyEnv` can do wrong."""


class FaultyEnv(gymnasium.Wrapper):
    """Does one thing wrong, at a step of the test's choosing.

    Args:
        env: behaves well; observations must be floating-point arrays.
        fault: what goes wrong.
        at_step: in which step of its life, counted from 1. ``raise_reset`` goes wrong in the first
            reset after so many steps, ``raise_close`` whenever it is closed.
        hang_s: how long ``hang`` sleeps.

    Raises:
        ConfigError: when the fault is unknown.
    """

    def __init__(
        self, env: gymnasium.Env, fault: FaultName, at_step: int = 3, *, hang_s: float = 3600.0
    ) -> None:
        super().__init__(env)
        if fault not in get_args(FaultName):
            raise ConfigError(f"fault='{fault}'{nearest(fault, get_args(FaultName))}")
        self.fault = fault
        self.at_step = at_step
        self.hang_s = hang_s
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Array, Info]:
        """Reset the environment, or raise."""
        if self.fault == "raise_reset" and self.steps >= self.at_step:
            raise RuntimeError("scripted reset fault")
        return self.env.reset(seed=seed, options=options)

    def step(self, action: object) -> tuple[Array, SupportsFloat, bool, bool, Info]:
        """Step the environment and, in the one step, do it wrong."""
        self.steps += 1
        answer = self.env.step(action)
        return self._spoil(*answer) if self.steps == self.at_step else answer

    def close(self) -> None:
        """Close the environment, or raise."""
        self.env.close()
        if self.fault == "raise_close":
            raise RuntimeError("scripted close fault")

    def _spoil(
        self,
        observation: Array,
        reward: SupportsFloat,
        terminated: bool,
        truncated: bool,
        info: Info,
    ) -> tuple[Array, SupportsFloat, bool, bool, Info]:
        self._strike()
        observations: dict[str, object] = {
            "nan_observation": np.full_like(observation, np.nan),
            "inf_observation": np.full_like(observation, np.inf),
            "none_observation": None,
            "wrong_shape": np.append(observation, 0.0),
            "wrong_dtype": observation.astype(str),
        }
        rewards: dict[str, object] = {
            "nan_reward": np.nan,
            "inf_reward": np.inf,
            "none_reward": None,
            "array_reward": np.array([float(reward)]),
        }
        answer: tuple[object, ...] = (
            observations.get(self.fault, observation),
            rewards.get(self.fault, reward),
            None if self.fault == "none_terminated" else terminated,
            None if self.fault == "none_truncated" else truncated,
            None if self.fault == "none_info" else info,
        )
        return answer[:4] if self.fault == "four_values" else answer  # type: ignore[return-value]  # what a faulty environment does

    def _strike(self) -> None:
        if self.fault == "raise_step":
            raise ValueError("scripted step fault")
        if self.fault == "raise_unpicklable":
            raise _UnpicklableError("scripted step fault")
        if self.fault == "hang":
            time.sleep(self.hang_s)
        elif self.fault == "exit":
            os._exit(3)
        elif self.fault == "kill":
            os.kill(os.getpid(), 9)


class _UnpicklableError(Exception):
    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.lock = threading.Lock()
