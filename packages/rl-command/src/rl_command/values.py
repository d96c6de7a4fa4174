"""Values of options: from words to plain data, and back."""

import dataclasses
import json
import tomllib
from collections.abc import Iterator, Sequence
from types import NoneType
from typing import Literal, cast, get_args, get_origin

from rl_command.errors import UsageError
from rl_core.config import Json, Schedule, decode, is_union
from rl_core.errors import ConfigError

_SCALARS = {bool: "true|false", int: "INT", float: "FLOAT", str: "TEXT", NoneType: "none"}
_SEQUENCES = (list, tuple, Sequence)


def read_value(type_: object, words: Sequence[str], flag: str) -> Json:
    """Read words as data of a type.

    A word is a value in TOML or JSON, or else text. A list may also be several words, or one word
    with commas.

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
    hint = "; write true or false" if is_switch(type_) else ""
    if isinstance(_read(words[0]), str):
        hint += _fault(words[0])
        if "TABLE" in metavar(type_):
            hint += '; write a table as {key = "value"} or {"key": "value"}'
    raise UsageError(f"{refusal}{hint}") from refusal


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
    return any(get_origin(member) in _SEQUENCES for member in _members(type_))


def table_of(type_: object) -> type[object] | None:
    """Return the dataclass in ``X`` or ``X | None`` whose fields are options; None for others."""
    tables = [member for member in _members(type_) if member is not NoneType]
    if len(tables) != 1 or not dataclasses.is_dataclass(tables[0]) or _is_schedule(tables[0]):
        return None
    return cast("type[object]", tables[0])


def metavar(type_: object) -> str:
    """Return the placeholder of an option of this type."""
    origin, arguments = get_origin(type_), get_args(type_)
    if isinstance(type_, type) and type_ in _SCALARS:
        return _SCALARS[type_]
    if _is_schedule(type_):
        return "SCHEDULE"
    if origin is Literal:
        return "|".join(write_value(cast("Json", choice)) for choice in arguments)
    if origin in _SEQUENCES:
        items = [metavar(item) if item is not Ellipsis else "..." for item in arguments]
        return f"[{' '.join(items if origin is tuple else [*items, '...'])}]"
    if is_union(type_):
        return "|".join(dict.fromkeys(map(metavar, arguments)))
    return "TABLE"


def _members(type_: object) -> tuple[object, ...]:
    return get_args(type_) if is_union(type_) else (type_,)


def _is_schedule(type_: object) -> bool:
    return isinstance(type_, type) and issubclass(type_, Schedule)


def _candidates(words: Sequence[str], in_list: bool) -> Iterator[Json]:
    """Yield possible readings of the words, the likeliest first."""
    values = [_read(word) for word in words]
    if len(words) == 1:
        (value,) = values
        yield value
        if isinstance(value, float) and value.is_integer():
            yield int(value)
        yield words[0]
        if not _is_nested(words[0]):
            words = [item.strip() for item in words[0].split(",")]
            values = [_read(item) for item in words]
    if in_list and not any(map(_fault, words)):
        yield values
        yield list(words)


def _is_nested(word: str) -> bool:
    """Return whether a word looks like a list or table."""
    return word.lstrip().startswith(("[", "{"))


def _read(word: str) -> Json:
    """Read a word as TOML, JSON or a number, or else as text."""
    word = word.lower() if word in ("True", "False") else word
    for read in (_read_toml, _read_json, float):
        try:
            return read(word)
        except (ValueError, RecursionError):
            continue
    return word


def _read_toml(word: str) -> Json:
    (value,) = tomllib.loads(f"value = {word}").values()  # a second line would be a second value
    return cast("Json", value)


def _read_json(word: str) -> Json:
    from rl_train.recipe_files import parse_json  # brings PyTorch, which takes seconds to import

    return parse_json(word)


def _fault(word: str) -> str:
    """Return why a list or table cannot be read; nothing about other words."""
    syntax, read = ("TOML", _read_toml) if "=" in word else ("JSON", _read_json)
    if _is_nested(word) and isinstance(_read(word), str):
        try:
            read(word)
        except (ValueError, RecursionError) as error:
            # TOML's column counts what was put before.
            return f"; it is not valid {syntax} ({str(error).partition(' (at ')[0]})"
    return ""
