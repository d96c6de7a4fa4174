"""Environments that a checkpoint brings back exactly."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from rl_core.env import EnvStep, VecEnv, action_error, as_numpy
from rl_core.errors import EnvironmentFaultError
from rl_core.seeding import numpy_generator_state, set_numpy_generator_state
from rl_core.types import Array, ArrayLike, StateDict


class WalkVecEnv(VecEnv):
    """Random walks in the plane, cut after 7 steps and over at a wall.

    A checkpoint brings them back exactly, in the middle of their episodes.

    Args:
        num_envs: how many walk.
    """

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

    @property
    def single_observation_space(self) -> spaces.Box:
        """A place."""
        return spaces.Box(-9.0, 9.0, (2,), np.float32)

    @property
    def single_action_space(self) -> spaces.Discrete:
        """Stay, or drift to the right."""
        return spaces.Discrete(2)

    @property
    def array_type(self) -> Literal["numpy", "torch"]:
        """NumPy."""
        return "numpy"

    @property
    def resume_grade(self) -> Literal["exact", "episode"]:
        """Exact."""
        return "exact"

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
        truncated = self.age == 7
        reward = -np.abs(self.place[:, 0])
        final = self.place.copy() if (terminated | truncated).any() else None
        self._begin(terminated | truncated)
        valid = np.ones(self._num_envs, np.bool_)
        return EnvStep(self.place.copy(), reward, terminated, truncated, final, valid, {})

    def close(self) -> None:
        """End it."""
        self._is_closed = True

    def state_dict(self) -> StateDict:
        """Return places, ages, the generator's state, and whether there was a reset."""
        return {
            "has_begun": self._has_begun,
            "generator": numpy_generator_state(self.generator),
            "place": torch.from_numpy(self.place.copy()),
            "age": self.age.tolist(),
        }

    def load_state_dict(self, state: StateDict) -> None:
        """Take over what `state_dict` returned."""
        generator, place, age = state["generator"], state["place"], state["age"]
        assert isinstance(generator, Mapping)
        assert isinstance(place, Tensor)
        set_numpy_generator_state(self.generator, generator)
        self.place = place.numpy().copy()
        self.age = np.array(age)
        self._has_begun = bool(state["has_begun"])

    def _require_open(self, call: str) -> None:
        if self._is_closed:
            raise EnvironmentFaultError(f"{self.spec_id}: {call}() was called after close()")

    def _begin(self, which: Array) -> None:
        start = self.generator.uniform(-0.5, 0.5, (self._num_envs, 2)).astype(np.float32)
        self.place = np.where(which[:, None], start, self.place)
        self.age[which] = 0


class LateWalkVecEnv(WalkVecEnv):
    """Shows where an episode ended, and resets in a step of its own."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        self.is_late = np.zeros(num_envs, np.bool_)

    def reset(self, seed: int | None = None) -> Array:
        """Begin everywhere."""
        self.is_late = np.zeros(self.num_envs, np.bool_)
        return super().reset(seed)

    def step(self, action: ArrayLike) -> EnvStep:
        """Walk, or only reset where an episode ended before."""
        taken, late = super().step(action), self.is_late
        begun, seen = np.asarray(taken.observation), np.asarray(taken.successor)
        terminated = np.asarray(taken.terminated) & ~late
        truncated = np.asarray(taken.truncated) & ~late
        self.is_late = terminated | truncated
        return replace(
            taken,
            observation=np.where(late[:, None], begun, seen),
            reward=np.where(late, np.float32(0.0), np.asarray(taken.reward)),
            terminated=terminated,
            truncated=truncated,
            final_observation=None,
            valid=~late,
        )

    def state_dict(self) -> StateDict:
        """Return what the walks hold, and which rows are to reset."""
        return {**super().state_dict(), "is_late": self.is_late.tolist()}

    def load_state_dict(self, state: StateDict) -> None:
        """Take over a state returned by `state_dict`."""
        super().load_state_dict(state)
        self.is_late = np.array(state["is_late"])
