"""The fields of a config that may change while running."""

import typing
from dataclasses import fields, is_dataclass, replace

from rl_core.config import Schedule, as_schedule, parse_schedule
from rl_core.config import Scheduled as Scheduled
from rl_core.errors import CheckpointError, ConfigError
from rl_core.stateful import StateReader


def schedules_of(config: object) -> dict[str, Schedule]:
    """Find the fields that may change while running; those set to None are left out."""
    if not is_dataclass(config):
        raise ConfigError(f"config must be a dataclass, got {type(config).__name__}")
    hints = typing.get_type_hints(type(config))
    return {
        field.name: as_schedule(getattr(config, field.name))
        for field in fields(config)
        if Schedule in typing.get_args(hints[field.name])
        and getattr(config, field.name) is not None
    }


def check_value(config: object, name: str, value: float | Schedule) -> None:
    """Let the config's own checks judge a new value."""
    assert is_dataclass(config)
    assert not isinstance(config, type)
    replace(config, **{name: value})


def saved_schedule(saved: StateReader, config: object, name: str) -> Schedule:
    """Read a field's schedule from a checkpoint.

    Raises:
        CheckpointError: when it is none, or the config refuses it.
    """
    try:
        schedule = parse_schedule(saved.text(name))
        check_value(config, name, schedule)
    except ConfigError as error:
        raise CheckpointError(f"the saved schedule of '{name}' is wrong: {error}") from error
    return schedule
