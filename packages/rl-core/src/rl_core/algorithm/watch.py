"""Who wants to know of the turns of an update."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

Listener: TypeAlias = Callable[[int], bool | None]
"""Called with a count from 0; True ends the loop that it is called in."""


@dataclass(frozen=True, slots=True)
class UpdateWatch:
    """Listeners at the turns of an update; each turn without any costs nothing.

    Attributes:
        epoch_start: before each pass; True ends the passes.
        epoch_end: after each pass; True ends the passes.
        minibatch_start: before each gradient step; True ends the pass.
        minibatch_end: after each gradient step; True ends the pass.
    """

    epoch_start: Sequence[Listener] = field(default=())
    epoch_end: Sequence[Listener] = field(default=())
    minibatch_start: Sequence[Listener] = field(default=())
    minibatch_end: Sequence[Listener] = field(default=())


def ends(listeners: Sequence[Listener], count: int) -> bool:
    """Call all listeners, and tell whether one ends the loop."""
    answers = [listener(count) for listener in listeners]  # all of them hear of it
    return any(answers)
