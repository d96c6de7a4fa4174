"""Saving and restoring the state of a part: a protocol, a base class and a reader."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from functools import partial, wraps
from types import NoneType
from typing import (
    Any,
    ClassVar,
    Protocol,
    TypeVar,
    cast,
    get_args,
    get_type_hints,
    runtime_checkable,
)

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from rl_core.errors import CheckpointError
from rl_core.seeding import (
    numpy_generator_state,
    set_generator_state,
    set_numpy_generator_state,
)
from rl_core.types import StateDict, StateValue

ValueT = TypeVar("ValueT")
StatefulT = TypeVar("StatefulT", bound="Stateful")


@runtime_checkable
class Stateful(Protocol):
    """A part whose whole state is a tree of tensors, numbers and strings.

    ``load_state_dict(state_dict())`` on a freshly built part must make it indistinguishable from
    the one that was saved, its random generators included. Nothing in the tree may need pickle.
    """

    def state_dict(self) -> StateDict:
        """Return the state as a new tree; its tensors may share memory with the part."""
        ...

    def load_state_dict(self, state: StateDict) -> None:
        """Take over a state returned by `state_dict`, copying its tensors.

        Raises:
            CheckpointError: when the state does not fit this part.
        """
        ...


def all_or_nothing(
    load: Callable[[StatefulT, StateDict], None],
) -> Callable[[StatefulT, StateDict], None]:
    """Decorate a ``load_state_dict`` that loads part after part: if it fails, nothing changes."""

    @wraps(load)
    def load_or_restore(part: StatefulT, state: StateDict) -> None:
        before = tree_map_only(Tensor, Tensor.clone, part.state_dict())
        try:
            load(part, state)
        except Exception:
            load(part, before)
            raise

    return load_or_restore


class StateFields:
    """Base class of a part whose state is a list of its attributes.

    Attributes:
        state_fields: names of the attributes to save. The key of ``_mean`` in the state is
            ``mean``. What can be restored depends on the attribute's present value:

            * flags, strings and numbers are replaced; None is replaced by whichever of these was
              saved;
            * tensors and NumPy arrays are overwritten in place and keep their shape and dtype;
            * dicts, lists and deques of numbers are overwritten in place, lists as floats;
            * generators of torch and NumPy, and parts that are `Stateful`, restore themselves.

    A class whose state holds more than fields adds it to ``super().state_dict()`` and calls
    `load_fields` in a `load_state_dict` of its own.

    Examples:
        >>> class Average(StateFields):
        ...     state_fields = ("total", "count")
        ...
        ...     def __init__(self) -> None:
        ...         self.total, self.count = 0.0, 0
        >>> average = Average()
        >>> average.load_state_dict({"total": 6.0, "count": 2})
        >>> average.state_dict()
        {'total': 6.0, 'count': 2}
    """

    state_fields: ClassVar[tuple[str, ...]] = ()

    def state_dict(self) -> StateDict:
        """Return the state as a new tree; its tensors share memory with the part."""
        return {name.lstrip("_"): _to_state(getattr(self, name)) for name in self.state_fields}

    def load_state_dict(self, state: StateDict) -> None:
        """Take over a state returned by `state_dict`.

        Raises:
            CheckpointError: when a field is missing, unknown, or of another kind or shape.
        """
        saved = StateReader(state, type(self).__name__)
        saved.expect(name.lstrip("_") for name in self.state_fields)
        self.load_fields(saved)

    def load_fields(self, saved: "StateReader") -> None:
        """Take over the fields from a state that may hold more than them.

        Raises:
            CheckpointError: when a field is missing, or of another kind or shape.
        """
        changes: list[Callable[[], object]] = []  # all are read before the first is made
        for name in self.state_fields:
            value, key = getattr(self, name), name.lstrip("_")
            read = next((read for kind, read in _PLAIN if isinstance(value, kind)), None)
            if read is not None:
                changes.append(partial(setattr, self, name, read(saved, key)))
            else:
                changes.append(_change(value, saved, key))
        for change in changes:
            change()


class StateReader:
    """Reads a saved state by key and type, with a clear error where it is damaged.

    Args:
        state: what `Stateful.state_dict` returned, or a part of it.
        where: path of the part, for messages.

    Raises:
        CheckpointError: by every method, when a key is missing or holds something else.
    """

    def __init__(self, state: StateDict, where: str) -> None:
        self._state = state
        self._where = where

    def expect(self, keys: Iterable[str]) -> None:
        """Check that the state has exactly these keys."""
        expected = set(keys)
        for key in self._state:
            if key not in expected:
                raise CheckpointError(
                    f"{self._where}: the saved state has '{key}', which is not expected here; it "
                    "is of another version or kind of part"
                )
        for key in expected:
            self._get(key)

    def count(self, key: str) -> int:
        """Return a whole number that is not negative."""
        value = self.integer(key)
        if value < 0:
            raise CheckpointError(f"{self._where}: '{key}' should not be negative, got {value}")
        return value

    def integer(self, key: str) -> int:
        """Return a whole number."""
        value = self._get(key)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._misfit(key, "a whole number", value)
        return value

    def number(self, key: str) -> float:
        """Return a number."""
        value = self._get(key)
        if not _is_number(value):
            raise self._misfit(key, "a number", value)
        return float(cast("float", value))

    def flag(self, key: str) -> bool:
        """Return a truth value."""
        return self._of_type(key, bool, "true or false")

    def text(self, key: str) -> str:
        """Return a string."""
        return self._of_type(key, str, "a string")

    def tensor(self, key: str, like: Tensor | None = None) -> Tensor:
        """Return a tensor.

        Args:
            key: its name.
            like: one whose shape and dtype it must have; None takes any.
        """
        value = self._of_type(key, Tensor, "a tensor")
        if like is not None and (value.shape, value.dtype) != (like.shape, like.dtype):
            raise CheckpointError(
                f"{self._where}: '{key}' should have shape {tuple(like.shape)} and dtype "
                f"{like.dtype}, but the saved one has {tuple(value.shape)} and {value.dtype}"
            )
        return value

    def tensor_or_none(self, key: str) -> Tensor | None:
        """Return a tensor, or None if that was saved."""
        return None if self._get(key) is None else self.tensor(key)

    def tensors(self, key: str) -> dict[str, Tensor]:
        """Return a mapping of tensors."""
        inner = self.reader(key)
        return {name: inner.tensor(name) for name in self.tree(key)}

    def numbers(self, key: str) -> list[float]:
        """Return a list of numbers."""
        values = self._list(key, "a list of numbers")
        if not all(map(_is_number, values)):
            raise self._misfit(key, "a list of numbers", values)
        return [float(value) for value in cast("Sequence[float]", values)]

    def numbers_by_name(self, key: str) -> dict[str, int | float]:
        """Return a mapping of numbers, each whole or not as it was saved."""
        values = self.tree(key)
        if not all(map(_is_number, values.values())):
            raise self._misfit(key, "a mapping of numbers", values)
        return dict(cast("Mapping[str, int | float]", values))

    def plain(self, key: str) -> bool | int | float | str | None:
        """Return a number, a string, a truth value or None."""
        value = self._get(key)
        if value is not None and not isinstance(value, bool | int | float | str):
            raise self._misfit(key, "a number, a string, true, false or None", value)
        return value

    def tree(self, key: str) -> StateDict:
        """Return a state within this one, for another part's ``load_state_dict``."""
        value = self._get(key)
        if not isinstance(value, Mapping):
            raise self._misfit(key, "a mapping", value)
        return value

    def reader(self, key: str) -> "StateReader":
        """Return a reader of a state within this one."""
        return StateReader(self.tree(key), f"{self._where}/{key}")

    def readers(self, key: str) -> "list[StateReader]":
        """Return readers of the states in a list within this one."""
        values = self._list(key, "a list of mappings")
        if not all(isinstance(value, Mapping) for value in values):
            raise self._misfit(key, "a list of mappings", values)
        return [
            StateReader(cast("StateDict", value), f"{self._where}/{key}/{index}")
            for index, value in enumerate(values)
        ]

    def as_dataclass(self, kind: type[ValueT]) -> ValueT:
        """Build a dataclass of tensors, such as a batch, from what ``asdict`` made of it.

        Args:
            kind: whose fields hold a tensor, a mapping of tensors, another such dataclass, or None.
        """
        hints = get_type_hints(kind)
        self.expect(hints)
        values: dict[str, object] = {}
        for name, value in self._state.items():
            inner = next((one for one in get_args(hints[name]) if is_dataclass(one)), None)
            if not isinstance(value, Mapping):
                values[name] = self.tensor_or_none(name)
            elif isinstance(inner, type):
                values[name] = self.reader(name).as_dataclass(inner)
            else:
                values[name] = self.tensors(name)
        return kind(**values)

    def _list(self, key: str, expected: str) -> Sequence[StateValue]:
        value = self._get(key)
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise self._misfit(key, expected, value)
        return value

    def _of_type(self, key: str, kind: type[ValueT], expected: str) -> ValueT:
        value = self._get(key)
        if not isinstance(value, kind):
            raise self._misfit(key, expected, value)
        return value

    def _get(self, key: str) -> StateValue:
        if key not in self._state:
            raise CheckpointError(
                f"{self._where}: the saved state has no '{key}'; it is damaged, or of another "
                "version or kind of part"
            )
        return self._state[key]

    def _misfit(self, key: str, expected: str, value: object) -> CheckpointError:
        return CheckpointError(
            f"{self._where}: '{key}' should be {expected}, but the saved state has "
            f"{type(value).__name__}"
        )


def _is_number(value: StateValue) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_PLAIN: tuple[tuple[type[object], Callable[[StateReader, str], StateValue]], ...] = (
    (bool, StateReader.flag),
    (int, StateReader.integer),
    (float, StateReader.number),
    (str, StateReader.text),
    (NoneType, StateReader.plain),
)
"""How values that are replaced are read; flags come first, because Python's are numbers too."""


def _to_state(value: object) -> StateValue:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Tensor):
        return value.detach()
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value.copy())
    if isinstance(value, torch.Generator):
        return value.get_state()
    if isinstance(value, np.random.Generator):
        return numpy_generator_state(value)
    if isinstance(value, dict):
        return dict(value)
    if isinstance(value, list | deque):
        return list(value)
    if isinstance(value, Stateful):
        return value.state_dict()
    raise TypeError(f"StateFields cannot save a {type(value).__name__}")


def _change(value: object, saved: StateReader, key: str) -> Callable[[], object]:
    """Read what a value shall become, and return what restores it in place."""
    if isinstance(value, Tensor):
        return partial(value.detach().copy_, saved.tensor(key, like=value))
    if isinstance(value, np.ndarray):
        array = saved.tensor(key, like=torch.from_numpy(value)).numpy(force=True)
        return partial(np.copyto, value, array)
    if isinstance(value, torch.Generator):
        return partial(set_generator_state, value, saved.tensor(key))
    if isinstance(value, np.random.Generator):
        return partial(set_numpy_generator_state, value, saved.tree(key))
    if isinstance(value, dict):
        return partial(_refill, value, saved.numbers_by_name(key))
    if isinstance(value, list | deque):
        return partial(_refill, value, saved.numbers(key))
    if isinstance(value, Stateful):
        return partial(value.load_state_dict, saved.tree(key))
    raise TypeError(f"StateFields cannot restore a {type(value).__name__}")


def _refill(value: Any, content: Any) -> None:
    value.clear()
    if isinstance(value, dict):
        value.update(content)
    else:
        value.extend(content)
