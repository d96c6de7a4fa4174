"""Recipes as text, in TOML or JSON, and in files."""

import json
import os
import re
import tomllib
from pathlib import Path
from typing import Literal, TypeAlias

import tomli_w

from rl_core.config import RECIPE_DEPTH, Recipe, Tables, check_layout, check_values
from rl_core.errors import ConfigError
from rl_core.types import Json
from rl_train.checkpoint._durable import replace_file

_MAX_BYTES = 2**20

Syntax: TypeAlias = Literal["TOML", "JSON"]
"""Syntax of the text of a recipe."""

_STRING = r'"(?:[^"\\\n]|\\.)*"'
_TOML_TEXT = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}|' r"'''.*?'{3,5}|" + _STRING + r"|'[^'\n]*'|#[^\n]*", re.DOTALL
)
_SHORT_ARRAY = re.compile(rf"\[\n((?: +(?:[-+.\w]+|{_STRING}),\n)+) *\]")


def load_recipe(path: str | Path) -> Recipe:
    """Read a recipe from a file, in JSON where its name ends in ``.json``, else in TOML.

    Raises:
        ConfigError: when the file cannot be read, or as `parse_tables` says.
    """
    return Recipe.from_tables(load_tables(path), str(path))


def save_recipe(recipe: Recipe, path: str | Path) -> None:
    """Write a recipe to a file, which at any time holds the complete old one or the new one.

    Args:
        recipe: recipe to write.
        path: file; JSON is written if its name ends in ``.json``, else TOML.

    Raises:
        ConfigError: when it is too large to be read back, or writing fails.
    """
    path = Path(path)
    text = (
        _readable(json.dumps(recipe.to_tables(), indent=2) + "\n")
        if syntax_of(path) == "JSON"
        else to_toml(recipe)
    )
    try:
        replace_file(path, text.encode())
    except OSError as error:
        raise ConfigError(
            f"{path} could not be written: {error.strerror or error}; free space or choose"
            " another directory"
        ) from error


def to_toml(recipe: Recipe) -> str:
    """Return a recipe as TOML text, which `from_toml` reads back exactly.

    Raises:
        ConfigError: when it is too large for that.
    """
    return _readable(_SHORT_ARRAY.sub(_on_one_line, tomli_w.dumps(recipe.to_tables())))


def from_toml(text: str, source: str = "the recipe") -> Recipe:
    """Read a whole recipe from TOML text.

    Raises:
        ConfigError: when the text is not TOML, is too large or too deeply nested, or is not a
            recipe; the message starts with the source.
    """
    return Recipe.from_tables(parse_tables(text, source), source)


def syntax_of(path: Path) -> Syntax:
    """Return the syntax of a file: JSON if its name ends in ``.json``, else TOML."""
    return "JSON" if path.suffix.lower() == ".json" else "TOML"


def parse_tables(text: str, source: str = "the recipe", syntax: Syntax = "TOML") -> Tables:
    """Read text that is a recipe or a part of one, such as a user's configuration file.

    Args:
        text: the text.
        source: name of the text in messages, such as the file's.
        syntax: syntax of the text; ``null`` in JSON means none.

    Returns:
        The tables, for `Recipe.merged` or `Recipe.from_tables`.

    Raises:
        ConfigError: when it does not have that syntax, is larger than 1 MiB, is nested deeper than
            8 levels, has a duplicate key, or has an unknown table or top-level key.
    """
    try:
        if len(text) > _MAX_BYTES:
            raise ConfigError(f"got {len(text)} characters; expected at most {_MAX_BYTES}")
        tables = _parse_toml(text) if syntax == "TOML" else parse_json(text)
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
    """Return a hint on the file name, if a text looks like the other syntax."""
    is_object = text.lstrip().startswith("{")
    if is_object == (syntax == "JSON"):
        return ""
    other, ending = ("JSON", ".json") if is_object else ("TOML", ".toml")
    return f"; {other} is read from files whose names end in {ending}"


def load_tables(path: str | Path) -> Tables:
    """Read a file that is a recipe or a part of one, in JSON where its name ends in ``.json``.

    Raises:
        ConfigError: when the file cannot be read, or as `parse_tables` says.
    """
    path = Path(path)
    if path.suffix.lower() in (".yaml", ".yml"):
        raise ConfigError(
            f"{path}: YAML is not read; expected TOML, or JSON in a file whose name ends in .json"
        )
    try:
        if not path.is_file():
            kind = "a directory" if path.is_dir() else "not a regular file"
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
        text = raw.decode("utf-8-sig")  # some editors begin files with a mark
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: it is not UTF-8 text ({error.reason})") from error
    return parse_tables(text, str(path), syntax_of(path))


def parse_json(text: str) -> Json:
    """Read JSON text without duplicate keys.

    Raises:
        ValueError: when it is not JSON.
        RecursionError: when it is nested too deeply for the parser.
    """
    value: Json = json.loads(text, object_pairs_hook=_json_table)
    return value


def _readable(text: str) -> str:
    """Return the text of a recipe, unless it is too large to be read back."""
    size = len(text.encode())
    if size > _MAX_BYTES:
        raise ConfigError(
            f"the recipe would have {size} bytes; expected at most {_MAX_BYTES}: let the part with "
            "such long options read them from a file"
        )
    return text


def _json_table(pairs: list[tuple[str, Json]]) -> Json:
    """Refuse duplicate keys, of which Python's parser would take the last."""
    table: dict[str, Json] = {}
    for key, value in pairs:
        if key in table:
            raise ValueError(f"the key {key!r} is there twice")
        table[key] = value
    return table


def _parse_toml(text: str) -> Tables:
    """Read TOML text whose keys have no more dots than tables may be deep.

    Raises:
        ConfigError: when one has.
        ValueError: when it is not TOML; the message gives line and column.
        RecursionError: when it is nested too deeply for the parser.
    """
    # The parser's time is quadratic in the dots of a key: a malicious file could take hours.
    for part in re.split(r"[=\[\]{},\n]", _TOML_TEXT.sub('""', text)):
        if part.count(".") > RECIPE_DEPTH:
            raise ConfigError(f"a key has more than {RECIPE_DEPTH} dots; nest less deeply")
    return tomllib.loads(text)


def _on_one_line(match: "re.Match[str]") -> str:
    """Write an array of numbers or short texts on one line if it fits."""
    items = ", ".join(line.strip().removesuffix(",") for line in match[1].rstrip("\n").split("\n"))
    return f"[{items}]" if len(items) <= 80 else match[0]
