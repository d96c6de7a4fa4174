from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import ClipReward, NormalizeReward, TransformReward
from gymnasium.wrappers.vector import ClipReward as ClipVectorReward
from gymnasium.wrappers.vector import NormalizeReward as NormalizeVectorReward

from rl_core.env import GoalFunctions
from rl_core.errors import ConfigError, EnvironmentFaultError

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


class _GoalEnv(gymnasium.Env[Any, Any]):
    observation_space = gymnasium.spaces.Box(-9.0, 9.0, (1,))
    action_space = gymnasium.spaces.Discrete(2)
    compute_reward = staticmethod(_distance)


class _Doubled(gymnasium.Wrapper[Any, Any, Any, Any]):
    def compute_reward(self, achieved: Any, desired: Any, info: Mapping[str, object]) -> Any:
        return 2.0 * np.asarray(_distance(achieved, desired, info))


def _rewards(env: object) -> list[float]:
    functions = GoalFunctions.of_env(env)
    assert functions is not None
    rewards: list[float] = functions.rewards(ACHIEVED, DESIRED).tolist()
    return rewards


def test_reward_wrappers_change_what_is_computed_from_the_inside_out() -> None:
    """The second goal is missed by 2."""
    halved = TransformReward(_GoalEnv(), lambda reward: 0.5 * float(reward))
    assert _rewards(halved) == [0.0, -1.0, 0.0]
    assert _rewards(ClipReward(halved, -0.75, 0.0)) == [0.0, -0.75, 0.0]
    clipped = ClipReward(_GoalEnv(), -0.75, 0.0)
    assert _rewards(TransformReward(clipped, lambda reward: 0.5 * float(reward))) == [
        0.0,
        -0.375,
        0.0,
    ]


def test_a_change_for_one_reward_alone_is_asked_for_each() -> None:
    sparse = TransformReward(_GoalEnv(), lambda reward: 0.0 if float(reward) > -1.0 else -1.0)
    assert _rewards(sparse) == [0.0, -1.0, 0.0]


def test_reward_wrappers_inside_the_one_that_knows_goals_do_not_count() -> None:
    halved = TransformReward(_GoalEnv(), lambda reward: 0.5 * float(reward))
    assert _rewards(_Doubled(halved)) == [0.0, -4.0, 0.0]
    assert _rewards(ClipReward(_Doubled(halved), -3.0, 0.0)) == [0.0, -3.0, 0.0]


@pytest.mark.parametrize("vector", [SyncVectorEnv, gymnasium.vector.AsyncVectorEnv])
def test_reward_wrappers_of_vectors_change_what_is_computed(vector: Any) -> None:
    halved = vector([lambda: TransformReward(_GoalEnv(), lambda reward: 0.5 * float(reward))] * 2)
    envs = ClipVectorReward(halved, -0.75, 0.0)
    assert _rewards(envs) == [0.0, -0.75, 0.0]
    envs.close()


def test_normalized_rewards_are_refused() -> None:
    """Their scale moves with steps, so the same goal would be worth something else each time."""
    with pytest.raises(ConfigError, match="NormalizeReward would not scale"):
        GoalFunctions.of_env(NormalizeReward(_GoalEnv()))
    with pytest.raises(ConfigError, match="NormalizeReward would not scale"):
        GoalFunctions.of_env(NormalizeVectorReward(SyncVectorEnv([_GoalEnv])))
    assert GoalFunctions.of_env(NormalizeReward(gymnasium.make("CartPole-v1"))) is None
