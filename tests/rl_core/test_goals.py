from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import pytest

from rl_core.env import GoalFunctions
from rl_core.errors import EnvironmentFaultError

ACHIEVED = np.array([[0.0], [1.0], [2.0]], np.float32)
DESIRED = np.array([[0.0], [3.0], [2.0]], np.float32)


def _distance(achieved: Any, desired: Any, info: Mapping[str, object]) -> object:
    assert info == {}
    return -np.abs(achieved - desired)[..., 0]


def _norm(achieved: Any, desired: Any) -> float:
    return float(np.linalg.norm(achieved - desired))


def test_batches_are_judged_at_once() -> None:
    functions = GoalFunctions(_distance, lambda a, d, info: (a == d)[..., 0])
    rewards = functions.rewards(ACHIEVED, DESIRED)
    assert rewards.dtype == np.float32
    assert rewards.tolist() == [0.0, -2.0, 0.0]
    ends = functions.terminations(ACHIEVED, DESIRED)
    assert ends is not None
    assert ends.tolist() == [True, False, True]


def test_what_answers_a_single_value_is_asked_for_each() -> None:
    """As where a norm is taken over everything it gets."""
    functions = GoalFunctions(
        lambda a, d, info: -_norm(a, d),
        lambda a, d, info: _norm(a, d) < 1.0,
    )
    assert functions.rewards(ACHIEVED, DESIRED).tolist() == [0.0, -2.0, 0.0]
    ends = functions.terminations(ACHIEVED, DESIRED)
    assert ends is not None
    assert ends.tolist() == [True, False, True]


def test_what_cannot_take_several_goals_is_asked_for_each() -> None:
    """As where goals are compared by `if`, which is ambiguous for several."""
    functions = GoalFunctions(lambda a, d, info: 0.0 if np.subtract(a, d) > -1.0 else -1.0)
    assert functions.rewards(ACHIEVED, DESIRED).tolist() == [0.0, -1.0, 0.0]


def test_ends_may_have_nothing_to_do_with_goals() -> None:
    assert GoalFunctions(_distance).terminations(ACHIEVED, DESIRED) is None


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ([1.0, 2.0], r"shape \(2,\).*expected \(3,\)"),
        ([0.0, np.inf, 0.0], r"inf for the achieved goal \[1.0\] and the desired goal \[3.0\]"),
        (["a", "b", "c"], "expected numbers"),
    ],
)
def test_other_answers_are_refused(answer: object, message: str) -> None:
    with pytest.raises(EnvironmentFaultError, match=message):
        GoalFunctions(lambda a, d, info: answer).rewards(ACHIEVED, DESIRED)


def test_what_it_raises_is_told() -> None:
    def compute_reward(achieved: Any, desired: Any, info: Mapping[str, object]) -> object:
        raise KeyError("distance")

    with pytest.raises(EnvironmentFaultError, match="compute_reward raised KeyError"):
        GoalFunctions(compute_reward).rewards(ACHIEVED, DESIRED)


def test_an_environment_without_goals_has_no_functions() -> None:
    assert GoalFunctions.of_env(gymnasium.make("CartPole-v1")) is None
    assert GoalFunctions.of_env(object()) is None
