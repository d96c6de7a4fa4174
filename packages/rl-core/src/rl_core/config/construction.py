"""The options that a component takes from a recipe, read off its constructor."""

import copy
import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import TypeVar, cast, get_args

from rl_core.config._types import (
    describe,
    field_types,
    is_dataclass,
    is_union,
    reduced,
    resolved_hints,
)
from rl_core.errors import ConfigError

T = TypeVar("T")

CONTEXT_PARAMETERS = frozenset(
    {
        "self",
        "actor",
        "observation_space",
        "action_space",
        "spec",
        "device",
        "seed",
        "generator",
        "env_spec",
        "load_actor",
        "run_dir",
        "resume_step",
    }
)
"""Constructor parameters that the program supplies and a recipe never does."""


_generated: dict[Callable[..., object], type[object]] = {}


def options_of(cls: Callable[..., object]) -> type[object]:
    """Return the dataclass of options that a component takes from a recipe.

    Args:
        cls: a component class, or a function that builds one.

    Returns:
        The dataclass that the parameter ``config`` is annotated with, when there is one. Otherwise
        a frozen keyword-only dataclass made from the annotated parameters, without those in
        `CONTEXT_PARAMETERS` and without those that data cannot express but that have a default.

    Raises:
        ConfigError: when a required parameter has no type that data can express, or an annotation
            cannot be resolved.
    """
    parameters, hints = _signature(cls)
    config = _config_type(cls, parameters, hints)
    if config is not None:
        return config
    if cls not in _generated:
        _generated[cls] = _generate(cls, parameters, hints)
    return _generated[cls]


def construct(cls: Callable[..., T], context: Mapping[str, object], options: object) -> T:
    """Build a component from its options and from what the program knows.

    Args:
        cls: the class or function whose options `options_of` described.
        context: values by parameter name, such as ``device`` and ``observation_space``; those that
            the component does not take are ignored.
        options: an instance of ``options_of(cls)``.

    Returns:
        What the class or function returned.

    Raises:
        ConfigError: when the options are of another type, or a required parameter is supplied by
            neither side.
    """
    expected = options_of(cls)
    if not isinstance(options, expected):
        raise ConfigError(
            f"{_name_of(cls)} got options of type {type(options).__name__}; expected"
            f" {expected.__name__}: build them with decode(options_of(...), data)"
        )
    parameters, hints = _signature(cls)
    if _config_type(cls, parameters, hints) is not None:
        chosen: dict[str, object] = {"config": options}
    else:
        chosen = {name: getattr(options, name) for name in field_types(expected)}
    given = {name: context[name] for name in parameters if name in context} | chosen
    missing = [
        name
        for name, parameter in parameters.items()
        if parameter.default is inspect.Parameter.empty and name not in given
    ]
    if missing:
        raise ConfigError(
            f"{_name_of(cls)} needs {', '.join(map(repr, missing))}, which"
            f" {'is' if len(missing) == 1 else 'are'} neither an option nor in the context"
            f" ({', '.join(sorted(context)) or 'empty'})"
        )
    return cls(**given)


def _generate(
    cls: Callable[..., object],
    parameters: Mapping[str, inspect.Parameter],
    hints: Mapping[str, object],
) -> type[object]:
    fields: list[tuple[str, object, object]] = []
    for name, parameter in parameters.items():
        if name in CONTEXT_PARAMETERS:
            continue
        type_ = reduced(hints.get(name))
        if type_ is not None:
            fields.append((name, type_, _field_for(parameter.default)))
        elif parameter.default is inspect.Parameter.empty:
            raise ConfigError(
                f"{_name_of(cls)} needs {name!r}, of type {describe(hints.get(name))}, which data"
                " cannot express; annotate it with a plain type or give it a default"
            )
    title = _name_of(cls).rpartition(".")[2]
    options: type[object] = dataclasses.make_dataclass(
        f"{title}Options",
        cast("list[tuple[str, type, dataclasses.Field[object]]]", fields),
        frozen=True,
        kw_only=True,
        namespace={"__doc__": f"Options of `{title}`."},
    )
    options.__module__ = cls.__module__  # where the names in its annotations are known
    return options


def _signature(
    cls: Callable[..., object],
) -> tuple[dict[str, inspect.Parameter], dict[str, object]]:
    function: object = cls.__init__ if isinstance(cls, type) else cls  # type: ignore[misc]  # read, not called
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = {
        name: parameter
        for name, parameter in inspect.signature(
            cast("Callable[..., object]", function)
        ).parameters.items()
        if parameter.kind in named and not (isinstance(cls, type) and name == "self")
    }
    return parameters, resolved_hints(function, _name_of(cls)) if parameters else {}


def _config_type(
    cls: Callable[..., object],
    parameters: Mapping[str, inspect.Parameter],
    hints: Mapping[str, object],
) -> type[object] | None:
    if "config" not in parameters:
        return None
    hint = hints.get("config")
    members = get_args(hint) if is_union(hint) else (hint,)
    own = getattr(cls, "config_type", None)  # of a subclass, whose constructor may be inherited
    if any(isinstance(member, TypeVar) for member in members):
        members = (own,)
    found = [
        own if isinstance(own, type) and issubclass(own, cast("type", member)) else member
        for member in members
        if is_dataclass(member)
    ]
    return cast("type[object]", found[0]) if len(found) == 1 else None


def _field_for(default: object) -> object:
    if default is inspect.Parameter.empty:
        return dataclasses.field()
    if type(default).__hash__ is None:
        return dataclasses.field(default_factory=lambda: copy.deepcopy(default))
    return dataclasses.field(default=default)


def _name_of(cls: Callable[..., object]) -> str:
    return getattr(cls, "__qualname__", type(cls).__qualname__)
