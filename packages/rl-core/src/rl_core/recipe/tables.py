"""Reading a recipe, or a part of one, from TOML."""

import os
import tomllib
from pathlib import Path

from rl_core.errors import ConfigError
from rl_core.recipe._checks import check_layout, check_values
from rl_core.recipe._toml import check_dotted_keys
from rl_core.recipe.layout import Tables

_MAX_BYTES = 2**20


def parse_tables(text: str, source: str = "the recipe") -> Tables:
    """Read TOML text that is a recipe or a part of one, such as a user's configuration file.

    Args:
        text: the contents.
        source: what to call it in messages, such as the file's name.

    Returns:
        The tables, for `Recipe.merged` or `Recipe.from_tables`.

    Raises:
        ConfigError: when it is not TOML, is larger than 1 MiB or nested deeper than 8 levels, or
            has an unknown table or top-level key.
    """
    try:
        if len(text) > _MAX_BYTES:
            raise ConfigError(f"got {len(text)} characters; expected at most {_MAX_BYTES}")
        check_dotted_keys(text)
        tables = tomllib.loads(text)
        check_values(tables, "", 0)
        check_layout(tables)
    except (ValueError, RecursionError) as error:
        reason = error if isinstance(error, ConfigError) else f"not valid TOML ({error})"
        raise ConfigError(f"{source}: {reason}") from error
    return tables


def load_tables(path: Path) -> Tables:
    """Read a file that is a recipe or a part of one.

    Raises:
        ConfigError: when the file cannot be read, or as `parse_tables` says.
    """
    try:
        if not path.is_file():
            kind = "a directory" if path.is_dir() else "no regular file"
            kind = kind if path.exists() else "missing"
            raise ConfigError(f"{path}: it is {kind}; expected a recipe file in TOML")
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
    return parse_tables(text, str(path))
