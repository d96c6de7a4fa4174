"""Masks that forbid everything are refused where somebody would act on them."""

import numpy as np
import pytest
from gymnasium import spaces

from rl_core.errors import DataError
from rl_core.masks import ActionMaskCheck

PLAIN = spaces.Box(-1.0, 1.0, (2,))


def _space(size: int) -> spaces.Dict:
    return spaces.Dict({"action_mask": spaces.MultiBinary(size), "position": PLAIN})


def test_a_mask_must_allow_something() -> None:
    check = ActionMaskCheck(_space(2), spaces.Discrete(2))
    check({"action_mask": np.array([[1, 0], [0, 1]], dtype=np.int8)})
    nothing = {"action_mask": np.array([[1, 1], [0, 0]], dtype=np.int8)}
    with pytest.raises(DataError, match=r"environment \[1\] forbids every"):
        check(nothing)
    check(nothing, np.array([True, False]))  # the episode is over there


def test_every_choice_must_have_something_allowed() -> None:
    check = ActionMaskCheck(_space(5), spaces.MultiDiscrete([2, 3]))
    check({"action_mask": np.array([[1, 0, 0, 0, 1]], dtype=np.int8)})
    with pytest.raises(DataError, match=r"environment \[0\]"):
        check({"action_mask": np.array([[1, 1, 0, 0, 0]], dtype=np.int8)})


def test_without_masks_nothing_is_looked_at() -> None:
    check = ActionMaskCheck(PLAIN, spaces.Discrete(2))
    check(np.zeros((3, 2)))
