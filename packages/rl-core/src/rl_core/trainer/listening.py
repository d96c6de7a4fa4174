"""From callbacks to those that listen to a turn of the loop."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from rl_core.algorithm import UpdateWatch
from rl_core.callbacks import Callback

if TYPE_CHECKING:
    from rl_core.trainer.trainer import Trainer


def overriders(callbacks: Sequence[Callback], method: str) -> list[Callback]:
    """Return the callbacks whose class has a method of its own in the place of the empty one."""
    return [c for c in callbacks if getattr(type(c), method) is not getattr(Callback, method)]


def watch_of(callbacks: Sequence[Callback], trainer: "Trainer") -> UpdateWatch:
    """Let callbacks listen to the turns of updates, those that do not listen at no cost."""
    return UpdateWatch(
        **{
            turn: [
                partial(getattr(callback, f"on_{turn}"), trainer)
                for callback in overriders(callbacks, f"on_{turn}")
            ]
            for turn in ("epoch_start", "epoch_end", "minibatch_start", "minibatch_end")
        }
    )
