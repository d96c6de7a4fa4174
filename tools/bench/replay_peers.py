"""The peers' side of the replay benchmark: Stable-Baselines3, and cpprb.

They are imported by name when they are used, because only the benchmark environment has them.
"""

import importlib
from typing import Any

import numpy as np
from gymnasium import spaces

from bench.replay_data import Step, goal_reward, make_errors
from bench.replay_operations import BATCH_SIZE, DATA, GAMMA, Data, Operation


class SB3Buffer:
    """Stable-Baselines3's replay buffer, with the options that its algorithms give it.

    Args:
        operation: what it is to do.
        size: transitions.
    """

    def __init__(self, operation: Operation, size: int) -> None:
        data = DATA[operation.data]
        name = "ReplayBuffer"
        options: dict[str, Any] = {}
        if operation.n_step > 1:
            name, options = "NStepReplayBuffer", {"n_steps": operation.n_step, "gamma": GAMMA}
        if operation.is_relabeled:
            name = "HerReplayBuffer"
            options = {"env": _Goals(), "n_sampled_goal": 4, "goal_selection_strategy": "future"}
        self._buffer = _sb3_buffer(name, data, size, options)
        self._size = size

    def insert(self, step: Step) -> None:
        """Insert a transition."""
        self._buffer.add(
            step.observation,
            step.next_observation,
            step.action,
            step.reward,
            step.is_last,
            _LAST if step.is_last[0] else _NOT_LAST,
        )

    def draw(self) -> None:
        """Draw a batch."""
        self._buffer.sample(BATCH_SIZE)

    @property
    def num_transitions(self) -> int:
        """How many transitions can be drawn."""
        return int(self._buffer.size())


class CpprbBuffer:
    """cpprb's replay buffer, whose batches stay NumPy arrays.

    Args:
        operation: what it is to do.
        size: transitions.
    """

    def __init__(self, operation: Operation, size: int) -> None:
        data = DATA[operation.data]
        library = importlib.import_module("cpprb")
        columns: dict[str, Any] = {
            "obs": _column(data.observation_space),
            "act": _column(data.action_space),
            "rew": {},
            "next_obs": _column(data.observation_space),
            "done": {},
        }
        self._learns = operation.is_prioritized
        self._buffer = (
            library.PrioritizedReplayBuffer(size, columns, alpha=0.6)
            if self._learns
            else library.ReplayBuffer(size, columns)
        )
        self._errors = make_errors(64, BATCH_SIZE)
        self._draws = 0

    def insert(self, step: Step) -> None:
        """Insert a transition."""
        self._buffer.add(
            obs=step.observation,
            act=step.action,
            rew=step.reward,
            next_obs=step.next_observation,
            done=_NOT_TERMINATED,
        )
        if step.is_last[0]:
            self._buffer.on_episode_end()

    def draw(self) -> None:
        """Draw a batch, and learn its priorities."""
        if not self._learns:
            self._buffer.sample(BATCH_SIZE)
            return
        batch = self._buffer.sample(BATCH_SIZE, beta=0.4)
        self._draws += 1
        errors = self._errors[self._draws % len(self._errors)]
        self._buffer.update_priorities(batch["indexes"], errors)

    @property
    def num_transitions(self) -> int:
        """How many transitions can be drawn."""
        return int(self._buffer.get_stored_size())


def count_sb3_bytes(data: Data, size: int) -> int:
    """Return what the transitions of a full buffer of Stable-Baselines3 take."""
    buffer = _sb3_buffer("ReplayBuffer", data, size, {})
    arrays = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")
    return sum(int(getattr(buffer, name).nbytes) for name in arrays)


class _Goals:
    """What `HerReplayBuffer` asks vector environments for."""

    def env_method(self, name: str, *arguments: Any, indices: object) -> list[object]:
        assert name == "compute_reward"
        return [goal_reward(*arguments)]


def _sb3_buffer(name: str, data: Data, size: int, options: dict[str, Any]) -> Any:
    module = (
        "stable_baselines3" if name == "HerReplayBuffer" else "stable_baselines3.common.buffers"
    )
    kind = getattr(importlib.import_module(module), name)
    return kind(size, data.observation_space, data.action_space, device="cpu", **options)


def _column(space: spaces.Space[object]) -> dict[str, Any]:
    return {"shape": space.shape or 1, "dtype": space.dtype}


_LAST = [{"TimeLimit.truncated": True}]
_NOT_LAST: list[dict[str, object]] = [{}]
_NOT_TERMINATED = np.zeros(1, dtype=np.float32)
