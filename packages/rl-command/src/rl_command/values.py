"""Values of options: from words to plain data and back."""

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

_PREFIX = "value = "
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_COLUMN = re.compile(r"(?<=at line 1, column )\d+")

_SCALARS = {bool: "true|false", int: "INT", float: "FLOAT", str: "TEXT", type(None): "none"}


def read_value(type_: object, words: Sequence[str], flag: str, example: Json | None = None) -> Json:
    """Read words as data of a type.

    Numbers, lists and tables are written as in TOML, text without quotes; lists and tables may also
    be written in JSON. A list may also be several words, or one word with commas.

    Args:
        type_: type that `rl_core.config.decode` will convert the data to.
        words: at least one; several only for a list.
        flag: the option, for messages.
        example: example of a value, for messages; None shows one that the type suggests.

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
    assert refusal is not None
    raise UsageError(f"{refusal}{_syntax(words, example or _form(type_))}") from refusal


def write_value(data: Json) -> str:
    """Return the text that `read_value` reads as the data."""
    if data is None:
        return "none"
    if isinstance(data, bool):
        return "true" if data else "false"
    if isinstance(data, list) and not any(isinstance(item, list | dict) for item in data):
        return " ".join(write_value(item) for item in data) if data else "[]"
    return _as_toml(data) if isinstance(data, list | dict) else str(data)


def is_switch(type_: object) -> bool:
    """Return whether an option of this type may be given without a value."""
    return type_ is bool or bool in get_args(type_)


def takes_list(type_: object) -> bool:
    """Return whether an option of this type takes a list."""
    members = get_args(type_) if is_union(type_) else (type_,)
    return any(get_origin(member) in (list, tuple, Sequence) for member in members)


def _is_table(type_: object) -> bool:
    """Return whether a type is a dataclass whose fields are options of their own."""
    if not isinstance(type_, type) or issubclass(type_, Schedule):
        return False
    return dataclasses.is_dataclass(type_)


def table_of(type_: object) -> type[object] | None:
    """Return the dataclass in ``X`` or ``X | None`` whose fields are options; None for others."""
    members = get_args(type_) if is_union(type_) else (type_,)
    tables = [member for member in members if _is_table(member)]
    others = {member for member in members if not _is_table(member)}
    return cast("type[object]", tables[0]) if len(tables) == 1 and others <= {NoneType} else None


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
    if origin in (dict, Mapping):
        return "TABLE"
    if is_union(type_):
        words = [word for member in arguments if (word := metavar(member))]
        return "|".join(dict.fromkeys(words))
    return ""


def _candidates(words: Sequence[str], in_list: bool) -> Iterator[Json]:
    """Yield possible readings of the words, the likeliest first."""
    if len(words) == 1:
        yield from _readings(words[0])
    if not in_list:
        return
    if len(words) == 1 and _is_nested(words[0]):
        if isinstance(table := _parsed(words[0]), dict):
            yield [table]
        return
    items = words[0].split(",") if len(words) == 1 else words
    stripped = [item.strip() for item in items]
    yield [next(iter(_readings(item))) for item in stripped]
    yield list(stripped)


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
    if "\n" in word and not _is_nested(word):
        raise ValueError("text of several lines")
    tables = tomllib.loads(_PREFIX + word)
    if len(tables) > 1:
        raise ValueError("more than one value")
    return cast("Json", tables["value"])


def _syntax(words: Sequence[str], example: Json) -> str:
    """Return a hint on how to write a list or table, if one was expected and could not be read."""
    is_one = len(words) == 1
    if is_one and isinstance(_parsed(words[0]), list | dict):
        return ""
    fault = f"; it is neither {_faults(words[0])}" if is_one and _is_nested(words[0]) else ""
    if example is None:
        return fault
    return f"{fault}; write it as {_as_toml(example)} or, in JSON, {json.dumps(example)}"


def _faults(word: str) -> str:
    """Return why a word is neither TOML nor JSON."""
    faults = []
    for syntax, read in (("TOML", _read_toml), ("JSON", parse_json)):
        try:
            read(word)
        except (ValueError, RecursionError) as error:
            message = _COLUMN.sub(lambda column: str(int(column[0]) - len(_PREFIX)), str(error))
            faults.append(f"{syntax} ({message})")
    return " nor ".join(faults)


def _form(type_: object) -> Json:
    """Return an example of a table, or a list of tables, of this type; None for other types."""
    members = get_args(type_) if is_union(type_) else (type_,)
    for member in members:
        origin, arguments = get_origin(member), get_args(member)
        if _is_table(member):
            return {dataclasses.fields(cast("type", member))[0].name: "..."}
        if origin in (dict, Mapping):
            return {"name": "..."}
        if origin in (list, tuple, Sequence) and (inside := _form(arguments[0])) is not None:
            return [inside]
    return None


def _as_toml(value: Json) -> str:
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_key(key)} = {_as_toml(item)}' for key, item in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_as_toml, value))}]"
    if value is None or isinstance(value, str):
        return _quoted(value or "none")
    return write_value(value)


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _quoted(key)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
