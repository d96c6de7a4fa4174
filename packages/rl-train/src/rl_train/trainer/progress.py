"""The progress of a run: a bar on a terminal, or lines of text where there is none."""

import contextlib
import math
import shutil
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, TextIO

from rl_train.evaluation import in_words
from rl_train.trainer.budget import Budget
from rl_train.trainer.callbacks import Callback
from rl_train.trainer.setup import rows_per_update

if TYPE_CHECKING:
    from rl_train.trainer.trainer import Trainer

_BAR_SECONDS, _LOG_SECONDS = 0.1, 5.0
"""Time between two drawings of the bar, and between two lines."""

_WINDOW_SECONDS, _WINDOW_SHARE, _WINDOW_MARKS = 20.0, 0.5, 20
"""Speed and time left are those of the last seconds, or the last part of a run if that is longer;
and how many marks this span holds."""


class Progress(Callback):
    """Shows steps, recent return, speed and time left, and what a run is waiting for.

    Args:
        mode: ``"bar"`` redraws one line, ``"log"`` writes a line every few seconds, and ``"auto"``
            draws the bar on a terminal and writes lines elsewhere.
        stream: stream to write to; None takes standard error.
        title: text before each line.
        clock: returns a time in seconds.
    """

    def __init__(
        self,
        mode: Literal["auto", "bar", "log"] = "auto",
        stream: TextIO | None = None,
        *,
        title: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._is_bar = mode == "bar" or (mode == "auto" and self._stream.isatty())
        self._title = f"{title}: " if title else ""
        self._clock = clock
        self._budget = Budget("steps", 1)
        self._planned = 1
        # What was reached, steps, and time without compiling, when the span began and since then.
        self._marks: deque[tuple[float, int, float]] = deque([(0, 0, 0.0)])
        self._began = 0.0
        self._has_stepped = False
        self._learns = False
        self._next_time = 0.0
        self._compiling_since: float | None = None

    def on_training_start(self, trainer: "Trainer", target: int, unit: str) -> None:
        """Say if the run will be longer than asked for, or if its episodes may never end."""
        self._budget = Budget(unit, target)
        reached, now = self._budget.reached(trainer), self._clock()
        self._begin(reached, trainer.total_steps, now)
        self._has_stepped = False
        self._learns = trainer.updates > 0 or trainer.storage.rollout_steps is not None
        self._next_time = now + (_BAR_SECONDS if self._is_bar else _LOG_SECONDS)
        self._planned = target
        if trainer.envs.max_episode_steps is None:
            self._say(
                f"{trainer.envs.spec_id} has no time limit; if its episodes may not end, register "
                "it with max_episode_steps, wrap it in gymnasium.wrappers.TimeLimit, or let a "
                "VecEnv of your own return max_episode_steps"
            )
        if unit == "steps" and trainer.storage.rollout_steps is not None:
            rows = rows_per_update(trainer.envs, trainer.algorithm, trainer.storage)
            begun = self._budget.reached_before(trainer)
            self._planned = begun + -(-(target - begun) // rows) * rows
            name = type(trainer.algorithm).__name__
            ends = f"{name} collects {rows:,} steps at a time: this run ends after "
            if trainer.envs.resets_in_steps:  # steps that only reset do not count
                self._say(f"{ends}{target:,} to {target + rows - 1:,} steps")
            elif self._planned > target:
                self._say(f"{ends}{self._planned:,} steps")

    def on_tick(self, trainer: "Trainer", activity: str) -> None:
        """Draw the bar or write a line, if it is time."""
        now = self._clock()
        if not self._has_stepped and trainer.total_steps > self._marks[0][1]:
            # The first step also imports and traces what it needs, which tells nothing of the rest.
            self._has_stepped = True
            self._begin(self._budget.reached(trainer), trainer.total_steps, now)
        if not self._learns and trainer.updates > 0:  # from now on steps take longer
            self._learns = True
            self._begin(self._budget.reached(trainer), trainer.total_steps, now)
        if (activity == "compiling") != (self._compiling_since is not None):
            self._note_compilation(now)
        if now < self._next_time:
            return
        self._next_time = now + (_BAR_SECONDS if self._is_bar else _LOG_SECONDS)
        if activity != "compiling":  # whose seconds do not count
            self._mark(trainer, now)
        if activity == "compiling" and self._compiling_since is not None:
            activity += f", {now - self._compiling_since:.0f} s"
        if self._is_bar:
            self._write(f"\r{self._bar(trainer, activity, now)}\x1b[K")
        else:
            self._write(f"{', '.join(self._parts(trainer, activity, now))}\n")

    def on_training_end(self, trainer: "Trainer") -> None:
        """Draw the bar once more, so that even the shortest run shows one, and remove it.

        Say so if a callback ended the run.
        """
        if self._is_bar:
            self._next_time = -math.inf
            self.on_tick(trainer, "collecting")
            self._write("\r\x1b[K")
        if trainer.state.ended:
            reached, unit = self._budget.reached(trainer), self._budget.unit
            self._say(
                f"a callback ended the run at {reached:,} of {self._planned:,} {unit}, because its "
                "method returned True"
            )

    def _parts(self, trainer: "Trainer", activity: str, now: float) -> list[str]:
        reached, steps = self._budget.reached(trainer), trainer.total_steps
        planned = max(self._planned, reached)
        parts = [f"{self._title}{reached:,} of {planned:,} {self._budget.unit}"]
        recent = trainer.state.recent.metrics().get("train/episode_return", math.nan)
        parts += [] if math.isnan(recent) else [f"return {in_words(recent)[0]}"]
        if activity != "collecting":
            return [*parts, activity]
        reached_then, steps_then, then = self._marks[0]
        seconds = max(now - then, 1e-9)
        if steps > steps_then:
            speed = (steps - steps_then) / seconds
            parts.append(f"{speed:,.0f} steps/s" if speed >= 10 else f"{speed:.2g} steps/s")
        if reached > reached_then and self._learns:
            left = (planned - reached) * seconds / (reached - reached_then)
            parts.append(f"{_duration(left)} left")
        return parts

    def _begin(self, reached: float, steps: int, now: float) -> None:
        self._marks, self._began = deque([(reached, steps, now)]), now

    def _mark(self, trainer: "Trainer", now: float) -> None:
        """Note what is reached, and forget what was before the span."""
        span = max(_WINDOW_SECONDS, _WINDOW_SHARE * (now - self._began))
        if now - self._marks[-1][2] >= span / _WINDOW_MARKS:
            self._marks.append((self._budget.reached(trainer), trainer.total_steps, now))
        while len(self._marks) > 1 and now - self._marks[1][2] >= span:
            self._marks.popleft()

    def _bar(self, trainer: "Trainer", activity: str, now: float) -> str:
        first, *rest = self._parts(trainer, activity, now)
        columns = shutil.get_terminal_size().columns - 1
        width = columns - len("  ".join((first, "[]", *rest)))
        full = int(width * min(1.0, self._budget.reached(trainer) / self._planned))
        bar = [f"[{'#' * full}{'.' * (width - full)}]"] if width > 0 else []
        return "  ".join((first, *bar, *rest))[:columns]

    def _note_compilation(self, now: float) -> None:
        """Begin or end a wait for the compiler, which counts neither for speed nor time left."""
        began, self._compiling_since = self._compiling_since, now
        if began is not None:
            self._compiling_since = None
            waited = now - began
            self._marks = deque((r, s, then + waited) for r, s, then in self._marks)
            self._began += waited

    def _say(self, text: str) -> None:
        self._write(f"{self._title}{text}\n")

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # nobody reads it any more: the run goes on
            self._stream.write(text)
            self._stream.flush()


def _duration(seconds: float) -> str:
    """Write a time as ``42 s``, ``12 min`` or ``2:30 h``."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60}:{minutes % 60:02} h"
