import math
from dataclasses import dataclass

import pytest

from rl_core.errors import ConfigError
from rl_core.ranges import check_choice, check_ranges
from rl_core.schedules import Constant, Linear, Piecewise, Schedule


@dataclass
class Config:
    value: float | Schedule | None


@pytest.mark.parametrize("value", [0.0, 1.0, 0, 1, None, Linear(1.0, 0.0), Constant(0.5)])
def test_the_unit_interval_includes_both_ends(value: float | Schedule | None) -> None:
    check_ranges(Config(value), unit=("value",))


@pytest.mark.parametrize("value", [-1e-9, 1.0 + 1e-9, math.nan, math.inf, True, "0.5"])
def test_what_is_outside_the_unit_interval_is_refused(value: float) -> None:
    with pytest.raises(ConfigError, match=rf"value must be in \[0, 1\], got {value}"):
        check_ranges(Config(value), unit=("value",))


@pytest.mark.parametrize("value", [1e-9, 1e9, None, Linear(0.2, 0.0), Linear(1.0, 0.0, 0.5)])
def test_positive_numbers_may_fall_to_zero_in_the_course_of_the_run(
    value: float | Schedule | None,
) -> None:
    check_ranges(Config(value), positive=("value",))


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan, Linear(0.0, 1.0)])
def test_positive_numbers_start_above_zero(value: float | Schedule) -> None:
    with pytest.raises(ConfigError, match="value must be above 0, got"):
        check_ranges(Config(value), positive=("value",))


def test_zero_is_not_negative() -> None:
    check_ranges(Config(0.0), not_negative=("value",))
    with pytest.raises(ConfigError, match=r"value must be at least 0, got -0\.1"):
        check_ranges(Config(-0.1), not_negative=("value",))


@pytest.mark.parametrize(
    "schedule",
    [
        Linear(2.0, 0.0),
        Linear(0.0, 2.0),
        Piecewise(((0.0, 0.5), (0.3, 1.5), (0.6, 0.5))),
        Piecewise(((0.0, 0.5), (0.3, -0.5), (0.6, 0.5))),
    ],
)
def test_a_schedule_is_checked_over_the_whole_run(schedule: Schedule) -> None:
    with pytest.raises(ConfigError, match="got " + str(schedule).replace("(", r"\(")[:9]):
        check_ranges(Config(schedule), unit=("value",))


@pytest.mark.parametrize("count", [0, -1, 1.5, "2"])
def test_counts_are_whole_numbers_from_one(count: object) -> None:
    check_ranges(Config(None), counts=("value",))
    check_ranges(Config(1), counts=("value",))
    with pytest.raises(ConfigError, match=f"value must be at least 1, got {count}"):
        check_ranges(Config(count), counts=("value",))  # type: ignore[arg-type]  # the mistake


def test_a_choice_is_one_of_its_names() -> None:
    @dataclass
    class Options:
        where: str = "batch"

    check_choice(Options(), "where", ("batch", "minibatch"))
    with pytest.raises(ConfigError, match="where: unknown name 'bach'; did you mean 'batch'"):
        check_choice(Options("bach"), "where", ("batch", "minibatch"))
