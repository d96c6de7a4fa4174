"""Values of options: from words to plain data, and back."""

import dataclasses
import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from types import NoneType
from typing import Literal, cast, get_args, get_origin

from rl_command.errors import UsageError
from rl_core.config import Schedule, decode, is_union
from rl_core.errors import ConfigError
from rl_core.types import Json
from rl_train.recipe_files import parse_json

_POINT = re.compile(r"(?<![^-+])\.(?=\d)")
"""A decimal point at the beginning, which TOML does not read."""

_SCALARS = {bool: "true|false", int: "INT", float: "FLOAT", str: "TEXT", NoneType: "none"}


def read_value(type_: object, words: Sequence[str], flag: str) -> Json:
    """Read words as data of a type.

    Numbers, lists and tables are written as in TOML, text without quotes; lists and tables may also
    be written in JSON. A list may also be several words, or one word with commas.

    Args:
        type_: type that `rl_core.config.decode` will convert the data to.
        words: at least one; several only for a list.
        flag: the option, for messages.

    Raises:
        UsageError: when the words do not fit the type.
    """
    refusal: ConfigError | None = None
    for candidate in _candidates(words, takes_list(type_)):
        try:
            decode(type_, candidate, flag)
        except ConfigError as error:
            refusal = refusal or error
        else:
            return candidate
    raise UsageError(f"{refusal}{_syntax(words[0], _form(type_))}") from refusal


def write_value(data: Json) -> str:
    """Return the text that `read_value` reads as the data."""
    if isinstance(data, bool):
        return "true" if data else "false"
    if isinstance(data, list) and data and not any(isinstance(x, list | dict) for x in data):
        return " ".join(map(write_value, data))
    if isinstance(data, list | dict):
        return json.dumps(data, ensure_ascii=False)
    return "none" if data is None else str(data)


def is_switch(type_: object) -> bool:
    """Return whether an option of this type may be given without a value."""
    return bool in _members(type_)


def takes_list(type_: object) -> bool:
    """Return whether an option of this type takes a list."""
    return bool(_items(type_))


def takes_words(type_: object) -> bool:
    """Return whether an option of this type takes a list of texts."""
    return any(str in _members(item) for item in _items(type_))


def _items(type_: object) -> list[object]:
    """Return the types of the items, where a type is that of a list."""
    lists = [m for m in _members(type_) if get_origin(m) in (list, tuple, Sequence)]
    return [item for member in lists for item in get_args(member)]


def table_of(type_: object) -> type[object] | None:
    """Return the dataclass in ``X`` or ``X | None`` whose fields are options; None for others."""
    tables = [member for member in _members(type_) if member is not NoneType]
    return cast("type[object]", tables[0]) if len(tables) == 1 and _is_table(tables[0]) else None


def metavar(type_: object) -> str:
    """Return the placeholder of an option of this type."""
    origin, arguments = get_origin(type_), get_args(type_)
    if isinstance(type_, type) and type_ in _SCALARS:
        return _SCALARS[type_]
    if isinstance(type_, type) and issubclass(type_, Schedule):
        return "SCHEDULE"
    if origin is Literal:
        return "|".join(write_value(cast("Json", choice)) for choice in arguments)
    if origin in (list, tuple, Sequence):
        items = [metavar(item) for item in arguments if item is not Ellipsis]
        several = origin is not tuple or Ellipsis in arguments
        return f"[{items[0]} ...]" if several else f"[{' '.join(items)}]"
    if is_union(type_):
        return "|".join(dict.fromkeys(metavar(member) for member in arguments))
    return "TABLE"


def _members(type_: object) -> tuple[object, ...]:
    return get_args(type_) if is_union(type_) else (type_,)


def _is_table(type_: object) -> bool:
    return dataclasses.is_dataclass(type_) and not issubclass(cast("type", type_), Schedule)


def _candidates(words: Sequence[str], in_list: bool) -> Iterator[Json]:
    """Yield possible readings of the words, the likeliest first."""
    if len(words) == 1:
        yield from _readings(words[0])
    if in_list and len(words) == 1 and _is_nested(words[0]):
        table = _parsed(words[0])
        if isinstance(table, dict):
            yield [table]
    elif in_list:
        items = [item.strip() for item in (words[0].split(",") if len(words) == 1 else words)]
        yield [next(_readings(item)) for item in items]
        yield list(items)


def _readings(word: str) -> Iterator[Json]:
    value = _parsed(word)
    if isinstance(value, bool | int | float | list | dict):
        yield value
    if isinstance(value, float) and value.is_integer():
        yield int(value)
    if word.lower() in ("true", "false"):
        yield word.lower() == "true"
    yield word


def _is_nested(word: str) -> bool:
    """Return whether a word looks like a list or table."""
    return word.lstrip().startswith(("[", "{"))


def _parsed(word: str) -> Json:
    """Read a word as TOML, as JSON if it looks like a list or table, or else as text."""
    for read in (_read_toml, parse_json) if _is_nested(word) else (_read_toml,):
        try:
            return read(word)
        except (ValueError, RecursionError):
            continue
    return word


def _read_toml(word: str) -> Json:
    tables = tomllib.loads(f"value = {_POINT.sub('0.', word)}")
    if len(tables) > 1 or ("\n" in word and not _is_nested(word)):
        raise ValueError("more than one value")
    return cast("Json", tables["value"])


def _syntax(word: str, example: Json) -> str:
    """Return a hint on how to write a list or table, if one was expected and could not be read."""
    if isinstance(_parsed(word), list | dict):
        return ""
    hint = "" if example is None else f"; write it as {json.dumps(example)}, or in TOML"
    if not _is_nested(word):
        return hint
    syntax, read = ("TOML", _read_toml) if "=" in word else ("JSON", parse_json)
    try:
        read(word)
    except (ValueError, RecursionError) as error:
        fault = str(error).partition(" (at ")[0]  # TOML's column counts what was put before
        return f"; it is not valid {syntax} ({fault}){hint}"
    return hint


def _form(type_: object) -> Json:
    """Return an example of a table, or a list of tables, of this type; None for other types."""
    for member in _members(type_):
        origin, arguments = get_origin(member), get_args(member)
        if _is_table(member):
            return {dataclasses.fields(cast("type", member))[0].name: "..."}
        if origin in (dict, Mapping):
            return {"name": "..."}
        if origin in (list, tuple, Sequence) and (inside := _form(arguments[0])) is not None:
            return [inside]
    return None
