"""Stopping a run early, on Ctrl-C or SIGTERM."""

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import TYPE_CHECKING

from rl_train import Callback

if TYPE_CHECKING:
    from rl_train import Trainer

_NOTICE = b"\nrl: stopping and saving a checkpoint; once more stops without saving\n"


class Interruption(Callback):
    """Context in which Ctrl-C and SIGTERM stop the run, see `rl_train.trainer.Trainer.stop`.

    A second signal ends the program at once.

    Attributes:
        number: number of the signal that was received, or None.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self._trainer: Trainer | None = None
        self._before: dict[signal.Signals, signal.Handlers | object] = {}

    def __enter__(self) -> "Interruption":
        """Handle the signals, which only the main thread receives."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
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
        os.write(2, _NOTICE)  # print is not safe in a signal handler
