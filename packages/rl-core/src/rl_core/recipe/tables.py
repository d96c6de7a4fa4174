"""Reading a recipe, or a part of one, from TOML or JSON."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, TypeAlias

from rl_core.errors import ConfigError
from rl_core.recipe._checks import check_layout, check_values
from rl_core.recipe._json import parse_json
from rl_core.recipe._toml import parse_toml
from rl_core.recipe.layout import Tables
from rl_core.types import Json

_MAX_BYTES = 2**20

Syntax: TypeAlias = Literal["TOML", "JSON"]
"""What the text of a recipe is written in."""


def syntax_of(path: Path) -> Syntax:
    """Tell what a file is written in: JSON where its name ends in ``.json``, else TOML."""
    return "JSON" if path.suffix.lower() == ".json" else "TOML"


def parse_tables(text: str, source: str = "the recipe", syntax: Syntax = "TOML") -> Tables:
    """Read text that is a recipe or a part of one, such as a user's configuration file.

    Args:
        text: the contents.
        source: what to call it in messages, such as the file's name.
        syntax: what the text is written in; ``null`` of JSON means none.

    Returns:
        The tables, for `Recipe.merged` or `Recipe.from_tables`.

    Raises:
        ConfigError: when it is not of that syntax, is larger than 1 MiB or nested deeper than 8
            levels, has a key twice, or has an unknown table or top-level key.
    """
    try:
        if len(text) > _MAX_BYTES:
            raise ConfigError(f"got {len(text)} characters; expected at most {_MAX_BYTES}")
        tables = parse_toml(text) if syntax == "TOML" else parse_json(text)
        if not isinstance(tables, dict):
            raise ConfigError(
                f"got {type(tables).__name__} as a whole; expected an object with tables such as"
                ' {"algorithm": {"name": "ppo"}}'
            )
        check_values(tables, "", 0)
        check_layout(tables)
    except (ValueError, RecursionError) as error:
        fault = f"not valid {syntax} ({error}){_other_syntax(text, syntax)}"
        reason = error if isinstance(error, ConfigError) else fault
        raise ConfigError(f"{source}: {reason}") from error
    return tables


def _other_syntax(text: str, syntax: Syntax) -> str:
    """Say how the other syntax is chosen, where a text looks like that one."""
    is_object = text.lstrip().startswith("{")
    if is_object == (syntax == "JSON"):
        return ""
    other, ending = ("JSON", ".json") if is_object else ("TOML", ".toml")
    return f"; {other} is read from files whose names end in {ending}"


def load_tables(path: Path) -> Tables:
    """Read a file that is a recipe or a part of one, in JSON where its name ends in ``.json``.

    Raises:
        ConfigError: when the file cannot be read, or as `parse_tables` says.
    """
    try:
        if not path.is_file():
            kind = "a directory" if path.is_dir() else "no regular file"
            kind = kind if path.exists() else "missing"
            raise ConfigError(f"{path}: it is {kind}; expected a recipe in TOML, or in JSON")
        with path.open("rb") as file:
            raw = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: it cannot be read: {error.strerror}") from error
    if len(raw) > _MAX_BYTES:
        size = os.path.getsize(path)
        raise ConfigError(f"{path}: it has {size} bytes; expected at most {_MAX_BYTES}")
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: it is not UTF-8 text ({error.reason})") from error
    return parse_tables(text, str(path), syntax_of(path))


def merged_tables(base: Mapping[str, Json], overrides: Mapping[str, Json]) -> Tables:
    """Return tables in which the overrides win, option by option.

    A table that names another component than the old one stands alone, because the options of one
    mean nothing to another.
    """
    if "name" in base and "name" in overrides and base["name"] != overrides["name"]:
        return dict(overrides)
    merged = dict(base)
    for key, value in overrides.items():
        old = merged.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            merged[key] = merged_tables(old, value)
        else:
            merged[key] = value
    return merged
