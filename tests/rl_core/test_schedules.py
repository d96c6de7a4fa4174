import dataclasses
import math

import numpy as np
import pytest

from rl_core.config import (
    Constant,
    Cosine,
    Linear,
    Piecewise,
    Schedule,
    as_schedule,
    parse_schedule,
)
from rl_core.errors import ConfigError

STEPS = Piecewise(((0.0, 1.0), (0.5, 0.2), (0.75, 0.2), (1.0, 0.0)))

TEXTS = [
    (Constant(0.0003), "0.0003"),
    (Constant(2), "2.0"),
    (Constant(-1e-12), "-1e-12"),
    (Linear(0.0003, 0.0), "linear(0.0003, 0.0)"),
    (Linear(0.0003, 0.0, 0.5), "linear(0.0003, 0.0, 0.5)"),
    (Linear(1, 0), "linear(1.0, 0.0)"),
    (Cosine(0.1 + 0.2, 1e-05), "cosine(0.30000000000000004, 1e-05)"),
    (Cosine(1.0, 0.1, 0.9), "cosine(1.0, 0.1, 0.9)"),
    (Piecewise(((0.0, 1.0), (0.5, 0.1))), "piecewise(0: 1.0, 0.5: 0.1)"),
    (Piecewise(((0.25, 2),)), "piecewise(0.25: 2.0)"),
    (Piecewise(((np.float64(0.25), np.float64(2)),)), "piecewise(0.25: 2.0)"),
    (STEPS, "piecewise(0: 1.0, 0.5: 0.2, 0.75: 0.2, 1: 0.0)"),
]


@pytest.mark.parametrize(("schedule", "text"), TEXTS)
def test_text_goes_both_ways(schedule: Schedule, text: str) -> None:
    assert str(schedule) == text
    assert parse_schedule(text) == schedule
    assert type(parse_schedule(text)) is type(schedule)


def test_a_constant_equals_its_number() -> None:
    """So that it makes no difference to a config which of both it is given."""
    assert Constant(0.5) == 0.5 == Constant(0.5)
    assert hash(Constant(0.5)) == hash(0.5)
    assert Constant(0.5) != 0.25
    assert Constant(0.5) != Linear(0.5, 0.5)
    assert Constant(0.5) != "0.5"


@pytest.mark.parametrize(
    ("text", "schedule"),
    [
        ("  3e-4 ", Constant(0.0003)),
        ("7", Constant(7.0)),
        ("constant(0.5)", Constant(0.5)),
        (" linear ( 1,0 , .5 ) ", Linear(1.0, 0.0, 0.5)),
        ("piecewise(0:1,\n 1:0)", Piecewise(((0.0, 1.0), (1.0, 0.0)))),
    ],
)
def test_spaces_and_other_spellings_are_understood(text: str, schedule: Schedule) -> None:
    assert parse_schedule(text) == schedule


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("linaer(1, 0)", "unknown name 'linaer'; did you mean 'linear'"),
        ("zigzag(1, 0)", "unknown name 'zigzag'; known: constant, cosine, linear, piecewise"),
        ("", "'' is not a number"),
        ("fast", "'fast' is not a number"),
        ("linear", "'linear' is not a number"),
        ("linear(1, 0", "is not a number"),
        ("linear(1, zero)", "'zero' is not a number"),
        ("linear(1)", "got 1 arguments; expected 2 or 3"),
        ("linear()", "got 1 arguments; expected 2 or 3"),
        ("cosine(1, 0, 0.5, 2)", "got 4 arguments; expected 2 or 3"),
        ("constant(1, 2)", "got 2 arguments; expected 1"),
        ("piecewise()", "got ''; expected 'progress: number'"),
        ("piecewise(1.0, 0.5)", "got '1.0'; expected 'progress: number'"),
        ("piecewise(0: 1, 0.5: x)", "'x' is not a number"),
        ("piecewise(0.5: 1, 0.5: 0)", "increase within"),
        ("__import__('os')", "unknown name '__import__'"),
        ("linear(1, 2**3)", r"'2\*\*3' is not a number"),
        ("nan", "expected a finite number"),
        ("linear(inf, 0)", "expected a finite number"),
    ],
)
def test_bad_text_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_schedule(text)


def test_constant() -> None:
    assert [Constant(0.7).value(progress) for progress in (-1.0, 0.0, 0.3, 2.0)] == [0.7] * 4


def test_linear() -> None:
    line = Linear(4.0, 2.0)
    assert [line.value(progress) for progress in (0.0, 0.25, 0.5, 1.0)] == [4.0, 3.5, 3.0, 2.0]
    short = Linear(4.0, 2.0, until=0.5)
    assert [short.value(progress) for progress in (0.25, 0.5, 0.75)] == [3.0, 2.0, 2.0]


def test_cosine() -> None:
    wave = Cosine(3.0, 1.0)
    assert wave.value(0.0) == 3.0
    assert wave.value(0.5) == pytest.approx(2.0)
    assert wave.value(1 / 3) == pytest.approx(1.0 + 2.0 * 0.75)
    assert wave.value(1.0) == 1.0
    short = Cosine(3.0, 1.0, until=0.5)
    assert short.value(0.25) == pytest.approx(2.0)
    assert short.value(0.8) == 1.0


def test_piecewise() -> None:
    values = [STEPS.value(progress) for progress in (0.0, 0.25, 0.5, 0.6, 0.75, 0.875, 1.0)]
    assert values == pytest.approx([1.0, 0.6, 0.2, 0.2, 0.2, 0.1, 0.0])
    late = Piecewise(((0.5, 8.0), (0.75, 4.0)))
    assert [late.value(progress) for progress in (0.0, 0.5, 0.625, 0.75, 1.0)] == [8, 8, 6, 4, 4]


@pytest.mark.parametrize("schedule", [Linear(0.3, 0.1), Cosine(0.3, 0.1), STEPS])
def test_progress_is_clamped(schedule: Schedule) -> None:
    assert schedule.value(-0.5) == schedule.value(0.0)
    assert schedule.value(1.5) == schedule.value(1.0)


@pytest.mark.parametrize("kind", [Linear, Cosine])
def test_the_ends_are_met_exactly(kind: type[Linear] | type[Cosine]) -> None:
    for start, end in ((0.3, 0.1), (1e-4, 0.0), (0.1, 0.7), (1e16, 1.0)):
        schedule = kind(start, end)
        assert schedule.value(0.0) == start
        assert schedule.value(1.0) == end
    assert all(kind(0.99, 0.99).value(step / 97) == 0.99 for step in range(98))


@pytest.mark.parametrize(
    ("schedule", "constant"),
    [
        (Constant(1.0), True),
        (Linear(1.0, 1.0), True),
        (Linear(1.0, 0.9), False),
        (Cosine(1.0, 1.0), True),
        (Cosine(1.0, 0.9), False),
        (Piecewise(((0.5, 1.0),)), True),
        (Piecewise(((0.0, 1.0), (1.0, 1.0))), True),
        (Piecewise(((0.0, 1.0), (0.5, 2.0), (1.0, 1.0))), False),
        (STEPS, False),
    ],
)
def test_is_constant(schedule: Schedule, constant: bool) -> None:
    assert schedule.is_constant is constant


@pytest.mark.parametrize("kind", [Linear, Cosine])
@pytest.mark.parametrize("until", [0.0, -0.1, 1.01])
def test_until_must_lie_in_the_run(kind: type[Linear] | type[Cosine], until: float) -> None:
    with pytest.raises(ConfigError, match="until is"):
        kind(1.0, 0.0, until)


def test_numbers_must_be_finite() -> None:
    with pytest.raises(ConfigError, match="constant: got nan"):
        Constant(math.nan)
    with pytest.raises(ConfigError, match="linear: got inf"):
        Linear(1.0, math.inf)
    with pytest.raises(ConfigError, match="cosine: got -inf"):
        Cosine(-math.inf, 1.0)
    with pytest.raises(ConfigError, match="piecewise: got nan"):
        Piecewise(((0.0, math.nan),))


@pytest.mark.parametrize(
    "points",
    [((0.5, 1.0), (0.2, 1.0)), ((0.5, 1.0), (0.5, 2.0)), ((-0.1, 1.0),), ((0.0, 1.0), (1.1, 2.0))],
)
def test_points_must_increase_within_the_run(points: tuple[tuple[float, float], ...]) -> None:
    with pytest.raises(ConfigError, match="increase within"):
        Piecewise(points)


def test_piecewise_needs_a_point() -> None:
    with pytest.raises(ConfigError, match="no points"):
        Piecewise(())


def test_as_schedule() -> None:
    line = Linear(1.0, 0.0)
    assert as_schedule(line) is line
    assert as_schedule(0.25) == Constant(0.25)
    assert as_schedule(1) == Constant(1.0)


@pytest.mark.parametrize("value", ["0.5", True, None, [0.5]])
def test_as_schedule_refuses_what_is_no_number(value: object) -> None:
    with pytest.raises(ConfigError, match="expected a number or a schedule"):
        as_schedule(value)  # type: ignore[arg-type]  # the mistake under test


def test_schedules_are_values() -> None:
    assert Linear(1.0, 0.0) == Linear(1.0, 0.0)
    assert len({Linear(1.0, 0.0), Linear(1.0, 0.0), Cosine(1.0, 0.0)}) == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        Linear(1.0, 0.0).start = 2.0  # type: ignore[misc]  # the mistake under test


def test_a_function_becomes_points() -> None:
    schedule = Piecewise.from_function(lambda progress: 8.0 * progress * progress, num_points=5)
    assert schedule.points == ((0.0, 0.0), (0.25, 0.5), (0.5, 2.0), (0.75, 4.5), (1.0, 8.0))
    assert schedule.value(0.625) == 3.25  # halfway between 2 and 4.5
    assert parse_schedule(str(schedule)) == schedule
    assert len(Piecewise.from_function(lambda _: 1.0).points) == 101


@pytest.mark.parametrize(
    ("num_points", "value", "message"),
    [(1, 1.0, "num_points is 1; expected at least 2"), (2, math.nan, "got nan; expected a finite")],
)
def test_functions_that_are_no_schedule(num_points: int, value: float, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Piecewise.from_function(lambda _: value, num_points)


def test_a_schedule_of_ones_own_is_refused_before_a_run_depends_on_it() -> None:
    with pytest.raises(ConfigError, match=r"^Quadratic: .*Piecewise\.from_function"):

        class Quadratic(Schedule):
            """Could be written into a checkpoint, but not read."""
