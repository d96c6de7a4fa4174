"""Values to plain data."""

import dataclasses
from collections.abc import Mapping
from typing import get_args

from rl_core.config._checks import MAX_DEPTH, at, finite, join, text_key
from rl_core.config._types import (
    NONE_TEXT,
    Json,
    admits_none,
    field_types,
    fields_of,
    is_json,
    reduced,
)
from rl_core.config.schedules import Schedule, as_python
from rl_core.errors import ConfigError


def encode(value: object) -> Json:
    """Turn a value into plain data that `decode` gives back unchanged.

    Args:
        value: a dataclass instance, a schedule, a number (also NumPy's), text, ``None``, or lists,
            tuples and mappings of such. Fields that no recipe can express are left out while they
            hold their default.

    Returns:
        A new tree of dicts, lists, numbers and text.

    Raises:
        ConfigError: when something in the value has no plain form, a number is not finite, or the
            text ``"none"`` stands where it would be read back as ``None``.
    """
    return _encode(value, "", 0)


def _encode(value: object, path: str, depth: int) -> Json:
    if depth > MAX_DEPTH:
        raise ConfigError(f"{at(path)}nested deeper than {MAX_DEPTH} levels; flatten it")
    value = as_python(value)
    if value is None:
        return NONE_TEXT
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return finite(float(value), path)
    if isinstance(value, str | Schedule):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _encode_dataclass(value, path, depth)
    if isinstance(value, list | tuple):
        return [_encode(item, f"{path}[{i}]", depth + 1) for i, item in enumerate(value)]
    if isinstance(value, Mapping):
        return {
            text_key(key, path): _encode(item, join(path, key), depth + 1)
            for key, item in value.items()
        }
    got, hint = f"an object of type {type(value).__name__}", ""
    if isinstance(value, type):
        got, hint = f"the class {value.__name__}", "; a class is given by its name, such as 'relu'"
    elif callable(value):
        hint = (
            "; for a number that changes over a run give rl_core.config.Piecewise.from_function("
            "lambda progress: ...), in which progress grows from 0 to 1"
        )
    raise ConfigError(
        f"{at(path)}got {got}, which has no plain form;"
        f" expected numbers, text, schedules, dataclasses, or lists and mappings of them{hint}"
    )


def _encode_dataclass(value: object, path: str, depth: int) -> Json:
    encoded: dict[str, Json] = {}
    fields = {field.name: field for field in fields_of(type(value))}
    for name, type_ in field_types(type(value)).items():
        item = getattr(value, name)
        if reduced(type_) is None and _is_default(fields[name], item):
            continue
        where = join(path, name)
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
            _refuse_none_text(item_type, item, join(path, key))
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            _refuse_none_text(item_type, item, f"{path}[{i}]")


def _is_default(field: "dataclasses.Field[object]", value: object) -> bool:
    if field.default_factory is not dataclasses.MISSING:
        return bool(value == field.default_factory())
    return value is field.default or (
        isinstance(value, tuple) and not value and field.default == ()
    )
