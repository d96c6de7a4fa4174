"""The one protocol by which every part of a run is saved and restored."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, TypeVar, runtime_checkable

from torch import Tensor

from rl_core.errors import CheckpointError
from rl_core.types import StateDict, StateValue

ValueT = TypeVar("ValueT")


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


class StateReader:
    """Reads a saved state by key and type, so that a damaged one is answered clearly.

    Args:
        state: what `Stateful.state_dict` returned, or what is left of it.
        where: path of the part, for messages.

    Raises:
        CheckpointError: by every method, when a key is missing or holds something else.
    """

    def __init__(self, state: StateDict, where: str) -> None:
        self._state = state
        self._where = where

    def expect(self, keys: Iterable[str]) -> None:
        """Make sure that exactly these keys are there."""
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
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._misfit(key, "a number", value)
        return float(value)

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

    def tensors(self, key: str) -> dict[str, Tensor]:
        """Return a mapping of tensors."""
        inner = self.reader(key)
        return {name: inner.tensor(name) for name in self.tree(key)}

    def numbers(self, key: str) -> list[float]:
        """Return a list of numbers."""
        values = self._get(key)
        if isinstance(values, str) or not isinstance(values, Sequence):
            raise self._misfit(key, "a list of numbers", values)
        numbers = []
        for value in values:
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise self._misfit(key, "a list of numbers", value)
            numbers.append(float(value))
        return numbers

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
        values = self._get(key)
        if isinstance(values, str) or not isinstance(values, Sequence):
            raise self._misfit(key, "a list of mappings", values)
        for value in values:
            if not isinstance(value, Mapping):
                raise self._misfit(key, "a list of mappings", values)
        return [
            StateReader(value, f"{self._where}/{key}/{index}")
            for index, value in enumerate(values)
            if isinstance(value, Mapping)
        ]

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
