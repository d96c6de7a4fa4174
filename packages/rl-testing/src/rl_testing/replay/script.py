"""Random lives of a few environments, in which every number tells where it came from."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rl_core.batch import Transition
from rl_core.storage import StorageSpec, TensorSpec
from rl_core.types import Array, ArrayLike, ArrayObservation

Numbers = npt.NDArray[np.int64]

_LENGTHS = (1, 1, 2, 3, 5, 8, 13, 40)
"""Steps of episodes; the longest is longer than what small storages hold of one environment."""

_SEAM = 0.08
"""Share of the steps after which an environment is reset from outside, in scripts with seams."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RandomTransitionScript:
    """What a few environments live through, whatever the policy does: episodes of random length.

    No two observations are alike, whether they were acted on, final, or never acted on, unless all
    are; and every action is given once, so a sample is known again by its action.

    Attributes:
        seed: decides lengths, ends and seams.
        autoreset: whether an ended episode is followed by the next one in the same step, or by a
            step that only resets and is no transition; ``disabled`` environments are reset by
            their wrapper, and answer a final observation in every step.
        num_envs: how many environments.
        observation: one vector; one image; a dict of a vector, an image and a category; or a dict
            of a vector, an image and goals, of which those achieved are numbers of at least 0, and
            those desired below.
        action: a category, or a vector.
        recurrent: there is a state ``memory``.
        extras: the acting step answers ``surprise``, a ``pair``, and a count of ``visits``.
        arrays: what kind the environments answer.
        has_seams: environments are now and then reset in the middle of an episode, as a collector
            does that goes on after a checkpoint.
        alike: all observations are the same, as where nothing can be seen.
    """

    seed: int = 0
    autoreset: Literal["same_step", "next_step", "disabled"] = "same_step"
    num_envs: int = 2
    observation: Literal["vector", "image", "dict", "goals"] = "vector"
    action: Literal["discrete", "box"] = "discrete"
    recurrent: bool = False
    extras: bool = False
    arrays: Literal["numpy", "torch"] = "numpy"
    has_seams: bool = False
    alike: bool = False

    def spec(self, device: torch.device | str = "cpu") -> StorageSpec:
        """Return what a storage must allocate."""
        vector = TensorSpec((3,), torch.float32)
        image = TensorSpec((2, 2, 1), torch.uint8)
        category = TensorSpec((), torch.int64)
        goal = TensorSpec((1,), torch.float32)
        observations: Mapping[str, TensorSpec | Mapping[str, TensorSpec]] = {
            "vector": vector,
            "image": image,
            "dict": {"vector": vector, "camera/left": image, "category": category},
            "goals": {
                "observation": vector,
                "camera": image,
                "achieved_goal": goal,
                "desired_goal": goal,
            },
        }
        is_box = self.action == "box"
        extras = {
            "surprise": TensorSpec((), torch.float32),
            "pair": TensorSpec((2,), torch.float32),
            "visits": TensorSpec((), torch.int64),
        }
        return StorageSpec(
            observation=observations[self.observation],
            action=TensorSpec((2,), torch.float32) if is_box else TensorSpec((), torch.int64),
            num_envs=self.num_envs,
            state_sizes={"memory": 3} if self.recurrent else {},
            extras=extras if self.extras else {},
            device=torch.device(device),
        )

    def transitions(self, num_steps: int) -> list[Transition]:
        """Return the first steps of all environments."""
        lives = self._live()
        return [self._transition(next(lives)) for _ in range(num_steps)]

    def _live(self) -> "Iterator[_Step]":
        """Yield what happens; an observation that is acted on has a number divisible by three."""
        generator = np.random.default_rng(self.seed)
        now = 3 * np.arange(self.num_envs)
        start = np.ones(self.num_envs, dtype=np.bool_)
        valid = start
        left = np.zeros(self.num_envs, dtype=np.int64)
        waits = self.autoreset == "next_step"
        while True:
            left = np.where(start, generator.choice(_LENGTHS, self.num_envs), left) - valid
            ended = valid & (left == 0)
            way = generator.integers(3, size=self.num_envs)
            cut = generator.random(self.num_envs) < (_SEAM if self.has_seams else 0.0)
            following = now + 3 * self.num_envs
            after = following + cut
            yield _Step(
                now=now,
                after=after,
                final=after if waits else np.where(ended, following + 2, after),
                terminated=ended & (way != 1),
                truncated=ended & (way != 0),
                valid=valid,
                start=start,
            )
            start = cut | (~valid if waits else ended)
            valid = cut | ~ended if waits else valid
            now = following

    def _transition(self, step: "_Step") -> Transition:
        ended = step.terminated | step.truncated
        has_final = self.autoreset == "disabled" or (
            self.autoreset == "same_step" and bool(ended.any())
        )
        rewards = np.where(step.valid, 0.5 * step.now + 1.0, 0.0)
        return Transition(
            observation=self._observation(step.now),
            action=self._action(step.now),
            reward=self._array(rewards.astype(np.float32)),
            terminated=self._array(step.terminated),
            truncated=self._array(step.truncated),
            valid=self._array(step.valid),
            episode_start=step.start,
            next_observation=self._observation(step.after),
            final_observation=self._observation(step.final) if has_final else None,
            state={"memory": _vectors(step.now + 0.25)} if self.recurrent else {},
            extras=_extras(step.now) if self.extras else {},
        )

    def _observation(self, numbers: Numbers) -> ArrayObservation:
        if self.alike:
            numbers = np.zeros_like(numbers)
        vectors = self._array(_vectors(numbers).numpy())
        digits = np.stack([numbers // 256**place % 256 for place in range(4)], axis=1)
        images = self._array(digits.reshape(-1, 2, 2, 1).astype(np.uint8))
        if self.observation == "vector":
            return vectors
        if self.observation == "image":
            return images
        if self.observation == "goals":
            goals = numbers[:, None].astype(np.float32)
            return {
                "observation": vectors,
                "camera": images,
                "achieved_goal": self._array(goals),
                "desired_goal": self._array(-1.0 - goals % np.float32(7.0)),
            }
        return {
            "vector": vectors,
            "camera/left": images,
            "category": self._array(numbers % 1000),
        }

    def _action(self, numbers: Numbers) -> Tensor:
        actions = torch.from_numpy(numbers)
        return torch.stack([actions, -actions], 1).float() if self.action == "box" else actions

    def _array(self, array: Array) -> ArrayLike:
        return torch.from_numpy(array) if self.arrays == "torch" else array


def _vectors(numbers: npt.NDArray[np.number]) -> Tensor:
    return torch.from_numpy(np.stack([numbers, numbers % 7, -numbers], 1)).float()


def _extras(numbers: Numbers) -> Mapping[str, Tensor]:
    values = torch.from_numpy(numbers)
    surprise = 0.25 * values.float()
    return {"surprise": surprise, "pair": torch.stack([surprise, -surprise], 1), "visits": values}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Step:
    now: Numbers
    after: Numbers
    final: Numbers
    terminated: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]
    valid: npt.NDArray[np.bool_]
    start: npt.NDArray[np.bool_]


LIVES: Mapping[str, RandomTransitionScript] = {
    "same_step": RandomTransitionScript(seed=1, num_envs=1),
    "same_step_dict_box": RandomTransitionScript(
        seed=2, num_envs=5, observation="dict", action="box", extras=True
    ),
    "same_step_seams": RandomTransitionScript(seed=3, has_seams=True, extras=True),
    "same_step_recurrent": RandomTransitionScript(seed=4, recurrent=True, arrays="torch"),
    "next_step": RandomTransitionScript(seed=5, autoreset="next_step", num_envs=1),
    "next_step_dict_torch": RandomTransitionScript(
        seed=6, autoreset="next_step", observation="dict", arrays="torch", extras=True
    ),
    "next_step_seams": RandomTransitionScript(
        seed=7, autoreset="next_step", num_envs=5, action="box", has_seams=True
    ),
    "next_step_recurrent": RandomTransitionScript(
        seed=8, autoreset="next_step", recurrent=True, observation="image"
    ),
    "disabled_image": RandomTransitionScript(seed=9, autoreset="disabled", observation="image"),
    "disabled_seams": RandomTransitionScript(
        seed=10, autoreset="disabled", num_envs=5, has_seams=True, arrays="torch"
    ),
    "same_step_alike": RandomTransitionScript(seed=11, has_seams=True, alike=True),
    "next_step_alike": RandomTransitionScript(
        seed=12, autoreset="next_step", recurrent=True, alike=True
    ),
}
"""What replay storages are filled with: all ways to reset, and every kind of column."""
