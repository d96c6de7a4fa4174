import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

import pytest

from rl_core.config import (
    Constant,
    Linear,
    Piecewise,
    Range,
    Schedule,
    check_choice,
    check_number,
    check_owners,
    check_ranges,
    check_unused,
)
from rl_core.errors import ConfigError


@dataclass
class Config:
    value: float | Schedule | None


@pytest.mark.parametrize("value", [0.0, 1.0, 0, 1, None, Linear(1.0, 0.0), Constant(0.5)])
def test_the_unit_interval_includes_both_ends(value: float | Schedule | None) -> None:
    check_ranges(Config(value), unit=("value",))


@pytest.mark.parametrize("value", [-1e-9, 1.0 + 1e-9, math.nan, math.inf])
def test_what_is_outside_the_unit_interval_is_refused(value: float) -> None:
    with pytest.raises(
        ConfigError, match=rf"value must be a number in \[0, 1\], or None, got {value}"
    ):
        check_ranges(Config(value), unit=("value",))


@pytest.mark.parametrize("value", [1e-9, 1e9, None, Linear(0.2, 0.0), Linear(1.0, 0.0, 0.5)])
def test_positive_numbers_may_fall_to_zero_in_the_course_of_the_run(
    value: float | Schedule | None,
) -> None:
    check_ranges(Config(value), positive=("value",))


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan, Linear(0.0, 1.0)])
def test_positive_numbers_start_above_zero(value: float | Schedule) -> None:
    with pytest.raises(ConfigError, match="value must be a finite number above 0, or None, got"):
        check_ranges(Config(value), positive=("value",))


def test_zero_is_not_negative() -> None:
    check_ranges(Config(0.0), not_negative=("value",))
    with pytest.raises(
        ConfigError, match=r"value must be a finite number of at least 0, or None, got -0\.1"
    ):
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


@pytest.mark.parametrize("expected", ["above 0", "of at least 0"])
def test_numbers_of_components_are_finite(expected: Range) -> None:
    assert check_number("weight", 1, expected) == 1
    with pytest.raises(ConfigError, match=f"weight must be a finite number {expected}, got inf"):
        check_number("weight", math.inf, expected)


@dataclass
class Networks:
    sizes: Sequence[int] = (4,)
    more: tuple[int, ...] | None = None


@pytest.mark.parametrize("sizes", [(0,), (4, -1), (2.5,), (True,), ("4",), "44"])
def test_widths_are_whole_numbers_from_one(sizes: Any) -> None:
    check_ranges(Networks((), (3, 2)), widths=("sizes", "more"))
    with pytest.raises(ConfigError, match="sizes must be a list of whole numbers of at least 1, g"):
        check_ranges(Networks(sizes), widths=("sizes", "more"))
    if isinstance(sizes, tuple):
        with pytest.raises(ConfigError, match=r"more must be a list .* 1, or None, got \("):
            check_ranges(Networks(more=sizes), widths=("sizes", "more"))


@pytest.mark.parametrize("count", [0, -1, 1.5])
def test_counts_are_whole_numbers_from_one(count: float) -> None:
    check_ranges(Config(None), counts=("value",))
    check_ranges(Config(1), counts=("value",))
    with pytest.raises(
        ConfigError, match=f"value must be a whole number of at least 1, or None, got {count}"
    ):
        check_ranges(Config(count), counts=("value",))


def test_a_choice_is_one_of_its_names() -> None:
    @dataclass
    class Options:
        where: str = "batch"

    check_choice(Options(), "where", ("batch", "minibatch"))
    with pytest.raises(ConfigError, match="where: unknown name 'bach'; did you mean 'batch'"):
        check_choice(Options("bach"), "where", ("batch", "minibatch"))


class Named(Protocol):
    """Cannot be asked whether something is one."""

    name: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Typed:
    rate: float | Schedule = 1.0
    bound: float | None = None
    count: int = 1
    switch: bool = False
    title: str = "a"
    mode: Literal["on", "off"] = "on"
    sizes: tuple[int, ...] = ()
    names: Sequence[str] = ()
    table: Mapping[str, int] = field(default_factory=dict)
    function: Callable[[int], int] = abs
    nested: Config = field(default_factory=lambda: Config(1.0))
    anything: Any = None
    named: Named | None = None

    def __post_init__(self) -> None:
        check_ranges(self)


def test_values_of_the_declared_types_pass() -> None:
    Typed()
    Typed(rate=1, bound=2, sizes=(1, 2), names=["a"], table={"a": 1}, anything=object())
    Typed(rate=Linear(1.0, 0.0), mode="off", switch=True)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("rate", None, r"a number or a schedule such as Linear\(0.001, 0.0\), got None"),
        ("rate", "0.1", r"a number or a schedule such as Linear\(0.001, 0.0\), got '0.1'"),
        ("rate", True, r"a number or a schedule such as Linear\(0.001, 0.0\), got True"),
        ("bound", "none", "a number or None, got 'none'"),
        ("count", True, "a whole number, got True"),
        ("count", 1.0, "a whole number, got 1.0"),
        ("switch", "no", "True or False, got 'no'"),
        ("switch", 1, "True or False, got 1"),
        ("title", 1, "text, got 1"),
        ("mode", True, "'on' or 'off', got True"),
        ("sizes", 64, "tuple, got 64"),
        ("table", [], r"Mapping, got \[\]"),
        ("function", 5, "Callable, got 5"),
        ("nested", None, "Config, got None"),
        ("nested", {"value": 1.0}, "Config, got {'value': 1.0}"),
    ],
)
def test_values_of_other_types_are_refused(name: str, value: object, expected: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be {expected}"):
        Typed(**{name: value})  # type: ignore[arg-type]  # what is tested


@dataclass
class Owned:
    kind: str = "none"
    size: int | None = None
    names: tuple[str, ...] = field(default_factory=tuple)


OWNERS = {"size": ("kind", ("gru", "lstm")), "names": ("kind", ("gru",))}


@pytest.mark.parametrize(
    "config", [Owned(), Owned("gru", 3, ("a",)), Owned("lstm", 3), Owned("other", None, ())]
)
def test_options_with_their_owner_are_taken(config: Owned) -> None:
    check_owners(config, OWNERS)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (Owned(size=3), "size has no effect with kind='none'; set kind to 'gru' or 'lstm', or "),
        (Owned("lstm", names=("a",)), "names has no effect with kind='lstm'; set kind to 'gru', "),
    ],
)
def test_options_without_their_owner_are_refused(config: Owned, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_owners(config, OWNERS)


@dataclass(frozen=True)
class Replaced:
    replaces: ClassVar[Mapping[str, tuple[str, ...]]] = {"layers": ("sizes", "activation")}

    layers: tuple[str, ...] | None = None
    sizes: tuple[int, ...] = (64,)
    activation: str = "tanh"


@pytest.mark.parametrize(
    "config", [Replaced(), Replaced(sizes=(8,), activation="relu"), Replaced(("a",), (64,), "tanh")]
)
def test_options_that_nothing_replaces_are_taken(config: Replaced) -> None:
    check_unused(config)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (Replaced(("a",), (8,)), "^sizes has no effect with layers; leave one of them out$"),
        (Replaced((), activation="relu"), "^activation has no effect with layers"),
    ],
)
def test_options_that_another_one_replaces_are_refused(config: Replaced, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_unused(config)
