"""Checks of values against the bounds in their annotations.

The vocabulary is that of ``annotated-types``: ``Annotated[float, Gt(0)]``, with names for the usual
bounds. `Needs` and `Without` say beside a bound which other options a field depends on.
"""

import inspect
import math
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache, partial, wraps
from types import NoneType, UnionType
from typing import Annotated, Literal, ParamSpec, TypeAlias, TypeVar, get_args, get_origin

from annotated_types import Ge, Gt, Interval

from rl_core.config._checks import printed
from rl_core.config._types import fields_of, is_union, resolved_hints
from rl_core.config.schedules import Piecewise, Schedule, Scheduled, as_python
from rl_core.errors import ConfigError, nearest

P = ParamSpec("P")
T = TypeVar("T")
_Marks: TypeAlias = tuple[object, ...]

Positive: TypeAlias = Annotated[float, Gt(0)]
NonNegative: TypeAlias = Annotated[float, Ge(0)]
Fraction: TypeAlias = Annotated[float, Interval(ge=0, le=1)]
Count: TypeAlias = Annotated[int, Ge(1)]
NonNegativeInt: TypeAlias = Annotated[int, Ge(0)]
Widths: TypeAlias = tuple[Count, ...]
"""Widths of a network's hidden layers, of which there may be none."""
ScheduledPositive: TypeAlias = Annotated[Scheduled, Gt(0)]
"""Starts above 0, and may fall to 0 in the course of the run."""
ScheduledNonNegative: TypeAlias = Annotated[Scheduled, Ge(0)]
ScheduledFraction: TypeAlias = Annotated[Scheduled, Interval(ge=0, le=1)]


class Needs:
    """Marks an option that has an effect only with certain values of another one.

    Args:
        option: the other one.
        *values: with which there is an effect; none for all but the other option's default.
    """

    def __init__(self, option: str, *values: object) -> None:
        self.option = option
        self.values = values

    def fault(self, values: Mapping[str, object], given: Collection[str], path: str) -> str:
        """Return why the option has no effect, and how to mend that; nothing where it has one."""
        option, value = path + self.option, values[self.option]
        if self.option in given if not self.values else value in self.values:
            return ""
        if not self.values:
            return f"without {option}; set that too, or leave it out"
        return f"with {option}={value!r}; leave it out, or set {option} to {_either(self.values)}"


class Without:
    """Marks an option that has no effect where one of some others is given, which replace it.

    Args:
        *options: the others.
    """

    def __init__(self, *options: str) -> None:
        self.options = options

    def fault(self, values: Mapping[str, object], given: Collection[str], path: str) -> str:
        """Return why the option has no effect, and how to mend that; nothing where it has one."""
        others = [option for option in self.options if option in given]
        return f"with {path}{others[0]}; leave one of them out" if others else ""


class Config:
    """Base of configs: dataclasses whose fields are checked by their annotations.

    A value must have its field's type and lie within the bounds. Every float is finite, and a
    schedule stays within the bounds over the whole run. An option that `Needs` or `Without` leaves
    without effect must have its default value.

    A config that checks more overrides ``__post_init__``, and calls that of its base first.

    Raises:
        ConfigError: naming the field, what it must be and what it was.
    """

    __slots__ = ()

    def __post_init__(self) -> None:
        owner: Callable[..., object] = type(self)
        for name in _declared(owner):
            object.__setattr__(self, name, as_python(getattr(self, name)))
        _check(owner, partial(getattr, self), "")

    def check_field(self, name: str, value: object) -> None:
        """Check another value of a field by its annotation alone.

        Raises:
            ConfigError: as when a config with it is made.
        """
        owner: Callable[..., object] = type(self)
        check_argument(name, value, _declared(owner)[name][0])

    def if_set(self, name: str) -> str | None:
        """Return an option's name, or None where it is None."""
        return None if getattr(self, name) is None else name

    def refuse(self, reason: str, *options: str, section: str = "") -> None:
        """Refuse options that are not the default, where something else makes them useless.

        Args:
            reason: what the error says after an option's name.
            *options: their names.
            section: of a recipe, which errors put before the name.

        Raises:
            ConfigError: for the first of them that is given.
        """
        values = {name: getattr(self, name) for name in options}
        for name in _given(type(self), values):
            raise ConfigError(f"{section}{name} {reason}")


def checked_arguments(section: str = "") -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Check a function's arguments by its annotations, like the fields of a `Config`.

    Args:
        section: of a recipe, which errors put before the names of arguments; empty for none.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        signature = inspect.signature(function)

        @wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> T:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            bound.arguments = {name: as_python(value) for name, value in bound.arguments.items()}
            _check(function, bound.arguments.__getitem__, section and f"{section}.")
            return function(*bound.args, **bound.kwargs)

        return checked

    return decorate


def check_argument(name: str, value: T, type_: object) -> T:
    """Check a single value, and return it, a number of NumPy's as one of Python's.

    Args:
        name: what errors call it.
        value: what was given.
        type_: what it must be, such as `Count`.

    Raises:
        ConfigError: naming it, what it must be and what it was.
    """
    value = as_python(value)
    _check_value(name, value, type_)
    return value


def _check_value(name: str, value: object, type_: object) -> None:
    """Check a value as it is: a number of NumPy's is refused, because a list would keep it."""
    members = list(_members(type_))
    fitting = [(kind, marks) for kind, marks in members if _is_of(kind, value)]
    got = str(value) if isinstance(value, float | Schedule) else printed(value)
    got = got if len(got) <= 100 else type(value).__name__
    or_none = ", or None" if any(kind is NoneType for kind, _ in members) else ""
    if not fitting:
        names = [
            one for kind, _ in members if get_origin(kind) is Literal for one in get_args(kind)
        ]
        if names and isinstance(value, str):
            raise ConfigError(f"{name}: unknown name '{value}'{nearest(value, map(str, names))}")
        kinds = dict.fromkeys(_described(*one) for one in members if one[0] is not NoneType)
        raise ConfigError(f"{name} must be {' or '.join(kinds)}{or_none}, got {got}")
    kind, marks = fitting[0]
    if isinstance(value, float | int | Schedule) and not _is_within(marks, value):
        words = _described(float if kind is Schedule else kind, marks)
        raise ConfigError(f"{name} must be {words}{or_none}, got {got}")
    if get_origin(kind) in (tuple, Sequence):
        assert isinstance(value, Sequence)
        types = get_args(kind)
        if len(types) == 1 or types[1] is ...:
            types = types[:1] * len(value)
        if len(types) != len(value):
            raise ConfigError(f"{name} must be a list of {len(types)}, got {got}")
        for index, (item, item_type) in enumerate(zip(value, types, strict=True)):
            _check_value(f"{name}[{index}]", item, item_type)


def bounds_of(config: Callable[..., object]) -> Mapping[str, str]:
    """Return the bounds of a config's numbers in symbols, such as ``> 0``, by field."""
    symbols = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
    return {
        name: text
        for name, (type_, _) in _declared(config).items()
        for _, marks in _members(type_)
        if (text := _range(marks, symbols))
    }


def replaced_options(config: Callable[..., object]) -> Mapping[str, set[str]]:
    """Return by option which others it leaves without effect, as `Without` says."""
    replaced: dict[str, set[str]] = {}
    for name, (type_, _) in _declared(config).items():
        for option in (option for mark in _marks(type_, Without) for option in mark.options):
            replaced.setdefault(option, set()).add(name)
    return replaced


def unused_options(config: Callable[..., object], chosen: Mapping[str, object]) -> set[str]:
    """Return the options that have no effect with the chosen values, as `Needs` says."""
    return {
        name
        for name, (type_, _) in _declared(config).items()
        for mark in _marks(type_, Needs)
        if mark.values and mark.option in chosen and chosen[mark.option] not in mark.values
    }


def _check(owner: Callable[..., object], read: Callable[[str], object], path: str) -> None:
    declared = _declared(owner)
    values = {name: read(name) for name in declared}
    for name, (type_, _) in declared.items():
        _check_value(path + name, values[name], type_)
    given = _given(owner, values)
    for name in given:
        for mark in _marks(declared[name][0], Needs | Without):
            if fault := mark.fault(values, given, path):
                raise ConfigError(f"{path}{name} has no effect {fault}")


def _given(owner: Callable[..., object], values: Mapping[str, object]) -> list[str]:
    """Return the options that differ from their defaults."""
    return [name for name, value in values.items() if value != _declared(owner)[name][1]]


@cache
def _declared(owner: Callable[..., object]) -> Mapping[str, tuple[object, object]]:
    """Return annotation and default of each field of a dataclass, or parameter of a function."""
    hints = resolved_hints(owner, owner.__qualname__, with_bounds=True)
    if not isinstance(owner, type):
        parameters = inspect.signature(owner).parameters.items()
        return {name: (hints[name], one.default) for name, one in parameters if name in hints}
    return {
        one.name: (
            hints[one.name],
            one.default_factory() if callable(one.default_factory) else one.default,
        )
        for one in fields_of(owner)
        if one.init
    }


def _marks(type_: object, of: type[T] | UnionType) -> list[T]:
    marks = dict.fromkeys(mark for _, marks in _members(type_) for mark in marks)
    return [mark for mark in marks if isinstance(mark, of)]


def _members(type_: object, outer: _Marks = ()) -> Iterator[tuple[object, _Marks]]:
    """Yield the members of a union, or the type itself, each with what annotates it."""
    if get_origin(type_) is Annotated:
        inner, *marks = get_args(type_)
        yield from _members(inner, (*marks, *outer))
    elif is_union(type_):
        for member in get_args(type_):
            yield from _members(member, outer)
    else:
        yield type_, outer


def _is_of(kind: object, value: object) -> bool:
    """Tell whether a value is of a type that is not a union; items of lists are not looked at."""
    if get_origin(kind) is Literal:
        return any(value == one and type(value) is type(one) for one in get_args(kind))
    if kind in (int, float):
        return isinstance(value, int if kind is int else int | float) and not isinstance(
            value, bool
        )
    try:
        is_one = isinstance(value, get_origin(kind) or kind)  # type: ignore[arg-type]  # see below
    except TypeError:  # Any, protocols and type variables cannot be asked
        return True
    return is_one and not (get_origin(kind) is Sequence and isinstance(value, str))


def _is_within(marks: _Marks, value: float | Schedule) -> bool:
    """Tell whether a number is finite and within the bounds, or a schedule is in the whole run.

    The later numbers of a schedule may touch a bound that the first one may not.
    """
    if isinstance(value, Schedule):
        corners = [fraction for fraction, _ in value.points] if isinstance(value, Piecewise) else []
        numbers = [value.value(k) for k in sorted({*corners, *(k / 100 for k in range(101))})]
    else:
        numbers = [value]
    are_finite = all(math.isfinite(number) for number in numbers if isinstance(number, float))
    return are_finite and all(
        getattr(operator, relation)(number, bound) or (index > 0 and number == bound)
        for relation, bound in _bounds(marks).items()
        for index, number in enumerate(numbers)
    )


def _bounds(marks: _Marks) -> Mapping[str, float]:
    """Return the bounds by how a number must relate to them, lower ones first."""
    found = ((name, getattr(mark, name, None)) for name in _RELATIONS for mark in marks)
    return {name: bound for name, bound in found if bound is not None}


def _range(marks: _Marks, words: Mapping[str, str]) -> str:
    bounds = _bounds(marks)
    if len(bounds) < 2:
        return "".join(f"{words[relation]} {bound:g}" for relation, bound in bounds.items())
    ends = ", ".join(f"{bound:g}" for bound in bounds.values())
    return f"in {'[' if 'ge' in bounds else '('}{ends}{']' if 'le' in bounds else ')'}"


def _described(kind: object, marks: _Marks) -> str:
    """Say what a value of a type that is not a union is."""
    if get_origin(kind) is Literal:
        return _either(get_args(kind))
    if kind in (int, float):
        bounds = _range(marks, _RELATIONS)
        noun = "whole" if kind is int else "" if bounds.startswith("in") else "finite"
        return " ".join(filter(None, ("a", noun, "number", bounds)))
    plain = get_origin(kind) or kind
    noun = getattr(plain, "__name__", str(plain))
    return _WORDS.get(plain, f"{'an' if noun[0] in 'AEIOU' else 'a'} {noun}")


def _either(values: Sequence[object]) -> str:
    return " or ".join(map(repr, values))


_WORDS: Mapping[object, str] = {
    bool: "True or False",
    str: "text",
    Callable: "a function",
    Sequence: "a list",
    Mapping: "a mapping",
    Schedule: "a schedule such as Linear(0.001, 0.0)",
}
_RELATIONS = {"gt": "above", "ge": "of at least", "lt": "below", "le": "of at most"}
"""Words for bounds by the names of `operator` and ``annotated-types``, lower ones first."""
