"""Options by section, from a configuration file and from the command line."""

from collections.abc import Mapping
from pathlib import Path
from typing import cast

from rl_command.errors import UsageError
from rl_core.config import CUSTOM, LENGTHS, Tables, merged_tables
from rl_core.errors import ConfigError
from rl_core.types import Json
from rl_train.builder.components import without_replaced
from rl_train.recipe_files import load_tables

SECTIONS = ("algorithm", "actor", "storage", "env", "trainer")
"""The sections of a recipe that hold options."""

_NAME_GIVEN_APART = ("env", "algorithm")


class ConfigFile:
    """A recipe, or a part of one, that the user starts from; without a path an empty one.

    Args:
        path: the file.

    Raises:
        ConfigError: when it cannot be read, or is no part of a recipe.
    """

    def __init__(self, path: str | None) -> None:
        self.path = path
        self.tables: Tables = {} if path is None else load_tables(Path(path))
        for section in SECTIONS:
            name = self._table(section).get("name")
            if name == CUSTOM:
                raise ConfigError(
                    f"{path}: its {section} is 'custom', an object given in Python; the command "
                    "line can only build registered names"
                )
            if name is not None and not isinstance(name, str):
                raise ConfigError(f"{path}: [{section}] name: got {name!r}; expected text")

    @property
    def sections(self) -> dict[str, Tables]:
        """Options by section, in the form that `rl_train.builder.compose` takes."""
        sections = {section: dict(self._table(section)) for section in SECTIONS}
        for section in _NAME_GIVEN_APART:
            sections[section].pop("name", None)
        for name in LENGTHS:
            sections["trainer"].pop(name, None)
        return sections

    @property
    def length(self) -> Tables:
        """The length of the run, by one of `LENGTHS`; that of a recorded run was resolved.

        Raises:
            ConfigError: when the file says it twice, and differently.
        """
        chosen, resolved = lengths_of(self._table("trainer")), lengths_of(self._table("resolved"))
        if chosen and resolved and chosen != resolved:
            raise ConfigError(
                f"{self.path}: [trainer] says {_written(chosen)}, but [resolved] "
                f"{_written(resolved)}; leave one of them out"
            )
        return chosen or resolved

    @property
    def restart_model(self) -> Json:
        """Where the first weights of a recorded run came from."""
        return self._table("resolved").get("restart_model")

    def agreed_name(self, section: str, typed: str | None, place: str) -> str:
        """Return a component's name, given here or on the command line, or the same in both.

        Args:
            section: ``algorithm`` or ``env``.
            typed: what the command line gives.
            place: what the command line calls it.

        Raises:
            UsageError: when there are two names, or none.
        """
        filed = cast("str | None", self._table(section).get("name"))
        if typed is not None and filed is not None and typed != filed:
            raise UsageError(
                f"{place} is '{typed}', but {self.path} says {section} '{filed}'; leave one of "
                "them out"
            )
        name = typed or filed
        if name is None:
            raise UsageError(
                f"{place} is missing; give both names, as in rl train ppo CartPole-v1, or a "
                f"--config whose [{section}] has a name"
            )
        return name

    def _table(self, section: str) -> Tables:
        return cast("Tables", self.tables.get(section, {}))


def lengths_of(tables: Tables) -> Tables:
    """Return what a table says of a run's length."""
    return {name: tables[name] for name in LENGTHS if name in tables}


def _written(tables: Tables) -> str:
    return ", ".join(f"{name} = {value}" for name, value in tables.items())


def merged_sections(
    filed: Mapping[str, Tables], given: Tables, names: Mapping[str, str] | None = None
) -> dict[str, Tables]:
    """Let the command line win over the file, option by option.

    Args:
        filed: options of the file.
        given: what the user typed; other values than sections are left out.
        names: registered names by section. Where one is known, what the user typed also wins over
            options of the file that it replaces.
    """
    merged: dict[str, Tables] = {}
    for section in SECTIONS:
        old, new = filed[section], cast("Tables", given.get(section, {}))
        if names and section in names:
            old = without_replaced(section, names[section], old, new)
        merged[section] = merged_tables(old, new)
    return merged
