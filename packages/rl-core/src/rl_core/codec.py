"""Strict conversion between typed options and plain JSON or TOML data.

`decode` accepts exactly what a dataclass declares and names the path of everything else; `encode`
is its inverse. `options_of` finds the options that a component takes, and `construct` builds the
component from them, so that a recipe, a command line and Python code share one set of types.

TOML has no null: ``None`` is written as the text ``"none"`` and read back wherever the type admits
``None``.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Literal, TypeVar, cast, get_args, get_origin, overload

from rl_core._component_options import CONTEXT_PARAMETERS as CONTEXT_PARAMETERS
from rl_core._component_options import construct as construct
from rl_core._component_options import options_of as options_of
from rl_core._type_forms import (
    NONE_TEXT,
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
from rl_core.errors import ConfigError, nearest
from rl_core.schedules import Schedule, parse_schedule
from rl_core.types import Json

T = TypeVar("T")

_MAX_DEPTH = 32


def encode(value: object) -> Json:
    """Turn a value into plain data that `decode` gives back unchanged.

    Args:
        value: a dataclass instance, a schedule, a number, text, ``None``, or lists, tuples and
            mappings of such. Fields that no recipe can express are left out while they hold their
            default.

    Returns:
        A new tree of dicts, lists, numbers and text.

    Raises:
        ConfigError: when something in the value has no plain form, a number is not finite, or the
            text ``"none"`` stands where it would be read back as ``None``.
    """
    return _encode(value, "", 0)


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
            f"{_at(path)}cannot be given as data: its type is {describe(type_)}; leave it out and"
            " pass the object in Python"
        )
    if not accepts(type_, data):
        raise _mismatch(type_, data, path)
    if is_dataclass(type_):
        return _decode_dataclass(cast("type[object]", type_), cast("dict[str, object]", data), path)
    if get_origin(type_) is None:
        return _decode_scalar(type_, data, path)
    return _decode_container(type_, data, path)


def _encode(value: object, path: str, depth: int) -> Json:
    if depth > _MAX_DEPTH:
        raise ConfigError(f"{_at(path)}nested deeper than {_MAX_DEPTH} levels; flatten it")
    if value is None:
        return NONE_TEXT
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return _finite(float(value), path)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Schedule):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _encode_dataclass(value, path, depth)
    if isinstance(value, list | tuple):
        return [_encode(item, f"{path}[{i}]", depth + 1) for i, item in enumerate(value)]
    if isinstance(value, Mapping):
        return {
            _key(key, path): _encode(item, _join(path, key), depth + 1)
            for key, item in value.items()
        }
    raise ConfigError(
        f"{_at(path)}got an object of type {type(value).__name__}, which has no plain form;"
        " expected numbers, text, schedules, dataclasses, or lists and mappings of them"
    )


def _encode_dataclass(value: object, path: str, depth: int) -> Json:
    encoded: dict[str, Json] = {}
    fields = {field.name: field for field in fields_of(type(value))}
    for name, type_ in field_types(type(value)).items():
        item = getattr(value, name)
        if reduced(type_) is None and _is_default(fields[name], item):
            continue
        where = _join(path, name)
        _refuse_none_text(type_, item, where)
        encoded[name] = _encode(item, where, depth + 1)
    return encoded


def _refuse_none_text(type_: object, value: object, path: str) -> None:
    if isinstance(value, str) and value == NONE_TEXT and admits_none(type_):
        raise ConfigError(
            f"{path}: the text 'none' would be read back as None; expected another text"
        )
    arguments = [argument for argument in get_args(type_) if argument is not Ellipsis]
    item_type = type_ if is_json(type_) or not arguments else arguments[-1]
    if isinstance(value, Mapping):
        for key, item in value.items():
            _refuse_none_text(item_type, item, _join(path, key))
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            _refuse_none_text(item_type, item, f"{path}[{i}]")


def _decode_dataclass(cls: type[object], data: dict[str, object], path: str) -> object:
    declared = field_types(cls)
    for key in data:
        if key not in declared:
            raise ConfigError(f"{_join(path, key)}: unknown option{nearest(str(key), declared)}")
    values = {name: decode(declared[name], item, _join(path, name)) for name, item in data.items()}
    for field in fields_of(cls):
        if field.init and field.name not in values and not _has_default(field):
            raise ConfigError(
                f"{_join(path, field.name)}: missing; expected {describe(declared[field.name])}"
            )
    try:
        return cls(**values)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{_at(path)}{error}") from error


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
        if len(members) == 1:
            raise
        raise _mismatch(type_, data, path) from error


def _decode_scalar(type_: object, data: object, path: str) -> object:
    if type_ is float:
        try:
            return _finite(float(cast("float", data)), path)
        except OverflowError:
            raise _mismatch(type_, data, path) from None
    if is_schedule(type_):
        try:
            return parse_schedule(cast("str", data))
        except ValueError as error:
            raise ConfigError(f"{_at(path)}{error}") from error
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
            _key(key, path): decode(arguments[1], item, _join(path, key))
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
    if depth > _MAX_DEPTH:
        raise ConfigError(f"{_at(path)}nested deeper than {_MAX_DEPTH} levels; flatten it")
    if data is None or data == NONE_TEXT:
        return None
    if isinstance(data, bool | int | str):
        return data
    if isinstance(data, float):
        return _finite(data, path)
    if isinstance(data, list | tuple):
        return [_decode_json(item, f"{path}[{i}]", depth + 1) for i, item in enumerate(data)]
    if isinstance(data, dict):
        return {
            _key(key, path): _decode_json(item, _join(path, key), depth + 1)
            for key, item in data.items()
        }
    raise _mismatch("a number, text, list or table", data, path)


def _has_default(field: "dataclasses.Field[object]") -> bool:
    missing = dataclasses.MISSING
    return field.default is not missing or field.default_factory is not missing


def _is_default(field: "dataclasses.Field[object]", value: object) -> bool:
    if field.default_factory is not dataclasses.MISSING:
        return bool(value == field.default_factory())
    return value is field.default or (
        isinstance(value, tuple) and not value and field.default == ()
    )


def _finite(value: float, path: str) -> float:
    if not math.isfinite(value):
        raise ConfigError(f"{_at(path)}got {value}; expected a finite number")
    return value


def _key(key: object, path: str) -> str:
    if not isinstance(key, str):
        raise ConfigError(f"{_at(path)}got the key {_got(key)}; expected text")
    return key


def _join(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


def _at(path: str) -> str:
    return f"{path}: " if path else ""


def _got(data: object) -> str:
    try:
        text = repr(data)
    except ValueError:  # Python refuses to print integers of many thousand digits
        text = "a very large integer"
    shown = text if len(text) <= 60 else f"{text[:57]}..."
    return "None" if data is None else f"{shown} ({type(data).__name__})"


def _mismatch(type_: object, data: object, path: str) -> ConfigError:
    expected = type_ if isinstance(type_, str) else describe(type_)
    hint = ""
    choices = [
        c for m in (type_, *get_args(type_)) if get_origin(m) is Literal for c in get_args(m)
    ]
    if isinstance(data, str) and choices:
        suggestion = nearest(data, [str(choice) for choice in choices])
        hint = suggestion if "mean" in suggestion else ""
    return ConfigError(f"{_at(path)}got {_got(data)}; expected {expected}{hint}")
