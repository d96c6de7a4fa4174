"""Environments that are plain, late, or faulty."""

import os
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, SupportsFloat, TypeAlias, cast

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper

from rl_core.env import EnvStep, VecEnv, action_error, as_numpy
from rl_core.errors import EnvironmentFaultError
from rl_core.spaces import Space
from rl_core.types import Array, ArrayLike
from rl_testing.scripted import CountingEnv, Info, WalkVecEnv


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


def counting_envs(
    lengths: Sequence[Sequence[int]],
    terminate: Sequence[bool | Sequence[bool]],
    autoreset: AutoresetMode = AutoresetMode.SAME_STEP,
) -> PlainVecEnv:
    """Step one `CountingEnv` per row.

    Args:
        lengths: of each row's episodes.
        terminate: how each row's episodes end.
        autoreset: how ended rows are reset.
    """
    pairs = enumerate(zip(lengths, terminate, strict=True))
    return PlainVecEnv([CountingEnv(row, ends, index) for index, (row, ends) in pairs], autoreset)


class LateWalkVecEnv(WalkVecEnv):
    """Shows where an episode ended, and resets in a step of its own."""

    state_fields = (*WalkVecEnv.state_fields, "is_late")

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        self.is_late = np.zeros(num_envs, np.bool_)

    @property
    def resets_in_steps(self) -> bool:
        """True."""
        return True

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


FaultName: TypeAlias = Literal[
    "nan_observation",
    "inf_observation",
    "none_observation",
    "wrong_shape",
    "wrong_dtype",
    "complex_observation",
    "ragged_observation",
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
    "raise_long",
    "raise_mute",
    "raise_exit",
    "raise_reset",
    "bare_reset",
    "raise_close",
    "hang",
    "hang_reset",
    "hang_close",
    "exit",
    "kill",
]
"""What `FaultyEnv` can do wrong."""


class FaultyEnv(gymnasium.Wrapper):
    """Does one thing wrong, at a step of the test's choosing.

    Args:
        env: behaves well; observations must be floating-point arrays.
        fault: what goes wrong.
        at_step: in which step of its life, counted from 1. ``raise_reset``, ``hang_reset``
            and ``bare_reset``, which returns the observation alone, go wrong in the first reset
            after so many steps, ``raise_close`` and ``hang_close`` whenever it is closed.
        hang_s: how long those that hang sleep.
    """

    def __init__(
        self, env: gymnasium.Env, fault: FaultName, at_step: int = 3, *, hang_s: float = 3600.0
    ) -> None:
        super().__init__(env)
        self.fault = fault
        self.at_step = at_step
        self.hang_s = hang_s
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Array, Info]:
        """Reset the environment, or do that wrong."""
        is_due = self.steps >= self.at_step
        if self.fault == "raise_reset" and is_due:
            raise RuntimeError("scripted reset fault")
        if self.fault == "hang_reset" and is_due:
            time.sleep(self.hang_s)
        answer = self.env.reset(seed=seed, options=options)
        return answer[0] if self.fault == "bare_reset" and is_due else answer

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
        if self.fault == "hang_close":
            time.sleep(self.hang_s)

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
            "complex_observation": observation.astype(np.complex64),
            "ragged_observation": [[0.0], *observation.tolist()[1:]],
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
        if self.fault == "raise_long":
            raise ValueError("scripted\n" * 1000)
        if self.fault == "raise_mute":
            raise _MuteError
        if self.fault == "raise_exit":
            sys.exit("scripted exit")
        if self.fault == "hang":
            time.sleep(self.hang_s)
        elif self.fault == "exit":
            os._exit(3)
        elif self.fault == "kill":
            os.kill(os.getpid(), 9)


class _MuteError(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


class _UnpicklableError(Exception):
    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.lock = threading.Lock()


class AsTensors(VectorWrapper):
    """Takes and answers tensors, as environments on an accelerator do.

    Args:
        env: takes and answers arrays.
        device: of the tensors.
    """

    def __init__(self, env: VectorEnv, device: str = "cpu") -> None:
        super().__init__(env)
        self._device = device

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        return self._tensor(observation), info

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        assert isinstance(actions, torch.Tensor)
        assert actions.device.type == self._device
        *answer, info = self.env.step(actions.cpu().numpy())
        observation, reward, terminated, truncated = map(self._tensor, answer)
        return observation, reward, terminated, truncated, info

    def _tensor(self, array: Any) -> torch.Tensor:
        return torch.from_numpy(np.array(array)).to(self._device)
