"""From the words of a command line to plain data, and from data to the words that stand for it."""

import dataclasses
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from types import NoneType
from typing import Literal, cast, get_args, get_origin

from rl_cli.errors import UsageError
from rl_core.codec import decode
from rl_core.errors import ConfigError
from rl_core.schedules import Schedule
from rl_core.types import Json

_SCALARS = {bool: "true|false", int: "INT", float: "FLOAT", str: "TEXT", type(None): "none"}


def read_value(type_: object, words: Sequence[str], flag: str) -> Json:
    """Read words as data that fits a declared type.

    Numbers, lists and tables are written as in TOML, text without quotes. A list may also be given
    as several words or with commas alone.

    Args:
        type_: what `rl_core.codec.decode` will read the data as.
        words: at least one; several only for a list.
        flag: the option, for the message.

    Raises:
        UsageError: when no reading of the words fits.
    """
    refusal: ConfigError | None = None
    for candidate in _candidates(words, takes_list(type_)):
        try:
            decode(type_, candidate, flag)
        except ConfigError as error:
            refusal = refusal or error
        else:
            return candidate
    assert refusal is not None
    raise UsageError(str(refusal)) from refusal


def write_value(data: Json) -> str:
    """Return the words that `read_value` reads as the data."""
    if data is None:
        return "none"
    if isinstance(data, bool):
        return "true" if data else "false"
    if isinstance(data, list) and not any(isinstance(item, list | dict) for item in data):
        return " ".join(write_value(item) for item in data) if data else "[]"
    if isinstance(data, list):
        return json.dumps(data)
    if isinstance(data, dict):
        pairs = (f"{key} = {_as_toml(value)}" for key, value in data.items())
        return f"{{{', '.join(pairs)}}}"
    return str(data)


def is_switch(type_: object) -> bool:
    """Tell whether an option of this type may stand without a value."""
    return type_ is bool or bool in get_args(type_)


def takes_list(type_: object) -> bool:
    """Tell whether an option of this type takes a list."""
    members = get_args(type_) if _is_union(type_) else (type_,)
    return any(get_origin(member) in (list, tuple, Sequence) for member in members)


def _is_table(type_: object) -> bool:
    """Tell whether a type is a dataclass whose fields are options of their own."""
    if not isinstance(type_, type) or issubclass(type_, Schedule):
        return False
    return dataclasses.is_dataclass(type_)


def table_of(type_: object) -> type[object] | None:
    """Return the dataclass whose fields are options of their own, of a type that may be None."""
    members = get_args(type_) if _is_union(type_) else (type_,)
    tables = [member for member in members if _is_table(member)]
    others = {member for member in members if not _is_table(member)}
    return cast("type[object]", tables[0]) if len(tables) == 1 and others <= {NoneType} else None


def metavar(type_: object) -> str:
    """Say in a word what an option of this type takes."""
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
    if origin in (dict, Mapping):
        return "TABLE"
    if _is_union(type_):
        words = [word for member in arguments if (word := metavar(member))]
        return "|".join(dict.fromkeys(words))
    return ""


def _is_union(type_: object) -> bool:
    return bool(get_args(type_)) and get_origin(type_) not in (
        Literal,
        list,
        tuple,
        dict,
        Sequence,
        Mapping,
    )


def _candidates(words: Sequence[str], in_list: bool) -> Iterator[Json]:
    """Yield readings of the words, the likeliest first."""
    if len(words) == 1:
        yield from _readings(words[0])
    if in_list:
        items = words[0].split(",") if len(words) == 1 else words
        stripped = [item.strip() for item in items]
        yield [next(iter(_readings(item))) for item in stripped]
        yield list(stripped)


def _readings(word: str) -> Iterator[Json]:
    try:
        value = tomllib.loads(f"value = {word}")["value"] if "\n" not in word else word
    except (tomllib.TOMLDecodeError, RecursionError):
        value = word
    if isinstance(value, bool | int | float | list | dict):
        yield cast("Json", value)
    if isinstance(value, float) and value.is_integer():
        yield int(value)
    if word.lower() in ("true", "false"):
        yield word.lower() == "true"
    yield word


def _as_toml(value: Json) -> str:
    return json.dumps(value) if isinstance(value, str | list) else write_value(value)
