"""Options by section, merged from a configuration file and the command line."""

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
    """A configuration file: a recipe or a part of one.

    Args:
        path: the file; None stands for an empty one.

    Raises:
        ConfigError: when it cannot be read, or is not part of a recipe.
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
        """Options by section, as `rl_train.builder.compose` takes them."""
        sections = {section: dict(self._table(section)) for section in SECTIONS}
        for section in _NAME_GIVEN_APART:
            sections[section].pop("name", None)
        for name in LENGTHS:
            sections["trainer"].pop(name, None)
        return sections

    @property
    def length(self) -> Tables:
        """The length of the run, under a name of `LENGTHS`; recorded runs have it in [resolved].

        Raises:
            ConfigError: when the file has two different lengths.
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
        """Source of the initial weights of a recorded run."""
        return self._table("resolved").get("restart_model")

    def agreed_name(self, section: str, typed: str | None, place: str) -> str:
        """Return a component's name, from this file or the command line.

        Args:
            section: ``algorithm`` or ``env``.
            typed: name on the command line.
            place: what the command line calls it.

        Raises:
            UsageError: when there is no name, or two different ones.
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
    """Return the entries of a table that are lengths of a run."""
    return {name: tables[name] for name in LENGTHS if name in tables}


def _written(tables: Tables) -> str:
    return ", ".join(f"{name} = {value}" for name, value in tables.items())


def merged_sections(
    filed: Mapping[str, Tables], given: Tables, names: Mapping[str, str] | None = None
) -> dict[str, Tables]:
    """Merge options; the command line wins over the file.

    Args:
        filed: options of the file by section.
        given: options of the command line; values outside of sections are ignored.
        names: registered names by section. In these sections the command line also wins over
            options of the file that its options replace.
    """
    merged: dict[str, Tables] = {}
    for section in SECTIONS:
        old, new = filed[section], cast("Tables", given.get(section, {}))
        if names and section in names:
            old = without_replaced(section, names[section], old, new)
        merged[section] = merged_tables(old, new)
    return merged
