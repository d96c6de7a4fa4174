"""The steady part of a run, found from marks between its updates."""

import time
from collections.abc import Callable


class Span:
    """Counts what happens per second once a run is warm.

    A mark is made between two updates, always at the same point of the loop, so that a span holds
    whole periods of collecting and learning. Compilation and first updates fall before it.

    Args:
        warm_up_marks: marks before the span begins.
        seconds: shortest length of the span.
        clock: seconds from any origin.
    """

    def __init__(
        self,
        warm_up_marks: int,
        seconds: float,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._clock = clock
        self._seconds = seconds
        self._marks_left = warm_up_marks
        self._created = clock()
        self._first: tuple[float, int] | None = None
        self._last: tuple[float, int] | None = None
        self.periods = 0

    def mark(self, count: int) -> bool:
        """Note how much has happened so far.

        Args:
            count: environment steps, or whatever is counted, since the run began.

        Returns:
            Whether the span is long enough, so that the run may end.
        """
        now = self._clock()
        if self._marks_left > 0:
            self._marks_left -= 1
            return False
        if self._first is None:
            self._first = (now, count)
            return False
        self._last = (now, count)
        self.periods += 1
        return now - self._first[0] >= self._seconds

    @property
    def rate(self) -> float:
        """Counts per second within the span."""
        first, last = self._ends()
        return (last[1] - first[1]) / (last[0] - first[0])

    @property
    def warm_up_seconds(self) -> float:
        """From the making of this object to the beginning of the span."""
        return self._ends()[0][0] - self._created

    def _ends(self) -> tuple[tuple[float, int], tuple[float, int]]:
        if self._first is None or self._last is None:
            raise RuntimeError("the run ended before it was warm; let it run for longer")
        return self._first, self._last
