"""Plain data to values of declared types."""

import dataclasses
import re
from collections.abc import Collection, Sequence
from typing import Literal, TypeVar, cast, get_args, get_origin, overload

from rl_core.config._checks import MAX_DEPTH, at, finite, got, join, text_key
from rl_core.config._types import (
    NONE_TEXT,
    Json,
    accepts,
    admits_none,
    describe,
    field_types,
    fields_of,
    is_dataclass,
    is_expressible,
    is_json,
    is_schedule,
    is_union,
    precedence,
    reduced,
)
from rl_core.config.schedules import parse_schedule
from rl_core.errors import ConfigError, nearest

T = TypeVar("T")

_NAME = re.compile(r"\w+")


@overload
def decode(type_: type[T], data: object, path: str = "") -> T: ...
@overload
def decode(type_: object, data: object, path: str = "") -> object: ...
def decode(type_: object, data: object, path: str = "") -> object:
    """Read plain data as a value of a declared type.

    Args:
        type_: a dataclass, ``bool``, ``int``, ``float``, ``str``, `Schedule`, `Json`, or a union,
            literal, tuple, sequence or string-keyed mapping of such.
        data: what a JSON or TOML parser returned.
        path: where the data stands, for messages: ``algorithm`` gives ``algorithm.clip_range``.

    Returns:
        The value. An integer becomes a float where a float is declared; a bool is never a number.

    Raises:
        ConfigError: for an unknown or missing field, a wrong type, a number that is not finite, or
            a value that the dataclass itself refuses; the message starts with the path.
    """
    if is_json(type_):
        return _decode_json(data, path, 0)
    if is_union(type_):
        return _decode_union(type_, data, path)
    if not is_expressible(type_):
        raise ConfigError(
            f"{at(path)}cannot be given as data: its type is {describe(type_)}; leave it out and"
            " pass the object in Python"
        )
    if not accepts(type_, data):
        raise _mismatch(type_, data, path)
    if is_dataclass(type_):
        return _decode_dataclass(cast("type[object]", type_), cast("dict[str, object]", data), path)
    if get_origin(type_) is None:
        return _decode_scalar(type_, data, path)
    return _decode_container(type_, data, path)


def _decode_dataclass(cls: type[object], data: dict[str, object], path: str) -> object:
    declared = field_types(cls)
    for key in data:
        if key not in declared:
            raise ConfigError(f"{join(path, key)}: unknown option{nearest(str(key), declared)}")
    values = {name: decode(declared[name], item, join(path, name)) for name, item in data.items()}
    for name in required_options(cls):
        if name not in values:
            raise ConfigError(f"{join(path, name)}: missing; expected {describe(declared[name])}")
    try:
        return cls(**values)
    except (ValueError, TypeError) as error:
        raise ConfigError(_placed(str(error), path, declared)) from error


def _placed(message: str, path: str, declared: Collection[str]) -> str:
    """Put the path before what a dataclass says of itself or a field, and no part of it twice."""
    own = path.rpartition(".")[2]
    message = message.removeprefix(f"{own}: ").removeprefix(f"{own}.")
    begins_with_field = _NAME.match(message)
    if begins_with_field and begins_with_field[0] in declared:
        return join(path, message)
    return f"{at(path)}{message}"


def _decode_union(type_: object, data: object, path: str) -> object:
    if admits_none(type_) and (data is None or data == NONE_TEXT):
        return None
    members = [m for m in get_args(type_) if reduced(m) is not None and accepts(m, data)]
    members.sort(key=lambda member: precedence(member, data))
    for member in members[:-1]:
        try:
            return decode(member, data, path)
        except ConfigError:
            continue
    if not members:
        raise _mismatch(type_, data, path)
    try:
        return decode(members[-1], data, path)
    except ConfigError as error:
        if len(members) == 1 and get_origin(members[0]) is not Literal:
            raise  # it says where within the value
        raise _mismatch(type_, data, path) from error


def _decode_scalar(type_: object, data: object, path: str) -> object:
    if type_ is float:
        try:
            return finite(float(cast("float", data)), path)
        except OverflowError:
            raise _mismatch(type_, data, path) from None
    if is_schedule(type_):
        try:
            return parse_schedule(cast("str", data))
        except ValueError as error:
            raise ConfigError(f"{at(path)}{error}") from error
    return None if type_ is type(None) else data


def _decode_container(type_: object, data: object, path: str) -> object:
    origin, arguments = get_origin(type_), get_args(type_)
    if origin is Literal:
        if admits_none(type_) and data == NONE_TEXT:
            return None
        for choice in arguments:
            if choice == data and type(choice) is type(data):
                return choice
        raise _mismatch(type_, data, path)
    if isinstance(data, dict):
        return {
            text_key(key, path): decode(arguments[1], item, join(path, key))
            for key, item in data.items()
        }
    items = list(cast("Sequence[object]", data))
    if origin is tuple and not (len(arguments) == 2 and arguments[1] is Ellipsis):
        if len(items) != len(arguments):
            raise _mismatch(type_, data, path)
        item_types = list(arguments)
    else:
        item_types = [arguments[0]] * len(items)
    decoded = [
        decode(item_type, item, f"{path}[{i}]")
        for i, (item_type, item) in enumerate(zip(item_types, items, strict=True))
    ]
    return decoded if origin is list else tuple(decoded)


def _decode_json(data: object, path: str, depth: int) -> Json:
    if depth > MAX_DEPTH:
        raise ConfigError(f"{at(path)}nested deeper than {MAX_DEPTH} levels; flatten it")
    if data is None or data == NONE_TEXT:
        return None
    if isinstance(data, bool | int | str):
        return data
    if isinstance(data, float):
        return finite(data, path)
    if isinstance(data, list | tuple):
        return [_decode_json(item, f"{path}[{i}]", depth + 1) for i, item in enumerate(data)]
    if isinstance(data, dict):
        return {
            text_key(key, path): _decode_json(item, join(path, key), depth + 1)
            for key, item in data.items()
        }
    raise _mismatch("a number, text, list or table", data, path)


def required_options(cls: type[object]) -> list[str]:
    """Return the fields of a dataclass that have no default."""
    missing = dataclasses.MISSING
    return [
        field.name
        for field in fields_of(cls)
        if field.init and field.default is missing and field.default_factory is missing
    ]


def _mismatch(type_: object, data: object, path: str) -> ConfigError:
    expected = type_ if isinstance(type_, str) else describe(type_)
    hint = ""
    choices = [
        c for m in (type_, *get_args(type_)) if get_origin(m) is Literal for c in get_args(m)
    ]
    if isinstance(data, str) and choices:
        suggestion = nearest(data, [str(choice) for choice in choices])
        hint = suggestion if "mean" in suggestion else ""
    return ConfigError(f"{at(path)}got {got(data)}; expected {expected}{hint}")
