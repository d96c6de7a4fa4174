"""Ending a run early, on Ctrl-C or when the system asks for it."""

import inspect
import os
import signal
import threading
from types import FrameType, TracebackType
from typing import TYPE_CHECKING

from rl_core.callbacks import Callback
from rl_core.evaluation import evaluate_policy

if TYPE_CHECKING:
    from rl_core.trainer import Trainer

_NOTICE = (
    b"\nrl: stopping after this update and saving a checkpoint; once more stops without saving\n"
)


class Interrupted(BaseException):
    """The run was asked to end, and every part of it is in a state that can be saved.

    Like `KeyboardInterrupt` it is no `Exception`, or an environment's guard would take it for a
    fault of the environment.

    Args:
        number: the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(f"interrupted by {signal.Signals(number).name}")
        self.number = number


class Interruption(Callback):
    """Within its block, Ctrl-C and SIGTERM end the run after the update that is going on.

    An evaluation is broken off. A second signal ends the program at once.
    """

    def __init__(self) -> None:
        self._number: int | None = None
        self._before: dict[signal.Signals, signal.Handlers | object] = {}

    def __enter__(self) -> "Interruption":
        """Take over the signals; elsewhere than in the main thread there are none to take."""
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
        """Give the signals back."""
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # what signal.signal returned
        self._before.clear()

    def on_update_end(self, trainer: "Trainer") -> None:
        """End the run if that was asked for.

        Raises:
            Interrupted: when it was.
        """
        if self._number is not None:
            raise Interrupted(self._number)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._number is not None:
            raise KeyboardInterrupt
        self._number = number
        if _is_evaluating(frame):
            raise Interrupted(number)
        os.write(2, _NOTICE)  # a print may not be interrupted by another one


def _is_evaluating(frame: FrameType | None) -> bool:
    """Tell whether an evaluation is going on, which may be long and changes nothing."""
    code = inspect.unwrap(evaluate_policy).__code__
    while frame is not None:
        if frame.f_code is code:
            return True
        frame = frame.f_back
    return False
