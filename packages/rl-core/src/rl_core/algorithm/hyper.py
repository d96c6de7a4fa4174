"""The fields of a config that may change while running."""

import typing
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass, replace

import torch

from rl_core.config import (
    Config,
    Schedule,
    Scheduled,
    as_schedule,
    field_types,
    parse_schedule,
)
from rl_core.errors import CheckpointError, ConfigError, nearest
from rl_core.gradients import HyperParameters
from rl_core.stateful import StateReader
from rl_core.types import StateDict


class Schedules(Mapping[str, Schedule]):
    """The schedules of a config, by field, and the tensors that follow them.

    Args:
        config: a dataclass; fields typed ``Scheduled`` that are not None have a schedule.
        device: of the tensors.

    Attributes:
        current: the current values, 0-dim.
    """

    def __init__(self, config: object, device: torch.device) -> None:
        self._config = config
        self._given = schedules_of(config)
        self._schedules = dict(self._given)
        self._progress = 0.0
        initial = {name: schedule.value(0.0) for name, schedule in self._schedules.items()}
        self.current = HyperParameters(initial).to(device)

    def __getitem__(self, name: str) -> Schedule:
        return self._schedules[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._schedules)

    def __len__(self) -> int:
        return len(self._schedules)

    def set_progress(self, progress: float) -> None:
        """Move every value to a point of the run.

        Args:
            progress: fraction of the run that is over, in [0, 1].
        """
        self._progress = progress
        for name, schedule in self._schedules.items():
            if not schedule.is_constant:
                self.current[name].fill_(schedule.value(progress))

    def metrics(self) -> Mapping[str, float]:
        """Return the current values, by field, of those that follow a schedule or were changed."""
        return {
            name: float(self.current[name])
            for name, schedule in self._schedules.items()
            if not schedule.is_constant or schedule != self._given[name]
        }

    def change(self, name: str, value: Scheduled) -> None:
        """Replace a schedule; the new one is one of the whole run.

        Raises:
            ConfigError: when there is no such field, or its annotation refuses the value.
        """
        if name not in self._schedules:
            if name in _scheduled_fields(self._config):
                raise ConfigError(
                    f"{name} is none in this run, and cannot be turned on while it runs; set it in "
                    "the algorithm's options"
                )
            raise ConfigError(f"no parameter '{name}' may change{nearest(name, self._schedules)}")
        if value is None:
            raise ConfigError(
                f"{name}: got None; expected a number or a schedule, because it cannot be turned "
                "off while a run goes on"
            )
        try:
            schedule = as_schedule(value)
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}") from error
        self._check(name, value)
        self._schedules[name] = schedule
        self.current[name].fill_(schedule.value(self._progress))

    def state_dict(self) -> StateDict:
        """Return the schedules as text."""
        return {name: str(schedule) for name, schedule in self._schedules.items()}

    def load_state_dict(self, state: StateDict) -> None:
        """Take over schedules; values follow at the next `set_progress` or with the modules.

        Raises:
            CheckpointError: when the config refuses one, or has other fields.
        """
        saved = StateReader(state, "algorithm/schedules")
        saved.expect(self._schedules)
        self._schedules = {name: self._parse(name, saved.text(name)) for name in self._schedules}

    def _parse(self, name: str, text: str) -> Schedule:
        try:
            schedule = parse_schedule(text)
            self._check(name, schedule)
        except ConfigError as error:
            raise CheckpointError(f"the saved schedule of '{name}' is wrong: {error}") from error
        return schedule

    def _check(self, name: str, value: Scheduled) -> None:
        """Let the config's own checks judge a new value."""
        if isinstance(self._config, Config):  # options without effect change nothing
            self._config.check_field(name, value)
            return
        assert is_dataclass(self._config)
        assert not isinstance(self._config, type)
        replace(self._config, **{name: value})


def checked_config(algorithm: object, config: object) -> typing.Any:
    """Return an algorithm's config, or its defaults where there is none.

    Raises:
        ConfigError: when it is of another type, or the algorithm does not say which.
    """
    name, wanted = type(algorithm).__name__, getattr(algorithm, "config_type", None)
    if not isinstance(wanted, type) or not is_dataclass(wanted):
        raise ConfigError(
            f"{name} does not say what its options and batches are; derive it from "
            "Algorithm[MyConfig, RolloutBatch], where MyConfig is a dataclass"
        )
    if config is None:
        return wanted()
    if type(config) is not wanted:  # what another class adds would be ignored
        got = type(config).__name__
        hint = f"; the class that adds its options says config_type = {got}"
        raise ConfigError(
            f"config: expected {wanted.__name__}, got {got}"
            f"{hint if isinstance(config, wanted) else ''}"
        )
    return config


def schedules_of(config: object) -> dict[str, Schedule]:
    """Find the fields that may change while running; those set to None are left out."""
    values = {name: getattr(config, name) for name in _scheduled_fields(config)}
    return {name: as_schedule(value) for name, value in values.items() if value is not None}


def _scheduled_fields(config: object) -> list[str]:
    types = field_types(type(config))
    return [name for name, type_ in types.items() if Schedule in typing.get_args(type_)]
