import math
from functools import partial

from bench.curve import NUM_POINTS, Curve


def test_a_curve_has_a_point_at_each_distance() -> None:
    curve = Curve(10 * NUM_POINTS)
    for step in range(1, 10 * NUM_POINTS + 1):
        curve.note(step, partial(float, 2 * step))
    assert curve.points == [(10 * point, 20.0 * point) for point in range(1, NUM_POINTS + 1)]


def test_a_step_beyond_several_distances_is_one_point() -> None:
    curve = Curve(10 * NUM_POINTS)
    curve.note(9, lambda: 1.0)
    curve.note(35, lambda: 2.0)
    curve.note(39, lambda: 3.0)
    curve.note(40, lambda: 4.0)
    assert curve.points == [(35, 2.0), (40, 4.0)]


def test_what_is_not_finite_is_no_point() -> None:
    curve = Curve(NUM_POINTS)
    curve.note(1, lambda: math.nan)
    curve.note(2, lambda: 1.0)
    assert curve.points == [(2, 1.0)]
