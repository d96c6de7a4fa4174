"""Trees of tensors: dataclasses, mappings and tuples, however deep."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from operator import attrgetter

from torch import Tensor


def tensors_of(tree: object) -> list[Tensor]:
    """Return the tensors in dataclasses, mappings and tuples, in order; of a tensor itself."""
    values: Iterable[object]
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, tuple):
        values = tree
    elif isinstance(tree, Mapping):
        values = tree.values()
    else:
        kind = type(tree)
        reader = _READERS.get(kind) or _READERS.setdefault(kind, _field_reader(kind))
        values = reader(tree)
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif value:
            found += tensors_of(value)
    return found


_READERS: dict[type, Callable[[object], Iterable[object]]] = {}


def _field_reader(kind: type) -> Callable[[object], Iterable[object]]:
    """Return what reads all fields of a class's objects: those of a dataclass, else none."""
    names = [field.name for field in fields(kind)] if is_dataclass(kind) else []
    if len(names) < 2:  # attrgetter answers no tuple then
        return lambda tree: [getattr(tree, name) for name in names]
    return attrgetter(*names)
