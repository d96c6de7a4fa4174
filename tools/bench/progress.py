"""A line now and then about a run that takes long."""

import time
from collections.abc import Callable


class Progress:
    """Prints how far a run has come.

    Args:
        total: environment steps of the whole run.
        every_seconds: time between two lines.
        clock: seconds from any origin.
    """

    def __init__(
        self,
        total: int,
        every_seconds: float = 30.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._total = total
        self._every_seconds = every_seconds
        self._clock = clock
        self._start = clock()
        self._next = self._start + every_seconds

    def report(self, steps: int) -> None:
        """Take the steps so far, and print a line when it is time."""
        now = self._clock()
        if now < self._next:
            return
        self._next = now + self._every_seconds
        rate = steps / (now - self._start)
        print(f"    {steps:,} of {self._total:,} steps, {rate:,.0f} steps/s", flush=True)
