"""The layout of a recipe's file, and checks that data has it and is plain."""

from collections.abc import Mapping
from typing import TypeAlias, cast

from rl_core.config._types import Json
from rl_core.config.encoding import encode
from rl_core.errors import ConfigError, nearest

FORMAT = 1
"""The version of the layout; a recipe of a later version is refused."""

Tables: TypeAlias = dict[str, Json]
"""A recipe, or a part of one, in the layout of its file."""

LENGTHS = ("total_steps", "total_episodes", "total_updates")
"""What the length of a run can be counted in, among what was resolved."""

RECIPE_DEPTH = 8

COMPONENTS = ("env", "algorithm", "actor", "storage")
_TABLES = (*COMPONENTS, "trainer", "resolved")
_RESOLVED = (
    *LENGTHS,
    "device",
    "compile",
    "num_threads",
    "restart_model",
    "preset",
    "actors",
    "custom",
)
_KEYS = ("format", "seed", "device", *_TABLES)


def check_layout(tables: Mapping[str, Json]) -> None:
    """Refuse unknown tables and keys, tables that are none, and a later version.

    Raises:
        ConfigError: naming the key.
    """
    for key, value in tables.items():
        if key not in _KEYS:
            noun = "table" if isinstance(value, dict) else "key"
            raise ConfigError(f"unknown {noun} {key!r}{nearest(str(key), _KEYS)}")
        if key in _TABLES and not isinstance(value, dict):
            raise ConfigError(f"{key}: got {value!r}; expected a table [{key}]")
    for key in cast("Tables", tables.get("resolved", {})):
        if key not in _RESOLVED:
            raise ConfigError(f"resolved.{key}: unknown key{nearest(str(key), _RESOLVED)}")
    check_format(tables.get("format", FORMAT))


def check_format(version: Json) -> None:
    """Refuse a version of the layout that this one does not read.

    Raises:
        ConfigError: when it is later, or no version at all.
    """
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise ConfigError(f"format: got {version!r}; expected {FORMAT}")
    if version > FORMAT:
        raise ConfigError(
            f"format: got {version}, and this rl-core reads up to {FORMAT}; upgrade it: pip install"
            " --upgrade rl-core"
        )


def check_values(value: object, path: str, depth: int) -> None:
    """Refuse what TOML cannot hold or what is nested too deeply.

    Args:
        value: a part of a recipe.
        path: where it stands, for messages.
        depth: how deep it stands.

    Raises:
        ConfigError: naming the path.
    """
    if depth > RECIPE_DEPTH:
        raise ConfigError(f"{path} is nested deeper than {RECIPE_DEPTH} levels; flatten it")
    if isinstance(value, dict):
        for key, item in value.items():
            _check_text(key, path)
            check_values(item, f"{path}.{key}" if path else key, depth + 1)
    elif isinstance(value, list):
        for i, item in enumerate(value):
            check_values(item, f"{path}[{i}]", depth + 1)
    elif isinstance(value, str):
        _check_text(value, path)
    elif not isinstance(value, int):
        encode({path: value})  # refuses dates and numbers that are not finite
    elif not -(2**63) <= value < 2**63:
        raise ConfigError(f"{path}: got an integer of more than 64 bits; expected a smaller one")


def plain_table(options: Mapping[str, Json], kind: str) -> Tables:
    """Return options as new plain data.

    Raises:
        ConfigError: when they are not a mapping, or not plain; the message names the kind.
    """
    if not isinstance(options, Mapping):
        raise ConfigError(f"{kind}: got {options!r}; expected a mapping of options")
    try:
        table = cast("Tables", encode(options))
    except ConfigError as error:
        raise ConfigError(f"[{kind}] {error}") from error
    check_values(table, kind, 1)
    return table


def _check_text(text: str, path: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"{path}: {text!r} is not valid text ({error.reason})") from error
