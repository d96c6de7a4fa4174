"""Learning curves: how training went, in few points."""

import math
from collections.abc import Callable

NUM_POINTS = 50
"""Of a whole curve."""


class Curve:
    """Notes a figure at even distances of a run.

    Args:
        target: steps of the whole run.

    Attributes:
        points: step and figure of each point, in order.
    """

    def __init__(self, target: int) -> None:
        self._distance = max(1, target // NUM_POINTS)
        self._next = self._distance
        self.points: list[tuple[int, float]] = []

    def note(self, step: int, figure: Callable[[], float]) -> None:
        """Add a point when one is due.

        Args:
            step: of the run.
            figure: asked only then; a figure that is not finite, as before the first episode ends,
                is no point.
        """
        if step < self._next:
            return
        self._next = (step // self._distance + 1) * self._distance
        value = figure()
        if math.isfinite(value):
            self.points.append((step, round(value, 4)))
