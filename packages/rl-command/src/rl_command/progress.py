"""The progress bar of a training run."""

import time
from collections.abc import Mapping
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from rl_train import Callback, Trainer
from rl_train.trainer import Budget

_EVERY_SECONDS = 0.1


class ProgressBar(Callback):
    """Shows progress, speed, time left and the recent return on a terminal.

    Args:
        stream: where to draw; nothing is drawn if it is not a terminal.
    """

    def __init__(self, stream: TextIO) -> None:
        self._progress: Progress | None = None
        self._task = TaskID(0)
        self._return = "-"
        self._next_time = 0.0
        self._started = (0, 0.0)
        self._goal = Budget("steps", 1)
        if stream.isatty():
            self._progress = Progress(
                TextColumn("{task.completed:,.0f}/{task.total:,.0f} {task.fields[unit]}"),
                BarColumn(bar_width=None),
                TextColumn("{task.fields[speed]} steps/s"),
                TimeRemainingColumn(),
                TextColumn("return {task.fields[episode_return]}"),
                console=Console(file=stream),
                expand=True,
                transient=True,
            )

    def on_training_start(self, trainer: Trainer, target: int, unit: str) -> None:
        """Start the bar."""
        if self._progress is None:
            return
        self._started = (trainer.total_steps, time.monotonic())
        self._goal = Budget(unit, target)
        self._task = self._progress.add_task(
            "",
            total=target,
            completed=self._goal.reached(trainer),
            unit=unit,
            speed="-",
            episode_return="-",
        )
        self._progress.start()

    def on_update_end(self, trainer: Trainer) -> None:
        """Update the bar, at most ten times per second."""
        now = time.monotonic()
        if self._progress is None or now < self._next_time:
            return
        self._next_time = now + _EVERY_SECONDS
        steps, seconds = trainer.total_steps - self._started[0], now - self._started[1]
        self._progress.update(
            self._task,
            completed=self._goal.reached(trainer),
            speed=f"{steps / max(seconds, 1e-9):,.0f}",
            episode_return=self._return,
        )

    def on_log(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        """Remember the recent return."""
        if "train/episode_return" in metrics:
            self._return = f"{metrics['train/episode_return']:.1f}"

    def on_training_end(self, trainer: Trainer) -> None:
        """Remove the bar."""
        if self._progress is not None:
            self._progress.stop()
