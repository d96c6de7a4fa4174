"""States and transitions that a storage must refuse."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from rl_core.batch import Transition
from rl_core.types import StateDict, StateValue


def damaged_states(state: StateDict) -> Iterator[StateDict]:
    """Yield a tree with one value missing, of another kind, or too short, for each value."""
    for key, value in state.items():
        yield {k: v for k, v in state.items() if k != key}
        others: list[StateValue] = [3 if isinstance(value, str) else "damaged"]
        if isinstance(value, Mapping):
            others += damaged_states(value)
        elif isinstance(value, Tensor) and value.dim() and len(value):
            others.append(value[:-1])
        for other in others:
            yield {**state, key: other}


def misfits(transition: Transition, *, with_state: bool) -> Iterator[Transition]:
    """Yield a transition with one column missing, of another shape or dtype, for each column.

    Args:
        transition: one that fits.
        with_state: spoil recurrent states too, of which only sequences know.
    """
    states = ("state",) if with_state else ()
    for name in ("observation", "next_observation", "final_observation", *states, "extras"):
        value = getattr(transition, name)
        if value is None:
            continue
        if not isinstance(value, Mapping):
            for wrong in _spoilt(torch.as_tensor(value)):
                yield _with(transition, name, wrong)
            continue
        for key, leaf in value.items():
            yield _with(transition, name, {k: v for k, v in value.items() if k != key})
            for wrong in _spoilt(torch.as_tensor(leaf)):
                yield _with(transition, name, {**value, key: wrong})
    for name in ("action", "reward", "terminated", "truncated", "valid", "episode_start"):
        for wrong in _spoilt(torch.as_tensor(getattr(transition, name))):
            yield _with(transition, name, wrong)


def _with(transition: Transition, name: str, value: object) -> Transition:
    return replace(transition, **{name: value})  # type: ignore[arg-type]  # wrong on purpose


def _spoilt(column: Tensor) -> list[Tensor]:
    return [column.double(), column[..., None], column[:-1]]
