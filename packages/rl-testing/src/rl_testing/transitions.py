"""Scripted transitions, in which every number tells where it came from."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from itertools import islice
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rl_core.batch import Transition
from rl_core.storage import StorageSpec, TensorSpec
from rl_core.types import Array, ArrayLike, ArrayObservation

Numbers = npt.NDArray[np.int64]

_LENGTHS = (3, 1, 4, 2, 5)
"""Steps of the episodes of a script without a seed; each environment begins with another one."""

_RANDOM_LENGTHS = (1, 1, 2, 3, 5, 8, 13, 40)
"""Steps of random episodes; the longest is longer than what small storages hold."""

_INTERRUPTION = 0.08
"""Share of the steps after which an environment is reset from outside, in interrupted scripts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TransitionScript:
    """What a few environments go through, whatever the policy does.

    After ``s`` steps of its episode ``e``, environment ``b`` shows the vector `[b, e, s]`. All else
    is made of a number that grows with time and differs between environments, so no two rows are
    alike, and the action of a sample tells which transition it is. Only without a seed, the step
    that leads there is rewarded with ``100 e + s``.

    Attributes:
        seed: of random lengths and ends; None takes episodes of 3, 1, 4, 2 and 5 steps in turn,
            which are terminated, truncated, or both.
        autoreset: whether an ended episode is followed by the next one in the same step, or by a
            step that only resets and is no transition; ``disabled`` environments are reset by
            their wrapper and return a final observation in every step.
        num_envs: how many environments.
        observation: one vector; one image; a dict of a vector, an image and a category; or a dict
            with goals, of which those achieved are at least 0 and those desired below 0.
        action: a category, or a vector.
        recurrent: there is a state ``memory``: the sum of the vectors seen in the episode so far.
        extras: the acting step returns ``surprise``, a ``pair`` and a count of ``visits``.
        arrays: what kind the environments return.
        interrupted: environments are now and then reset in the middle of an episode, as when a
            collector resumes from a checkpoint.
        alike: all observations are zeros.
    """

    seed: int | None = None
    autoreset: Literal["same_step", "next_step", "disabled"] = "same_step"
    num_envs: int = 3
    observation: Literal["vector", "image", "dict", "goals"] = "vector"
    action: Literal["discrete", "box"] = "discrete"
    recurrent: bool = False
    extras: bool = False
    arrays: Literal["numpy", "torch"] = "numpy"
    interrupted: bool = False
    alike: bool = False

    def spec(self, device: torch.device | str = "cpu") -> StorageSpec:
        """Return what a storage must allocate."""
        (first,) = self.transitions(1)
        shown = first.observation
        return StorageSpec(
            observation=_specs(shown) if isinstance(shown, Mapping) else _spec(shown),
            action=_spec(first.action),
            num_envs=self.num_envs,
            state_sizes={name: state.shape[1] for name, state in first.state.items()},
            extras=_specs(first.extras),
            device=torch.device(device),
        )

    def transitions(self, num_steps: int) -> list[Transition]:
        """Return the first steps of all environments; whoever writes to them copies them before."""
        known, more = _KNOWN.setdefault(self, ([], self._steps()))
        known += islice(more, max(num_steps - len(known), 0))
        return known[:num_steps]

    def _steps(self) -> Iterator[Transition]:
        generator = np.random.default_rng(self.seed or 0)
        env = np.arange(self.num_envs)
        now = _Moment(env, 0 * env, 0 * env, 3 * env)
        start = valid = env >= 0
        left = 0 * env
        memory = torch.zeros(self.num_envs, 3)
        waits = self.autoreset == "next_step"
        while True:
            turn = env + now.episode
            lengths, way = np.take(_LENGTHS, turn % len(_LENGTHS)), turn % 3
            if self.seed is not None:
                lengths = generator.choice(_RANDOM_LENGTHS, self.num_envs)
                way = generator.integers(3, size=self.num_envs)
            is_left = generator.random(self.num_envs) < (_INTERRUPTION if self.interrupted else 0.0)
            left = np.where(start, lengths, left) - valid
            ended = valid & (left == 0)
            begins = ~valid if waits else ended
            # A number that is acted on is divisible by three; others differ from all of them.
            number = now.number + 3 * self.num_envs
            reached = _Moment(env, now.episode, now.step + 1, number + np.where(ended, 2, is_left))
            after = _Moment(env, now.episode + begins, (now.step + 1) * ~begins, number + is_left)
            has_final = self.autoreset == "disabled" or (ended.any() and not waits)
            reward = 0.5 * now.number + 1.0
            if self.seed is None:
                reward = 100.0 * now.episode + now.step + 1.0
            yield Transition(
                observation=self._observation(now),
                action=self._action(now),
                reward=self._array((reward * valid).astype(np.float32)),
                terminated=self._array(ended & (way != 1)),
                truncated=self._array(ended & (way != 0)),
                valid=self._array(valid),
                episode_start=start,
                next_observation=self._observation(after),
                final_observation=self._observation(reached) if has_final else None,
                state={"memory": memory} if self.recurrent else {},
                extras=_extras(now) if self.extras else {},
            )
            memory = torch.from_numpy(np.where(start[:, None], 0, memory) + now.vectors).float()
            start = is_left | begins
            valid = is_left | ~ended if waits else valid
            now = _Moment(env, after.episode + is_left, after.step * ~is_left, number)

    def _observation(self, moment: "_Moment") -> ArrayObservation:
        if self.alike:
            moment = _Moment(*(0 * part for part in moment))
        number = moment.number
        vector = self._array(moment.vectors.astype(np.float32))
        digits = np.stack([number // 256**place % 256 for place in range(4)], axis=1)
        image = self._array(digits.reshape(-1, 2, 2, 1).astype(np.uint8))
        if self.observation == "vector":
            return vector
        if self.observation == "image":
            return image
        if self.observation == "dict":
            category = self._array(number % 1000)
            return {"vector": vector, "camera/left": image, "category": category}
        goals = number[:, None].astype(np.float32)
        return {
            "observation": vector,
            "camera": image,
            "achieved_goal": self._array(goals),
            "desired_goal": self._array(-1 - goals % 7),
        }

    def _action(self, moment: "_Moment") -> Tensor:
        actions = torch.from_numpy(moment.number)
        return torch.stack([actions, -actions], 1).float() if self.action == "box" else actions

    def _array(self, array: Array) -> ArrayLike:
        return torch.from_numpy(array) if self.arrays == "torch" else array


_KNOWN: dict[TransitionScript, tuple[list[Transition], Iterator[Transition]]] = {}
"""The steps that scripts were asked for so far, and what makes more of them."""


def misfits(transition: Transition, *, with_state: bool) -> Iterator[Transition]:
    """Yield a transition with one column missing, of another shape or dtype, for each column.

    Args:
        transition: one that fits.
        with_state: spoil recurrent states too, which only storages of sequences look at.
    """
    for name in (field.name for field in fields(transition)):
        value = None if name == "state" and not with_state else getattr(transition, name)
        if isinstance(value, Mapping):
            wrongs: list[object] = [{k: v for k, v in value.items() if k != key} for key in value]
            wrongs += [{**value, k: wrong} for k, leaf in value.items() for wrong in _spoilt(leaf)]
        else:
            wrongs = [] if value is None else list(_spoilt(value))
        for wrong in wrongs:
            yield replace(transition, **{name: wrong})  # type: ignore[arg-type]  # wrong on purpose


class _Moment(NamedTuple):
    """Where each environment is: its index, episode and step, and a number that never recurs."""

    env: Numbers
    episode: Numbers
    step: Numbers
    number: Numbers

    @property
    def vectors(self) -> Numbers:
        return np.stack([self.env, self.episode, self.step], 1)


def _extras(moment: _Moment) -> Mapping[str, Tensor]:
    number = torch.from_numpy(moment.number)
    surprise = 0.25 * number.float()
    return {"surprise": surprise, "pair": torch.stack([surprise, -surprise], 1), "visits": number}


def _spec(column: ArrayLike) -> TensorSpec:
    tensor = torch.as_tensor(column)
    return TensorSpec(tuple(tensor.shape[1:]), tensor.dtype)


def _specs(columns: Mapping[str, ArrayLike]) -> dict[str, TensorSpec]:
    return {key: _spec(column) for key, column in columns.items()}


def _spoilt(column: ArrayLike) -> tuple[Tensor, ...]:
    tensor = torch.as_tensor(column)
    return tensor.double(), tensor[..., None], tensor[:-1]
