"""Checks of a config's fields."""

import math
from collections.abc import Callable, Sequence

from rl_core.errors import ConfigError, nearest
from rl_core.schedules import Schedule


def check_ranges(
    config: object,
    *,
    unit: tuple[str, ...] = (),
    positive: tuple[str, ...] = (),
    not_negative: tuple[str, ...] = (),
    counts: tuple[str, ...] = (),
) -> None:
    """Check named fields of a config, over the whole run where they are scheduled.

    A scheduled number above 0 may fall to 0 in the course of the run.

    Args:
        config: any object; fields that are None are not checked.
        unit: fields in [0, 1].
        positive: fields above 0.
        not_negative: fields of at least 0.
        counts: whole numbers of at least 1.

    Raises:
        ConfigError: naming the field, what it was and what it must be.
    """
    _check(config, unit, "in [0, 1]", _in_unit, _in_unit)
    _check(config, positive, "above 0", _positive, _not_negative)
    _check(config, not_negative, "at least 0", _not_negative, _not_negative)
    for name in counts:
        count = getattr(config, name)
        if count is not None and not (isinstance(count, int) and count >= 1):
            raise ConfigError(f"{name} must be at least 1, got {count}")


def check_choice(config: object, name: str, choices: Sequence[str]) -> None:
    """Check a field that is one of a few names.

    Raises:
        ConfigError: suggesting the nearest name.
    """
    value = getattr(config, name)
    if value not in choices:
        raise ConfigError(f"{name}: unknown name '{value}'{nearest(str(value), choices)}")


def _check(
    config: object,
    names: tuple[str, ...],
    expected: str,
    holds_first: Callable[[float], bool],
    holds_later: Callable[[float], bool],
) -> None:
    for name in names:
        value: float | Schedule | None = getattr(config, name)
        if value is None:
            continue
        first, *later = _numbers(value)
        if not (holds_first(first) and all(map(holds_later, later))):
            raise ConfigError(f"{name} must be {expected}, got {value}")


def _numbers(value: float | Schedule) -> list[float]:
    """List what a field will be in the course of the run; NaN for what is no number."""
    if isinstance(value, Schedule):
        return [value.value(k / 100) for k in range(101)]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return [float(value) if is_number else math.nan]


def _in_unit(number: float) -> bool:
    return 0.0 <= number <= 1.0


def _positive(number: float) -> bool:
    return 0.0 < number < math.inf


def _not_negative(number: float) -> bool:
    return 0.0 <= number < math.inf
