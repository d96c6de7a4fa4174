"""Trees of tensors: dataclasses, mappings, tuples and lists, however deep."""

import copy
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from operator import attrgetter
from typing import TypeVar

from torch import Tensor

TreeT = TypeVar("TreeT")


def tensors_of(tree: object) -> list[Tensor]:
    """Return the tensors in a tree, in order; of a tensor itself."""
    return flatten(tree)[0]


def flatten(tree: object) -> tuple[list[Tensor], list[Hashable]]:
    """Return the tensors in a tree, in order, and all else that tells it from other trees."""
    tensors: list[Tensor] = []
    rest: list[Hashable] = []
    _flatten(tree, tensors, rest)
    return tensors, rest


def rebuild(tree: TreeT, tensors: Iterator[Tensor]) -> TreeT:
    """Return a tree like another one, with other tensors in the order of `flatten`."""
    if isinstance(tree, Tensor):
        return next(tensors)  # type: ignore[return-value]  # a tensor for a tensor
    if isinstance(tree, tuple | list):
        return type(tree)([rebuild(part, tensors) for part in tree])  # type: ignore[return-value]
    if isinstance(tree, Mapping):
        return {name: rebuild(part, tensors) for name, part in tree.items()}  # type: ignore[return-value]
    if is_dataclass(tree):
        made = copy.copy(tree)
        for field in fields(tree):
            part = rebuild(getattr(tree, field.name), tensors)
            object.__setattr__(made, field.name, part)  # it may be frozen
        return made
    return tree


def _flatten(tree: object, tensors: list[Tensor], rest: list[Hashable]) -> None:
    parts: Iterable[object]
    if isinstance(tree, Tensor):
        tensors.append(tree)
        return
    if isinstance(tree, tuple | list):
        rest.append(len(tree))
        parts = tree
    elif isinstance(tree, Mapping):
        rest.append(tuple(tree))
        parts = tree.values()
    else:
        kind = type(tree)
        read = _READERS.get(kind) or _READERS.setdefault(kind, _field_reader(kind))
        rest.append(kind)
        parts = read(tree)
        if parts is None:
            rest.append(tree)
            return
    for part in parts:
        if isinstance(part, Tensor):
            tensors.append(part)
        else:
            _flatten(part, tensors, rest)


_READERS: dict[type, Callable[[object], Iterable[object] | None]] = {}


def _field_reader(kind: type) -> Callable[[object], Iterable[object] | None]:
    """Return what reads all fields of a dataclass's objects, and None of other objects."""
    if not is_dataclass(kind):
        return lambda tree: None
    names = [field.name for field in fields(kind)]
    if len(names) < 2:  # attrgetter returns no tuple then
        return lambda tree: [getattr(tree, name) for name in names]
    return attrgetter(*names)
