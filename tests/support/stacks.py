"""Scripts whose environments return stacks of their newest frames."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from rl_core.batch import Transition
from rl_core.types import ArrayLike, ArrayObservation
from rl_testing.replay import LIVES
from rl_testing.transitions import TransitionScript

Padding = Literal["reset", "zero"]
"""What an episode's first stack holds beside its first frame: that frame again, or zeros."""

Stacks = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class StackedScript(TransitionScript):
    """A `TransitionScript` that is seen through a stack of frames.

    A single observation becomes a stack, and of a dict its image, as by
    ``gymnasium.wrappers.FrameStackObservation``.

    Attributes:
        frame_stack: frames in a stack.
        padding: what an episode's first stack holds beside its first frame.
    """

    frame_stack: int = 3
    padding: Padding = "reset"

    def transitions(self, num_steps: int) -> list[Transition]:
        """Return the first steps of all environments."""
        plain = TransitionScript.transitions(self, num_steps)
        return stack_frames(plain, self.frame_stack, self.padding)

    @classmethod
    def of(cls, script: TransitionScript, padding: Padding = "reset") -> "StackedScript":
        """Return a script seen through stacks of three frames."""
        own = {field.name: getattr(script, field.name) for field in fields(script)}
        return cls(**own, padding=padding)


def stack_frames(transitions: list[Transition], size: int, padding: Padding) -> list[Transition]:
    """Put the frames of consecutive transitions into stacks, oldest frame first.

    Args:
        transitions: from the beginning of a life.
        size: frames in a stack.
        padding: what an episode's first stack holds beside its first frame.
    """
    stacked = []
    now: Stacks = {}
    for transition in transitions:
        start, valid, terminated, truncated = (
            torch.as_tensor(mask)
            for mask in (
                transition.episode_start,
                transition.valid,
                transition.terminated,
                transition.truncated,
            )
        )
        frames = _frames(transition.observation)
        first = {name: _first_stack(frame, size, padding) for name, frame in frames.items()}
        now = {name: _where(start, stack, now.get(name, stack)) for name, stack in first.items()}
        after = {}
        for name, frame in _frames(transition.next_observation).items():
            jumps = (terminated | truncated) if transition.final_observation is not None else ~valid
            begun = _first_stack(frame, size, padding)
            after[name] = _where(jumps, begun, _go_on(now[name], frame))
        final = transition.final_observation
        if final is not None:
            ends = {name: _go_on(now[name], frame) for name, frame in _frames(final).items()}
            final = _with_stacks(final, ends)
        stacked.append(
            replace(
                transition,
                observation=_with_stacks(transition.observation, now),
                next_observation=_with_stacks(transition.next_observation, after),
                final_observation=final,
            )
        )
        now = after
    return stacked


def _frames(observation: ArrayObservation) -> Stacks:
    """Return what is stacked: the observation itself, or the images of a dict."""
    if not isinstance(observation, Mapping):
        return {"": torch.as_tensor(observation)}
    return {key: torch.as_tensor(leaf) for key, leaf in observation.items() if leaf.ndim == 4}


def _with_stacks(observation: ArrayObservation, stacks: Stacks) -> ArrayObservation:
    if not isinstance(observation, Mapping):
        return _like(stacks[""], observation)
    return {
        key: _like(stacks[key], leaf) if key in stacks else leaf
        for key, leaf in observation.items()
    }


def _like(stack: Tensor, leaf: ArrayLike) -> ArrayLike:
    return stack.numpy().copy() if isinstance(leaf, np.ndarray) else stack.clone()


def _first_stack(frame: Tensor, size: int, padding: Padding) -> Tensor:
    older = frame if padding == "reset" else torch.zeros_like(frame)
    return torch.stack([*[older] * (size - 1), frame], 1)


def _go_on(stack: Tensor, frame: Tensor) -> Tensor:
    return torch.cat([stack[:, 1:], frame.unsqueeze(1)], 1)


def _where(envs: Tensor, one: Tensor, other: Tensor) -> Tensor:
    return torch.where(envs.view(-1, *[1] * (one.dim() - 1)), one, other)


STACKED_LIVES: Mapping[str, StackedScript] = {
    name: StackedScript.of(life, "zero" if number % 3 == 2 else "reset")
    for number, (name, life) in enumerate(LIVES.items())
}
"""The lives of `rl_testing.replay`, seen through stacks of frames."""
