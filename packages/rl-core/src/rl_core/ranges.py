"""Range checks for the numbers of a config."""

import math
from collections.abc import Callable

from rl_core.errors import ConfigError
from rl_core.schedules import Schedule, as_schedule


def check_ranges(
    config: object,
    *,
    unit: tuple[str, ...] = (),
    positive: tuple[str, ...] = (),
    not_negative: tuple[str, ...] = (),
) -> None:
    """Check named fields of a config, over the whole run where they are scheduled.

    A scheduled number above 0 may fall to 0 in the course of the run.

    Args:
        config: any object; fields that are None are not checked.
        unit: fields in [0, 1].
        positive: fields above 0.
        not_negative: fields of at least 0.

    Raises:
        ConfigError: naming the field, what it was and what it must be.
    """
    _check(config, unit, "in [0, 1]", _in_unit, _in_unit)
    _check(config, positive, "above 0", _positive, _not_negative)
    _check(config, not_negative, "at least 0", _not_negative, _not_negative)


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
        schedule = as_schedule(value)
        later = [] if schedule.is_constant else [schedule.value(k / 100) for k in range(101)]
        if not (holds_first(schedule.value(0.0)) and all(map(holds_later, later))):
            raise ConfigError(f"{name} must be {expected}, got {value}")


def _in_unit(number: float) -> bool:
    return 0.0 <= number <= 1.0


def _positive(number: float) -> bool:
    return 0.0 < number < math.inf


def _not_negative(number: float) -> bool:
    return 0.0 <= number < math.inf
