import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Protocol

import numpy as np
import pytest
from annotated_types import Ge, Gt, Interval, Le, Lt

from rl_core.config import (
    Config,
    Constant,
    Count,
    Fraction,
    Linear,
    Needs,
    NonNegative,
    Piecewise,
    Positive,
    Schedule,
    Scheduled,
    ScheduledFraction,
    ScheduledNonNegative,
    ScheduledPositive,
    Widths,
    Without,
    as_python,
    bounds_of,
    check_argument,
    checked_arguments,
    parse_schedule,
    replaced_options,
    unused_options,
)
from rl_core.errors import ConfigError


def refusal(value: object, type_: object) -> str:
    """Return what is said of a value; nothing where it is taken."""
    try:
        check_argument("x", value, type_)
    except ConfigError as error:
        return str(error)
    return ""


# Bounds


@pytest.mark.parametrize(
    ("type_", "values"),
    [
        (Positive, [1e-9, 1, 1e9]),
        (NonNegative, [0.0, 0, 5.0]),
        (Fraction, [0.0, 1.0, 0, 1, 0.3]),
        (Count, [1, 10**12]),
        (Annotated[float, Gt(0), Lt(1)], [0.5]),
        (Annotated[float, Interval(ge=0, lt=1)], [0.0, 0.999]),
        (Annotated[int, Interval(ge=2, le=255)], [2, 255]),
        (Annotated[float, Le(3)], [3, -1e9]),
        (float, [-1.0, 0, 2.5]),
        (Fraction | None, [None, 0.5]),
        (Annotated[float | None, Gt(0)], [None, 0.5]),
        (Positive, [np.float64(1.0), np.float32(1.0), np.int64(1)]),
    ],
)
def test_numbers_within_the_bounds_are_taken(type_: object, values: list[object]) -> None:
    assert [refusal(value, type_) for value in values] == [""] * len(values)


@pytest.mark.parametrize(
    ("type_", "value", "message"),
    [
        (Positive, 0.0, "x must be a finite number above 0, got 0.0"),
        (Positive, math.inf, "x must be a finite number above 0, got inf"),
        (Positive, math.nan, "x must be a finite number above 0, got nan"),
        (Positive | None, 0, "x must be a finite number above 0, or None, got 0"),
        (NonNegative, -0.1, "x must be a finite number of at least 0, got -0.1"),
        (Fraction, 1.0 + 1e-9, "x must be a number in [0, 1], got 1.000000001"),
        (Fraction | None, -1e-9, "x must be a number in [0, 1], or None, got -1e-09"),
        (Fraction, math.nan, "x must be a number in [0, 1], got nan"),
        (Annotated[float, Gt(0), Lt(1)], 1.0, "x must be a number in (0, 1), got 1.0"),
        (Annotated[float, Lt(1), Gt(0)], 0.0, "x must be a number in (0, 1), got 0.0"),
        (Annotated[float, Interval(gt=0, le=1e30)], 0, "x must be a number in (0, 1e+30], got 0"),
        (Annotated[float, Lt(3)], 3, "x must be a finite number below 3, got 3"),
        (Annotated[float, Le(3)], 4, "x must be a finite number of at most 3, got 4"),
        (float, math.inf, "x must be a finite number, got inf"),
        (Count, 0, "x must be a whole number of at least 1, got 0"),
        (Count | None, -1, "x must be a whole number of at least 1, or None, got -1"),
        (Count, 1.5, "x must be a whole number of at least 1, got 1.5"),
        (Annotated[Positive, Lt(1)], 2.0, "x must be a number in (0, 1), got 2.0"),
        (Annotated[int, Interval(ge=2, le=255)], 1, "x must be a whole number in [2, 255], got 1"),
    ],
)
def test_numbers_beyond_the_bounds_are_refused(type_: object, value: object, message: str) -> None:
    assert refusal(value, type_) == message


@pytest.mark.parametrize("value", [np.array(3), np.bool_(True), "3", True, None])
def test_only_numbers_are_numbers(value: object) -> None:
    """Also where a list would keep a number of NumPy's."""
    kept = refusal([np.int64(3)], Sequence[Count])
    assert kept == "x[0] must be a whole number of at least 1, got np.int64(3)"
    value = as_python(value)
    assert refusal(value, Count) == f"x must be a whole number of at least 1, got {value!r}"
    assert refusal(value, Positive) == f"x must be a finite number above 0, got {value!r}"


# Schedules


@pytest.mark.parametrize(
    ("type_", "schedule"),
    [
        (ScheduledFraction, Linear(1.0, 0.0)),
        (ScheduledFraction, Constant(0.5)),
        (ScheduledPositive, Linear(0.2, 0.0)),
        (ScheduledPositive | None, Linear(1.0, 0.0, 0.5)),
        (ScheduledNonNegative, Linear(0.0, 1.0)),
        (Scheduled, Linear(-5.0, 5.0)),
    ],
)
def test_schedules_within_the_bounds_are_taken(type_: object, schedule: Schedule) -> None:
    assert refusal(schedule, type_) == ""


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
    expected = f"x must be a number in [0, 1], got {schedule}"
    assert refusal(schedule, ScheduledFraction) == expected


def test_a_schedule_may_fall_to_an_open_bound_but_not_start_there() -> None:
    message = "x must be a finite number above 0, or None, got linear(0.0, 1.0)"
    assert refusal(Linear(0.0, 1.0), ScheduledPositive | None) == message
    assert refusal(Linear(1.0, -0.1), ScheduledPositive).endswith("got linear(1.0, -0.1)")


def test_a_plain_number_takes_no_schedule() -> None:
    assert refusal(Linear(0.1, 0.2), Fraction).startswith(
        "x must be a number in [0, 1], got linear"
    )
    expected = "x must be a number in [0, 1] or a schedule such as Linear(0.001, 0.0), got '0.1'"
    assert refusal("0.1", ScheduledFraction) == expected


# Names and lists


def test_names_are_looked_up_and_the_nearest_is_suggested() -> None:
    names = Literal["batch", "minibatch"]
    assert refusal("batch", names) == refusal(None, names | None) == ""
    assert refusal("bach", names) == "x: unknown name 'bach'; did you mean 'batch'?"
    assert refusal("zz", names | None) == "x: unknown name 'zz'; known: batch, minibatch"
    assert refusal(True, names) == "x must be 'batch' or 'minibatch', got True"
    assert refusal("en", Count | Literal["end"]) == "x: unknown name 'en'; did you mean 'end'?"
    assert refusal(0, Count | Literal["end"]) == "x must be a whole number of at least 1, got 0"


@pytest.mark.parametrize("sizes", [(0,), (4, -1), (2.5,), (True,), ("4",)])
def test_each_width_is_a_whole_number_from_one(sizes: tuple[Any, ...]) -> None:
    wrong = len(sizes) - 1
    expected = f"x[{wrong}] must be a whole number of at least 1, got {sizes[wrong]!r}"
    assert refusal(sizes, Widths) == refusal(list(sizes), Sequence[Count] | None) == expected


def test_lists_have_items_of_their_type() -> None:
    assert refusal((), Widths) == refusal((64, 64), Widths) == refusal(["a"], Sequence[str]) == ""
    assert refusal("64", Sequence[str]) == "x must be a list, got '64'"
    assert refusal([64], Widths) == "x must be a tuple, got [64]"
    assert refusal(64, Widths | None) == "x must be a tuple, or None, got 64"
    assert refusal(["a", 1], Sequence[str]) == "x[1] must be text, got 1"
    pair = tuple[float, float] | None
    assert refusal((0.0, 1), pair) == refusal(None, pair) == ""
    assert refusal((0.0, math.inf), pair) == "x[1] must be a finite number, got inf"
    assert refusal((0.0, 1.0, 2.0), pair) == "x must be a list of 2, got (0.0, 1.0, 2.0)"


# Configs


class Named(Protocol):
    """Cannot be asked whether something is one."""

    name: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Inner(Config):
    value: ScheduledPositive | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Typed(Inner):
    rate: Scheduled = 1.0
    bound: float | None = None
    count: int = 1
    switch: bool = False
    title: str = "a"
    mode: Literal["on", "off"] = "on"
    sizes: tuple[int, ...] = ()
    names: Sequence[str] = ()
    table: Mapping[str, int] = field(default_factory=dict)
    function: Callable[[int], int] = abs
    nested: Inner = field(default_factory=Inner)
    anything: Any = None
    named: Named | None = None


def test_values_of_the_declared_types_pass() -> None:
    Typed()
    Typed(rate=1, bound=2, sizes=(1, 2), names=["a"], table={"a": 1}, anything=object())
    Typed(rate=Linear(1.0, 0.0), mode="off", switch=True)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("value", 0.0, "a finite number above 0, or None, got 0.0"),
        ("rate", None, "a finite number or a schedule such as Linear(0.001, 0.0), got None"),
        ("rate", True, "a finite number or a schedule such as Linear(0.001, 0.0), got True"),
        ("bound", "none", "a finite number, or None, got 'none'"),
        ("bound", math.nan, "a finite number, or None, got nan"),
        ("count", True, "a whole number, got True"),
        ("count", 1.0, "a whole number, got 1.0"),
        ("switch", "no", "True or False, got 'no'"),
        ("switch", 1, "True or False, got 1"),
        ("title", 1, "text, got 1"),
        ("mode", True, "'on' or 'off', got True"),
        ("sizes", 64, "a tuple, got 64"),
        ("table", [], "a mapping, got []"),
        ("function", 5, "a function, got 5"),
        ("nested", None, "an Inner, got None"),
        ("nested", {"value": 1.0}, "an Inner, got {'value': 1.0}"),
    ],
)
def test_values_of_other_types_are_refused(name: str, value: object, expected: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Typed(**{name: value})  # type: ignore[arg-type]  # what is tested
    assert str(refused.value) == f"{name} must be {expected}"


# Options that depend on each other


@dataclass(frozen=True)
class Owned(Config):
    kind: str = "none"
    size: Annotated[Count | None, Needs("kind", "gru", "lstm")] = None
    names: Annotated[tuple[str, ...], Needs("kind", "gru")] = field(default_factory=tuple)
    scale: Annotated[Positive, Needs("size")] = 1.0


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"kind": "gru", "size": 3, "names": ("a",), "scale": 2.0},
        {"kind": "lstm", "size": 3},
        {"kind": "other", "size": None, "names": (), "scale": 1},
    ],
)
def test_options_with_what_they_need_are_taken(options: dict[str, Any]) -> None:
    Owned(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"size": 3},
            "size has no effect with kind='none'; leave it out, or set kind to 'gru' or 'lstm'",
        ),
        (
            {"kind": "lstm", "names": ("a",)},
            "names has no effect with kind='lstm'; leave it out, or set kind to 'gru'",
        ),
        ({"scale": 2.0}, "scale has no effect without size; set that too, or leave it out"),
        ({"size": 0}, "size must be a whole number of at least 1, or None, got 0"),
    ],
)
def test_options_without_what_they_need_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Owned(**options)
    assert str(refused.value) == message


@dataclass(frozen=True)
class Replaced(Config):
    layers: tuple[str, ...] | None = None
    sizes: Annotated[Widths, Without("layers")] = (64,)
    activation: Annotated[str, Without("layers", "shared")] = "tanh"
    shared: bool = False


@pytest.mark.parametrize(
    "config", [Replaced(), Replaced(sizes=(8,), activation="relu"), Replaced(("a",), (64,), "tanh")]
)
def test_options_that_nothing_replaces_are_taken(config: Replaced) -> None:
    config.refuse("is not wanted", "shared")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": ("a",), "sizes": (8,)}, "sizes has no effect with layers; leave one of them "),
        ({"layers": (), "activation": "relu"}, "activation has no effect with layers"),
        ({"shared": True, "activation": "relu"}, "activation has no effect with shared"),
    ],
)
def test_options_that_another_one_replaces_are_refused(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=f"^{message}"):
        Replaced(**options)


def test_bounds_are_shown_in_symbols() -> None:
    assert bounds_of(Inner) == {"value": "> 0"}
    assert bounds_of(Owned) == {"size": ">= 1", "scale": "> 0"}


def test_dependent_options_can_be_asked_for() -> None:
    replaced = replaced_options(Replaced)
    assert replaced == {"layers": {"sizes", "activation"}, "shared": {"activation"}}
    assert unused_options(Owned, {"kind": "lstm"}) == {"names"}
    assert unused_options(Owned, {"kind": "none"}) == {"names", "size"}
    assert unused_options(Owned, {"size": None}) == set()


def test_what_else_leaves_an_option_without_effect_can_be_told() -> None:
    config = Replaced(sizes=(8,))
    with pytest.raises(ConfigError, match=r"^actor\.sizes is not wanted$"):
        config.refuse("is not wanted", "layers", "sizes", section="actor.")


# Arguments


class Storage:
    @checked_arguments("storage")
    def __init__(
        self, size: Count, *, stack: Count | None = None, whole: Annotated[str, Needs("stack")] = ""
    ) -> None:
        self.size = size


def test_arguments_are_checked_like_fields() -> None:
    assert Storage(3).size == Storage(size=3, stack=2, whole="a").size == 3
    with pytest.raises(ConfigError, match=r"^storage\.size must be a whole number of at least 1, "):
        Storage(0)
    with pytest.raises(ConfigError, match=r"^storage\.stack must be .* 1, or None, got 0"):
        Storage(3, stack=0)
    with pytest.raises(ConfigError, match=r"^storage\.whole has no effect without storage\.stack"):
        Storage(3, whole="a")
    with pytest.raises(TypeError, match="size"):
        Storage()  # type: ignore[call-arg]  # what is tested


def test_a_bound_below_an_inner_one_holds_too() -> None:
    assert refusal(-1.0, Annotated[float | None, Ge(0)]).endswith("at least 0, or None, got -1.0")


def test_a_schedule_is_checked_where_it_bends_too() -> None:
    peak = parse_schedule("piecewise(0: 0.9, 0.501: 0.9, 0.505: 5.0, 0.509: 0.9)")
    assert refusal(peak, ScheduledFraction).startswith(
        "x must be a number in [0, 1], got piecewise"
    )
