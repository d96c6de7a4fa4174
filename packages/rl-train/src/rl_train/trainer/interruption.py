"""Stopping a run early, on Ctrl-C or another signal."""

import contextlib
import os
import signal
import threading
from collections.abc import Sequence
from types import FrameType
from typing import TYPE_CHECKING

from rl_train.trainer.callbacks import Callback

if TYPE_CHECKING:
    from rl_train.trainer.trainer import Trainer

_USUAL_HANDLERS = (signal.SIG_DFL, signal.default_int_handler)


class Interruption(Callback):
    """Context in which signals stop the run, see `rl_train.trainer.Trainer.stop`.

    A second signal raises KeyboardInterrupt at once. Signals that the program handles itself, and
    those of other threads than the main one, are left alone.

    Args:
        signals: the signals.
        title: text before the notice.
        saves: whether the run saves a checkpoint when it stops.

    Attributes:
        number: number of the signal that was received, or None.
    """

    def __init__(
        self,
        signals: Sequence[signal.Signals] = (signal.SIGINT,),
        title: str = "",
        *,
        saves: bool = True,
    ) -> None:
        self.number: int | None = None
        self._signals = signals
        notice = "stopping and saving a checkpoint; once more stops without saving"
        if not saves:
            notice = "stopping; once more stops at once"
        self._notice = f"\n{title}{notice}\n".encode()
        self._trainer: Trainer | None = None
        self._before: dict[signal.Signals, signal.Handlers | object] = {}

    def __enter__(self) -> "Interruption":
        """Handle the signals, which only the main thread receives."""
        if threading.current_thread() is threading.main_thread():
            for number in self._signals:
                if signal.getsignal(number) in _USUAL_HANDLERS:
                    self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *error: object) -> None:
        """Restore the previous handlers."""
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # what signal.signal returned
        self._before.clear()

    def on_training_start(self, trainer: "Trainer", target: int, unit: str) -> None:
        """Remember the run to stop, and stop it if a signal came before it began."""
        self._trainer = trainer
        if self.number is not None:
            trainer.stop()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.number is not None:
            raise KeyboardInterrupt
        self.number = number
        if self._trainer is not None:
            self._trainer.stop()
        with contextlib.suppress(OSError):  # Ctrl-C also ends the tee that reads standard error
            os.write(2, self._notice)  # print is not safe in a signal handler
