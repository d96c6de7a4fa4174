"""Learning curves: how training went, in few points."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]

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


def at_common_steps(curves: Sequence[Numbers]) -> tuple[Numbers, Numbers] | None:
    """Bring curves to the steps that all of them reached.

    Args:
        curves: each `(points, 2)`, step and figure, of two points at least.

    Returns:
        `NUM_POINTS` steps at equal distances, and the figures there by linear interpolation,
        `(curves, points)`; None where there is nothing to interpolate.
    """
    if not curves:
        return None
    start, end = max(curve[0, 0] for curve in curves), min(curve[-1, 0] for curve in curves)
    if start >= end:
        return None
    steps = np.linspace(start, end, NUM_POINTS)
    return steps, np.stack([np.interp(steps, curve[:, 0], curve[:, 1]) for curve in curves])
