"""Checks of a config's fields."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from functools import cache
from types import NoneType
from typing import ClassVar, Literal, Protocol, TypeAlias, TypeGuard, get_args, get_origin

from rl_core.config._types import admits_none, field_types, is_union
from rl_core.config.schedules import Schedule
from rl_core.errors import ConfigError, nearest

_WORDS = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "text",
    NoneType: "None",
    Schedule: "a schedule such as Linear(0.001, 0.0)",
}

Range: TypeAlias = Literal["of at least 0", "above 0", "in [0, 1]"]
"""What a number must be."""

_NUMBERS: Mapping[Range, str] = {
    "of at least 0": "a finite number of at least 0",
    "above 0": "a finite number above 0",
    "in [0, 1]": "a number in [0, 1]",
}


class Replacing(Protocol):
    """A config some of whose options leave others without effect."""

    replaces: ClassVar[Mapping[str, tuple[str, ...]]]
    """By option, those that it replaces where it differs from its default."""


def check_ranges(
    config: object,
    *,
    unit: tuple[str, ...] = (),
    positive: tuple[str, ...] = (),
    not_negative: tuple[str, ...] = (),
    counts: tuple[str, ...] = (),
    widths: tuple[str, ...] = (),
) -> None:
    """Check the types of a config's fields, and the numbers in those that are named.

    Scheduled numbers are checked over the whole run; one above 0 may fall to 0 in its course.

    Args:
        config: a dataclass; the ranges of fields that are None are not checked.
        unit: fields in [0, 1].
        positive: fields above 0.
        not_negative: fields of at least 0.
        counts: whole numbers of at least 1.
        widths: lists of such, of a network's layers.

    Raises:
        ConfigError: naming the field, what it was and what it must be.
    """
    _check_types(config)
    _check(config, unit, "in [0, 1]", _in_unit)
    _check(config, positive, "above 0", _not_negative)
    _check(config, not_negative, "of at least 0", _not_negative)
    for names, check in ((counts, check_count), (widths, check_widths)):
        for name in names:
            value = getattr(config, name)
            if value is not None:
                check(name, value, _or_none(config, name))


def check_count(name: str, value: object, instead: str = "") -> int:
    """Check a number of things.

    Args:
        name: what it is called in the error.
        value: what was given.
        instead: what else may be given, such as ``", or None"``.

    Returns:
        The number.

    Raises:
        ConfigError: unless it is a whole number of at least 1.
    """
    if not _is_count(value):
        raise ConfigError(f"{name} must be a whole number of at least 1{instead}, got {value!r}")
    return value


def check_widths(name: str, value: object, instead: str = "") -> tuple[int, ...]:
    """Check the widths of a network's hidden layers, of which there may be none.

    Args:
        name: what they are called in the error.
        value: what was given.
        instead: what else may be given, such as ``", or None"``.

    Returns:
        The widths.

    Raises:
        ConfigError: unless they are a list of whole numbers of at least 1.
    """
    if isinstance(value, str) or not isinstance(value, Sequence) or not all(map(_is_count, value)):
        raise ConfigError(
            f"{name} must be a list of whole numbers of at least 1{instead}, got {value!r}"
        )
    return tuple(value)


def check_choice(config: object, name: str, choices: Sequence[str]) -> None:
    """Check a field that is one of a few names.

    Raises:
        ConfigError: suggesting the nearest name.
    """
    value = getattr(config, name)
    if value not in choices:
        raise ConfigError(f"{name}: unknown name '{value}'{nearest(str(value), choices)}")


def check_owners(config: object, owners: Mapping[str, tuple[str, tuple[object, ...]]]) -> None:
    """Refuse options that were given although another option leaves them without effect.

    Args:
        config: a dataclass; an option counts as given where it differs from its default.
        owners: by option, the option that it belongs to, and the values with which it does.

    Raises:
        ConfigError: naming both.
    """
    by_name = {field.name: field for field in fields(config)}  # type: ignore[arg-type]  # one
    for option, (owner, values) in owners.items():
        given, chosen = getattr(config, option), getattr(config, owner)
        if given != _default(by_name[option]) and chosen not in values:
            expected = " or ".join(map(repr, values))
            raise ConfigError(
                f"{option} has no effect with {owner}={chosen!r}; set {owner} to {expected}, or "
                f"leave {option} out"
            )


def check_unused(config: Replacing) -> None:
    """Refuse options that were given although another one, which was given too, replaces them.

    Args:
        config: a dataclass; an option counts as given where it differs from its default.

    Raises:
        ConfigError: naming both.
    """
    by_name = {field.name: field for field in fields(config)}  # type: ignore[arg-type]  # one
    given = {name for name, field in by_name.items() if getattr(config, name) != _default(field)}
    for option, replaced in config.replaces.items():
        for name in replaced:
            if {option, name} <= given:
                raise ConfigError(f"{name} has no effect with {option}; leave one of them out")


def check_number(name: str, value: object, expected: Range = "of at least 0") -> float:
    """Check a number that is no field of a config.

    Args:
        name: what it is called in the error.
        value: what was given.
        expected: its range.

    Returns:
        The number.

    Raises:
        ConfigError: naming it, what it was and what it must be; infinity is no number.
    """
    number = _number(value)
    if not (math.isfinite(number) and _RANGES[expected](number)):
        raise ConfigError(f"{name} must be {_NUMBERS[expected]}, got {value!r}")
    return number


def _default(field: Field[object]) -> object:
    return field.default if field.default_factory is MISSING else field.default_factory()


def _check_types(config: object) -> None:
    """Compare each field with its annotation, but nothing inside lists and mappings."""
    for name, type_ in _types_of(type(config)).items():  # type: ignore[arg-type]  # classes hash
        value = getattr(config, name)
        if not _is_of(type_, value):
            raise ConfigError(f"{name} must be {_described(type_)}, got {value!r}")


@cache
def _types_of(cls: type[object]) -> Mapping[str, object]:
    return field_types(cls)


def _is_of(type_: object, value: object) -> bool:
    if is_union(type_):
        return any(_is_of(member, value) for member in get_args(type_))
    if get_origin(type_) is Literal:
        return type(value) in {type(choice) for choice in get_args(type_)}
    if type_ is float:
        return _is_number(value)
    if type_ is int:
        return isinstance(value, int) and not isinstance(value, bool)
    try:
        return isinstance(value, get_origin(type_) or type_)  # type: ignore[arg-type]  # see below
    except TypeError:  # Any, protocols and type variables cannot be asked
        return True


def _described(type_: object) -> str:
    if is_union(type_):
        return " or ".join(dict.fromkeys(map(_described, get_args(type_))))
    if get_origin(type_) is Literal:
        return " or ".join(map(repr, get_args(type_)))
    return _WORDS.get(type_, getattr(type_, "__name__", str(type_)))  # type: ignore[call-overload, no-any-return]  # unhashable types have no words


def _check(
    config: object,
    names: tuple[str, ...],
    expected: Range,
    holds_later: Callable[[float], bool],
) -> None:
    for name in names:
        value: float | Schedule | None = getattr(config, name)
        if value is None:
            continue
        first, *later = _numbers(value)
        if not (_RANGES[expected](first) and all(map(holds_later, later))):
            wanted = f"{_NUMBERS[expected]}{_or_none(config, name)}"
            raise ConfigError(f"{name} must be {wanted}, got {value}")


def _or_none(config: object, name: str) -> str:
    return ", or None" if admits_none(_types_of(type(config))[name]) else ""  # type: ignore[arg-type]  # classes hash


def _numbers(value: float | Schedule) -> list[float]:
    """List what a field will be in the course of the run; NaN for what is no number."""
    if isinstance(value, Schedule):
        return [value.value(k / 100) for k in range(101)]
    return [_number(value)]


def _number(value: object) -> float:
    """Return a number, NaN for what is none."""
    return float(value) if _is_number(value) else math.nan


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _in_unit(number: float) -> bool:
    return 0.0 <= number <= 1.0


def _positive(number: float) -> bool:
    return 0.0 < number < math.inf


def _not_negative(number: float) -> bool:
    return 0.0 <= number < math.inf


_RANGES: Mapping[Range, Callable[[float], bool]] = {
    "of at least 0": _not_negative,
    "above 0": _positive,
    "in [0, 1]": _in_unit,
}
