"""Transitions made by hand, in which every number tells where it came from."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from rl_core.batch import Transition
from rl_core.storage import StorageSpec, TensorSpec
from rl_core.types import Array, ArrayLike, ArrayObservation

_LENGTHS = (3, 1, 4, 2, 5)
"""Steps of the episodes; each environment begins with another one."""

_ENDS = ((True, False), (False, True), (True, True))
"""Whether episodes terminate and whether they are truncated, one after the other."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TransitionScript:
    """What a few environments live through, whatever the policy does.

    After ``s`` steps of its episode ``e``, environment ``b`` shows the numbers `[b, e, s]`. The
    step that leads there is rewarded with ``100 e + s``. Actions, recurrent states and extras are
    functions of the same three numbers, so no two rows are alike.

    Attributes:
        autoreset: whether an ended episode is followed by the next one in the same step, or by a
            step that only resets and is no transition.
        num_envs: how many environments.
        observation: one vector; or a dict of a vector, an image and a category.
        action: a category, or a vector.
        recurrent: there is a state ``memory``: the sum of the vectors seen in the episode so far.
        extras: the acting step answers a number ``surprise`` and a vector ``pair``.
        arrays: what kind the environments answer.
        alike: all observations are zeros, as where nothing can be seen.
    """

    autoreset: Literal["same_step", "next_step"] = "same_step"
    num_envs: int = 3
    observation: Literal["vector", "dict"] = "vector"
    action: Literal["discrete", "box"] = "discrete"
    recurrent: bool = False
    extras: bool = False
    arrays: Literal["numpy", "torch"] = "numpy"
    alike: bool = False

    def spec(self, device: torch.device | str = "cpu") -> StorageSpec:
        """Return what a storage must allocate."""
        vector = TensorSpec((3,), torch.float32)
        leaves = {
            "vector": vector,
            "camera/left": TensorSpec((2, 2, 1), torch.uint8),
            "category": TensorSpec((), torch.int64),
        }
        is_box = self.action == "box"
        extras = {
            "surprise": TensorSpec((), torch.float32),
            "pair": TensorSpec((2,), torch.float32),
        }
        return StorageSpec(
            observation=leaves if self.observation == "dict" else vector,
            action=TensorSpec((2,), torch.float32) if is_box else TensorSpec((), torch.int64),
            num_envs=self.num_envs,
            state_sizes={"memory": 3} if self.recurrent else {},
            extras=extras if self.extras else {},
            device=torch.device(device),
        )

    def transitions(self, num_steps: int) -> list[Transition]:
        """Return the first steps of all environments."""
        lives = [self._live(env) for env in range(self.num_envs)]
        memory = torch.zeros(self.num_envs, 3)
        transitions = []
        for _ in range(num_steps):
            rows = [next(life) for life in lives]
            now = np.array([row.now for row in rows], np.float32)
            after = np.array([row.after for row in rows], np.float32)
            final = np.array([row.final for row in rows], np.float32)
            ended = np.array([row.terminated or row.truncated for row in rows])
            start = np.array([row.start for row in rows])
            has_final = self.autoreset == "same_step" and bool(ended.any())
            transitions.append(
                Transition(
                    observation=self._observation(now),
                    action=self._action(now),
                    reward=self._array(np.array([row.reward for row in rows], np.float32)),
                    terminated=self._array(np.array([row.terminated for row in rows])),
                    truncated=self._array(np.array([row.truncated for row in rows])),
                    valid=self._array(np.array([row.valid for row in rows])),
                    episode_start=start,
                    next_observation=self._observation(after),
                    final_observation=self._observation(final) if has_final else None,
                    state={"memory": memory} if self.recurrent else {},
                    extras=_extras(now) if self.extras else {},
                )
            )
            memory = torch.from_numpy(np.where(start[:, None], 0.0, memory) + now).float()
        return transitions

    def _live(self, env: int) -> "Iterator[_Row]":
        episode = 0
        while True:
            length = _LENGTHS[(env + episode) % len(_LENGTHS)]
            terminated, truncated = _ENDS[(env + episode) % len(_ENDS)]
            begins = (env, episode + 1, 0)
            for step in range(length):
                now, final = (env, episode, step), (env, episode, step + 1)
                ends = step + 1 == length
                jumps = ends and self.autoreset == "same_step"
                yield _Row(
                    now=now,
                    after=begins if jumps else final,
                    final=final,
                    reward=100.0 * episode + step + 1,
                    terminated=ends and terminated,
                    truncated=ends and truncated,
                    start=step == 0,
                )
            if self.autoreset == "next_step":
                yield _Row(now=(env, episode, length), after=begins, final=begins, valid=False)
            episode += 1

    def _observation(self, numbers: Array) -> ArrayObservation:
        if self.alike:
            numbers = np.zeros_like(numbers)
        if self.observation == "vector":
            return self._array(numbers)
        return {
            "vector": self._array(numbers),
            "camera/left": self._array(
                np.tile(numbers[:, :1, None, None], (1, 2, 2, 1)).astype(np.uint8)
            ),
            "category": self._array(numbers[:, 2].astype(np.int64)),
        }

    def _action(self, numbers: Array) -> Tensor:
        env, episode, step = torch.from_numpy(numbers).unbind(1)
        if self.action == "box":
            return torch.stack([env + 0.25 * step, -episode], dim=1)
        return (7 * env + 3 * episode + step).long()

    def _array(self, array: Array) -> ArrayLike:
        return torch.from_numpy(array) if self.arrays == "torch" else array


def _extras(numbers: Array) -> Mapping[str, Tensor]:
    env, episode, step = torch.from_numpy(numbers).unbind(1)
    return {"surprise": env - episode + 0.5 * step, "pair": torch.stack([step, episode], dim=1)}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Row:
    now: tuple[int, int, int]
    after: tuple[int, int, int]
    final: tuple[int, int, int]
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    valid: bool = True
    start: bool = False
