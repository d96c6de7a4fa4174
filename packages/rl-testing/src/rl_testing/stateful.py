"""The tests that every `Stateful` part must pass, and comparisons of states."""

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from rl_core.errors import CheckpointError
from rl_core.stateful import Stateful
from rl_core.types import StateValue

RESTORE_HINT = (
    "is the field in state_fields / more_state, and does it draw from the generator it was given?"
)


class StatefulSuite:
    """Conformance tests of a `Stateful` part: subclass, supply two methods, inherit the tests.

    Attributes:
        keeps_its_state: whether the part is as it was before where a state is refused.
    """

    keeps_its_state: ClassVar[bool] = False

    def make_part(self) -> Stateful:
        """Return a new part, built in the same way every time."""
        raise NotImplementedError

    def use_part(self, part: Stateful) -> StateValue:
        """Make a part do what depends on its state and changes it, and return the result."""
        raise NotImplementedError

    def test_its_state_needs_no_pickle(self) -> None:
        """States hold tensors, numbers, text, lists and dicts, and nothing else."""
        part = self.make_part()
        self.use_part(part)
        check_plain(part.state_dict())

    def test_a_restored_part_goes_on_as_the_saved_one_did(self) -> None:
        """What follows a load is bit for bit what followed the save."""
        saved = self.make_part()
        self.use_part(saved)
        state = copy_state(saved.state_dict())
        expected = copy_state(self.use_part(saved))
        restored = self.make_part()
        restored.load_state_dict(_as_tree(state))
        check_same_state(restored.state_dict(), state, restored=True)
        check_same_state(self.use_part(restored), expected, "what it did next", restored=True)
        check_same_state(restored.state_dict(), saved.state_dict(), restored=True)

    def test_loading_copies(self) -> None:
        """A loaded part shares nothing with the state it was given."""
        saved = self.make_part()
        self.use_part(saved)
        state = copy_state(saved.state_dict())
        given = copy_state(state)
        restored = self.make_part()
        restored.load_state_dict(_as_tree(given))
        self.use_part(restored)
        check_same_state(given, state)

    def test_a_state_that_lacks_something_is_refused(self) -> None:
        """Where a key is missing, at whatever depth, `load_state_dict` raises CheckpointError.

        Mappings of numbers may have any keys.
        """
        saved, other = self.make_part(), self.make_part()
        self.use_part(saved)
        before = copy_state(other.state_dict())
        for path, damaged in _lacking(_as_tree(copy_state(saved.state_dict()))):
            try:
                other.load_state_dict(damaged)
            except CheckpointError:
                if self.keeps_its_state:
                    check_same_state(other.state_dict(), before, f"without {path}: state")
                continue
            raise AssertionError(f"a state without {path} was loaded; expected a CheckpointError")


def copy_state(state: StateValue) -> StateValue:
    """Copy a tree so that no later step of the part reaches it."""
    if isinstance(state, Tensor):
        return state.detach().clone()
    if isinstance(state, np.ndarray):
        return state.copy()
    if isinstance(state, Mapping):
        return {key: copy_state(value) for key, value in state.items()}
    if isinstance(state, Sequence) and not isinstance(state, str):
        return [copy_state(value) for value in state]
    return state


def check_plain(state: StateValue, path: str = "state") -> None:
    """Assert that a tree holds tensors, arrays, numbers, text, lists and dicts only."""
    if isinstance(state, Mapping):
        for key, value in state.items():
            assert isinstance(key, str), f"{path}: key {key!r}; expected text"
            check_plain(value, f"{path}.{key}")
    elif isinstance(state, list | tuple):
        for index, value in enumerate(state):
            check_plain(value, f"{path}[{index}]")
    else:
        plain = state is None or isinstance(state, bool | int | float | str | Tensor | np.ndarray)
        assert plain, f"{path} holds a {type(state).__name__}"


def check_same_state(
    actual: StateValue, expected: StateValue, path: str = "state", *, restored: bool = False
) -> None:
    """Assert that two trees are equal; NaN equals NaN.

    Args:
        actual: what there is.
        expected: what there should be.
        path: name of the trees, for the message.
        restored: whether it follows a restore; the message then tells what to look at.
    """
    try:
        _check_same(actual, expected, path)
    except AssertionError as error:
        if not restored:
            raise
        raise AssertionError(f"{error}, after a restore; {RESTORE_HINT}") from None


def _check_same(actual: StateValue, expected: StateValue, path: str) -> None:
    if isinstance(expected, Tensor):
        assert isinstance(actual, Tensor), f"{path}: {actual!r}; expected a tensor"
        assert actual.dtype == expected.dtype, f"{path}: {actual.dtype} and {expected.dtype}"
        torch.testing.assert_close(
            actual,
            expected,
            rtol=0,
            atol=0,
            equal_nan=True,
            check_device=False,
            msg=f"{path} differs",
        )
    elif isinstance(expected, np.ndarray):
        assert isinstance(actual, np.ndarray), f"{path}: {actual!r}; expected an array"
        assert actual.dtype == expected.dtype, f"{path}: {actual.dtype} and {expected.dtype}"
        np.testing.assert_array_equal(actual, expected, f"{path} differs")
    elif isinstance(expected, Mapping):
        assert isinstance(actual, Mapping), f"{path}: {actual!r}; expected a mapping"
        assert sorted(actual) == sorted(expected), f"{path}: {sorted(actual)}; {sorted(expected)}"
        for key, value in expected.items():
            _check_same(actual[key], value, f"{path}.{key}")
    elif isinstance(expected, Sequence) and not isinstance(expected, str):
        assert isinstance(actual, Sequence), f"{path}: {actual!r}; expected a sequence"
        assert len(actual) == len(expected), f"{path}: {len(actual)} entries; {len(expected)}"
        for index, value in enumerate(expected):
            _check_same(actual[index], value, f"{path}[{index}]")
    else:
        assert actual == expected or (actual != actual and expected != expected), (
            f"{path}: {actual!r}; expected {expected!r}"
        )


def _lacking(
    state: Mapping[str, StateValue], path: str = "state"
) -> Iterator[tuple[str, dict[str, StateValue]]]:
    """Yield each path of a tree, and the tree without it."""
    for key, value in state.items():
        yield f"{path}.{key}", {name: kept for name, kept in state.items() if name != key}
        if isinstance(value, Mapping) and not all(
            isinstance(v, int | float) for v in value.values()
        ):
            for inner, damaged in _lacking(value, f"{path}.{key}"):
                yield inner, {**state, key: damaged}


def _as_tree(state: StateValue) -> Mapping[str, StateValue]:
    assert isinstance(state, Mapping)
    return state
