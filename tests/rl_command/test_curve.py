"""The learning curve as text and as an image."""

from pathlib import Path

import pytest

from rl_command.curve import Curve, draw_image, draw_text, over_runs, read_curve
from rl_core.errors import DataError


def test_a_curve_is_read_from_the_lines_that_have_the_metric(tmp_path: Path) -> None:
    log = tmp_path / "metrics.jsonl"
    log.write_text(
        '{"step": 10, "time": 1.0, "train/episode_return": null}\n'
        '{"step": 20, "time": 2.0, "train/episode_return": 5.0}\n'
        '{"step": 20, "time": 2.0, "test/episode_return": 9.0}\n'
        '{"step": 30, "time": 3.0, "train/episode_return": 7.5}\n'
    )
    assert read_curve(log, "train/episode_return") == Curve((20, 30), (5.0, 7.5))
    assert read_curve(log, "test/episode_return") == Curve((20,), (9.0,))
    with pytest.raises(DataError):
        read_curve(tmp_path / "none.jsonl", "train/episode_return")


def test_a_rising_curve_goes_from_the_lower_left_to_the_upper_right() -> None:
    curve = Curve(tuple(range(0, 1000, 10)), tuple(float(v) for v in range(100)))
    lines = draw_text(curve)
    assert len(lines) == 12
    assert lines[0].startswith("99 ┤")
    assert lines[9].startswith(" 0 ┤─")
    starts = [len(line.partition("┤")[2]) - len(line.partition("┤")[2].lstrip()) for line in lines]
    assert starts[:10] == sorted(starts[:10], reverse=True)
    assert lines[-1].split() == ["0", "990", "steps"]
    assert max(map(len, lines)) <= 80


def test_a_falling_curve_ends_at_the_bottom() -> None:
    lines = draw_text(Curve((0, 50, 100), (3.0, 2.0, -1.0)))
    assert lines[0].startswith(" 3.0 ┤──")
    assert lines[9].startswith("-1.0 ┤")
    assert lines[9].endswith("─")


def test_a_constant_curve_is_one_line() -> None:
    lines = draw_text(Curve((0, 5, 10), (500.0, 500.0, 500.0)))
    assert lines[0] == "500 ┤" + "─" * 60
    assert len(lines) == 3
    for value, label in ((0.0003, "0.0003"), (0.25, "0.25"), (-0.04, "-0.04")):
        assert draw_text(Curve((0, 5, 10), (value,) * 3))[0].startswith(f"{label} ┤")


def test_the_largest_numbers_have_a_curve_too() -> None:
    lines = draw_text(Curve((0, 5, 10), (-1.7e308, 0.0, 1.7e308)))
    assert lines[0].lstrip().startswith("1.7e+308 ┤")


def test_one_or_two_points_are_written_as_numbers() -> None:
    assert draw_text(Curve((), ())) == []
    assert draw_text(Curve((2048,), (1.0,))) == ["2,048 steps: 1"]
    assert draw_text(Curve((5, 10), (1.0, -22.25))) == ["5 steps: 1", "10 steps: -22.25"]
    assert draw_text(Curve((5,), (1.5,), ((1.0, 2.0),))) == ["5 steps: 1.5 (95 % interval 1 to 2)"]


def test_a_plain_terminal_gets_plain_characters() -> None:
    lines = draw_text(Curve((0, 50, 100), (3.0, 7.0, -1.0)), ascii_only=True)
    assert all(line.isascii() for line in lines)


def test_the_image_is_drawn_with_and_without_points(tmp_path: Path) -> None:
    one = Curve((7,), (1.0,), ((0.5, 2.0),))
    for name, curve in (
        ("full", Curve((0, 10), (1.0, 2.0))),
        ("one", one),
        ("empty", Curve((), ())),
    ):
        path = tmp_path / f"{name}.png"
        draw_image({"train/episode_return of $_$": curve}, path, "a title of $x_$")
        assert path.read_bytes().startswith(b"\x89PNG")


def test_runs_that_were_logged_at_other_steps_are_compared_on_straight_lines() -> None:
    # At 10 the second is half-way from 0 to 20; at 15 the first is half-way from 10 to 20.
    curves = [Curve((0, 10, 20), (0.0, 1.0, 2.0)), Curve((0, 15, 20), (0.0, 3.0, 4.0))]
    found = over_runs(curves)
    assert found.steps == (0, 10, 15, 20)
    assert found.values == pytest.approx((0.0, (1.0 + 2.0) / 2, (1.5 + 3.0) / 2, 3.0))
    assert found.band[1] == pytest.approx((1.0, 2.0))


def test_a_long_curve_keeps_its_ends() -> None:
    steps = tuple(range(1, 402))
    values = tuple(float(step) for step in steps)
    curve = over_runs([Curve(steps, values), Curve(steps, values)])
    assert len(curve.steps) <= 201
    assert (curve.steps[0], curve.steps[-1]) == (1, 401)
    assert curve.values[-1] == 401.0


def test_runs_of_one_value_each_make_one_point() -> None:
    curve = over_runs([Curve((1966,), (1.0,)), Curve((1962,), (2.0,))])
    assert (curve.steps, curve.values) == ((1962,), (1.5,))


def test_small_numbers_have_labels_that_differ() -> None:
    lines = draw_text(Curve((1, 2, 3), (1e-9, 2e-9, 3e-9)))
    labels = [line.partition("┤")[0].strip() for line in lines if "┤" in line]
    assert (labels[0], labels[-1], len(set(labels))) == ("3e-09", "1e-09", len(labels))
