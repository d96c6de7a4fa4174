"""An environment that does something wrong."""

import os
import sys
import threading
import time
from typing import Literal, SupportsFloat, TypeAlias, get_args

import gymnasium
import numpy as np

from rl_core.errors import ConfigError, nearest
from rl_core.types import Array
from rl_testing.scripted.info import Info

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
    "raise_exit",
    "raise_reset",
    "bare_reset",
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
        at_step: in which step of its life, counted from 1. ``raise_reset`` and ``bare_reset``,
            which answers the observation alone, go wrong in the first reset after so many steps,
            ``raise_close`` whenever it is closed.
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
        """Reset the environment, or do that wrong."""
        is_due = self.steps >= self.at_step
        if self.fault == "raise_reset" and is_due:
            raise RuntimeError("scripted reset fault")
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
        if self.fault == "raise_exit":
            sys.exit("scripted exit")
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
