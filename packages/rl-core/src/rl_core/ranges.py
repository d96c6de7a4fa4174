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
    """Check named fields of a config, at both ends of the run where they are scheduled.

    Args:
        config: any object; fields that are None are not checked.
        unit: fields in [0, 1].
        positive: fields above 0.
        not_negative: fields of at least 0.

    Raises:
        ConfigError: naming the field, what it was and what it must be.
    """
    _check(config, unit, "in [0, 1]", lambda value: 0.0 <= value <= 1.0)
    _check(config, positive, "above 0", lambda value: value > 0.0)
    _check(config, not_negative, "at least 0", lambda value: value >= 0.0)


def _check(
    config: object, names: tuple[str, ...], expected: str, holds: Callable[[float], bool]
) -> None:
    for name in names:
        value: float | Schedule | None = getattr(config, name)
        if value is None:
            continue
        schedule = as_schedule(value)
        # A schedule may reach an open bound at its very end, such as a rate that falls to 0.
        points = [schedule.value(0.0)] if schedule.is_constant else [schedule.value(0.5)]
        if not all(math.isfinite(point) and holds(point) for point in points):
            raise ConfigError(f"{name} must be {expected}, got {value}")
