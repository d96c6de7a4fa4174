"""Which declared types plain data can express, and how they are called in messages."""

import dataclasses
import re
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, Union, cast, get_args, get_origin

from rl_core.config.schedules import Schedule
from rl_core.errors import ConfigError

Json: TypeAlias = bool | int | float | str | list["Json"] | dict[str, "Json"] | None
"""What a JSON document can hold."""

NONE_TEXT = "none"
"""What stands for None in data, because TOML has no null."""

SCALARS: tuple[type, ...] = (bool, int, float, str)


def accepts(type_: object, data: object) -> bool:
    """Tell whether the data has the outer form of a type; its contents are not looked at."""
    origin = get_origin(type_)
    if is_json(type_):
        return True
    if origin is Literal:
        kinds = {type(choice) for choice in get_args(type_)}
        return type(data) in kinds or (admits_none(type_) and data == NONE_TEXT)
    if origin in (list, tuple, Sequence):
        return isinstance(data, list | tuple)
    if origin in (dict, Mapping) or is_dataclass(type_):
        return isinstance(data, dict)
    if type_ is type(None):
        return data is None or data == NONE_TEXT
    if type_ is float:
        return isinstance(data, int | float) and not isinstance(data, bool)
    if type_ is int:
        return isinstance(data, int) and not isinstance(data, bool)
    return isinstance(data, bool if type_ is bool else str)


def precedence(type_: object, data: object) -> int:
    """Order the members of a union that fit, the most particular first."""
    if get_origin(type_) is Literal:
        return 0
    if is_schedule(type_):
        return 1
    return 2 if type_ is type(data) else 3


def is_expressible(type_: object) -> bool:
    """Tell whether some plain data stands for each value of a type that is not a union."""
    if type_ in (*SCALARS, type(None)) or is_json(type_) or is_schedule(type_):
        return True
    if is_dataclass(type_):
        return True
    origin, arguments = get_origin(type_), get_args(type_)
    if origin is Literal:
        return all(isinstance(choice, bool | int | str | None) for choice in arguments)
    if origin in (dict, Mapping):
        return arguments[0] is str and reduced(arguments[1]) is not None
    if origin in (list, tuple, Sequence):
        return all(reduced(item) is not None for item in arguments if item is not Ellipsis)
    return False


def reduced(type_: object) -> object:
    """Return the part of a type that data can express, or None when there is none.

    ``str | Callable[..., Tensor]`` becomes ``str``: the callable form stays open in Python.
    """
    if is_json(type_):
        return type_
    if not is_union(type_):
        return type_ if type_ is not None and is_expressible(type_) else None
    members = [member for member in get_args(type_) if is_expressible(member)]
    if all(member is type(None) for member in members):
        return None
    return Union[tuple(members)]  # noqa: UP007  # built from a computed tuple


def is_union(type_: object) -> bool:
    """Tell whether a type is ``X | Y``, ``Optional[X]`` or ``Union[X, Y]``."""
    return get_origin(type_) in (Union, types.UnionType)


def is_json(type_: object) -> bool:
    """Tell whether a type is `Json`, which any plain data fits."""
    # Resolving hints expands the recursive alias a little, so equality with it does not hold.
    if not is_union(type_):
        return False
    members = get_args(type_)
    return {list, dict} <= {get_origin(member) for member in members} and set(SCALARS) <= {
        member for member in members if isinstance(member, type)
    }


def is_dataclass(type_: object) -> bool:
    """Tell whether a type is a dataclass whose fields are its options."""
    return isinstance(type_, type) and dataclasses.is_dataclass(type_) and not is_schedule(type_)


def is_schedule(type_: object) -> bool:
    """Tell whether a type is a schedule, which is written as text."""
    return isinstance(type_, type) and issubclass(type_, Schedule)


def admits_none(type_: object) -> bool:
    """Tell whether the text `NONE_TEXT` is read as None where this type is declared."""
    if get_origin(type_) is Literal:
        return None in get_args(type_)
    if is_union(type_):
        return any(admits_none(member) for member in get_args(type_))
    return type_ is type(None)


def type_arguments(cls: type, generic: type) -> tuple[Any, ...]:
    """Return what a class puts in the place of the type parameters of a generic ancestor."""
    if cls is generic:
        return tuple(generic.__parameters__)  # type: ignore[attr-defined]  # of generic classes
    for base in cls.__dict__.get("__orig_bases__", cls.__bases__):
        origin = get_origin(base) or base
        if isinstance(origin, type) and issubclass(origin, generic):
            inherited = type_arguments(origin, generic)
            given = dict(zip(getattr(origin, "__parameters__", ()), get_args(base), strict=False))
            return tuple(given.get(argument, argument) for argument in inherited)
    raise TypeError(f"{cls.__name__} is no {generic.__name__}")


def field_types(cls: type[object]) -> Mapping[str, object]:
    """Return the resolved types of a dataclass's constructor fields, by name."""
    hints = resolved_hints(cls, cls.__name__)
    return {field.name: hints[field.name] for field in fields_of(cls) if field.init}


def fields_of(cls: type[object]) -> tuple["dataclasses.Field[object]", ...]:
    """Return the fields of a class that `is_dataclass` accepted."""
    return dataclasses.fields(cls)  # type: ignore[arg-type]  # checked by is_dataclass


def resolved_hints(owner: object, name: str, *, with_bounds: bool = False) -> dict[str, object]:
    """Return the annotations of a class or function with their names resolved.

    Args:
        owner: the class or function.
        name: what to call it in the message.
        with_bounds: keep what ``Annotated`` says besides the type.

    Raises:
        ConfigError: when an annotation names something that its module does not import.
    """
    try:
        return typing.get_type_hints(owner, include_extras=with_bounds)
    except (NameError, TypeError) as error:
        raise ConfigError(
            f"the annotations of {name} cannot be resolved: {error}; import what they name outside"
            " `if TYPE_CHECKING`"
        ) from error


def describe(type_: object) -> str:
    """Say in a few words which data a type expects."""
    origin, arguments = get_origin(type_), get_args(type_)
    if type_ is type(None):
        return "'none'"
    if is_json(type_):
        return "a number, text, list or table"
    if is_union(type_):
        return " or ".join(describe(member) for member in arguments)
    if origin is Literal:
        return " or ".join(repr(choice) for choice in arguments)
    if origin in (list, tuple, Sequence) and (origin is not tuple or Ellipsis in arguments):
        item = re.sub("^a (table|number|whole number)", r"\1s", describe(arguments[0]))
        return f"a list of {item}"
    if origin is tuple:
        return f"a list of exactly [{', '.join(describe(item) for item in arguments)}]"
    if origin in (dict, Mapping):
        return "a table" if is_json(arguments[1]) else f"a table of {describe(arguments[1])}"
    if is_schedule(type_):
        return "a schedule such as 'linear(0.0003, 0.0)'"
    if is_dataclass(type_):
        return f"a table of the options {', '.join(field_types(cast('type[object]', type_)))}"
    if type_ in _WORDS:
        return _WORDS[type_]
    return type_.__name__ if isinstance(type_, type) else str(type_)


_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
