"""Trees of tensors: dataclasses, mappings, tuples and lists, however deep."""

import copy
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from operator import attrgetter
from typing import Any, TypeAlias, TypeVar

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
        return type(tree)([rebuild(part, tensors) for part in tree])
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
    kind = type(tree)
    read = _READERS.get(kind) or _READERS.setdefault(kind, _reader(kind))
    parts = read(tree, rest)
    for part in parts:
        if type(part) is Tensor:  # the common case, and the cheaper check
            tensors.append(part)
        elif part is None:
            rest.append(None)
        elif isinstance(part, Tensor):
            tensors.append(part)
        else:
            _flatten(part, tensors, rest)


_Reader: TypeAlias = Callable[[Any, list[Hashable]], Iterable[object]]
"""Returns what an object is made of, and notes what else tells it from others."""

_READERS: dict[type, _Reader] = {}


def _reader(kind: type) -> _Reader:
    """Return what takes apart the objects of a class."""
    if issubclass(kind, Tensor):
        return lambda tree, rest: (tree,)
    if issubclass(kind, tuple | list):
        return _read_sequence
    if issubclass(kind, Mapping):
        return _read_mapping
    if not is_dataclass(kind):
        return _read_nothing
    names = [field.name for field in fields(kind)]
    # attrgetter returns no tuple of fewer than two
    fields_of = (
        attrgetter(*names) if len(names) > 1 else lambda tree: [getattr(tree, n) for n in names]
    )

    def read_fields(tree: Any, rest: list[Hashable]) -> Iterable[object]:
        rest.append(kind)
        parts: Iterable[object] = fields_of(tree)
        return parts

    return read_fields


def _read_sequence(tree: Sequence[object], rest: list[Hashable]) -> Iterable[object]:
    rest.append(len(tree))
    return tree


def _read_mapping(tree: Mapping[str, object], rest: list[Hashable]) -> Iterable[object]:
    rest.append(tuple(tree))
    return tree.values()


def _read_nothing(tree: Hashable, rest: list[Hashable]) -> Iterable[object]:
    rest += (type(tree), tree)
    return ()
