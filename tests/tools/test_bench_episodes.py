from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
import pytest
from bench import episodes
from bench.episodes import FIRST_SEED, Episodes, evaluate, make_env


class Countdown(gymnasium.Env[Any, Any]):
    """Ends after as many steps as its seed says, and rewards the action."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)

    def __init__(self, tells: bool = False) -> None:
        self.tells = tells

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        assert seed is not None
        self.number = seed - FIRST_SEED
        self.left = 1 + self.number % 3
        return self._observed(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        assert self.left >= 0, "stepped after its end"
        terminated, truncated = self.left == 0 and self.number % 2 == 0, False
        truncated = self.left == 0 and not terminated
        info = {"is_success": self.number == 0} if self.tells else {}
        return self._observed(), float(action[0]), terminated, truncated, info

    def _observed(self) -> npt.NDArray[np.float32]:
        return np.array([self.number], dtype=np.float32)


def identity(observation: Any, state: Any, starts: Any) -> tuple[Any, Any]:
    return observation, state


def test_each_episode_has_its_own_seed_and_counts_until_it_ends() -> None:
    found = evaluate(identity, Countdown, num_episodes=5)
    assert found.returns == (0.0, 2.0, 6.0, 3.0, 8.0)  # number times length
    assert found.success_rate is None


@pytest.mark.parametrize("at_once", [1, 4, 100])
def test_how_many_step_together_changes_nothing(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = evaluate(identity, Countdown, num_episodes=9)
    monkeypatch.setattr(episodes, "_AT_ONCE", at_once)
    assert evaluate(identity, Countdown, num_episodes=9) == expected


def test_successes_are_those_of_the_last_step() -> None:
    make: Callable[[], Countdown] = lambda: Countdown(tells=True)  # noqa: E731
    found = evaluate(identity, make, num_episodes=4)
    assert found.successes == (True, False, False, False)
    assert found.as_dict() == {
        "first_seed": FIRST_SEED,
        "returns": [0.0, 2.0, 6.0, 3.0],
        "success_rate": 0.25,
    }


def test_states_are_carried_and_starts_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episodes, "_AT_ONCE", 2)
    told: list[tuple[Any, list[bool]]] = []

    def count(observation: Any, state: Any, starts: Any) -> tuple[Any, Any]:
        told.append((state, starts.tolist()))
        return observation, 0 if state is None else state + 1

    evaluate(count, Countdown, num_episodes=2)
    assert told == [(None, [True, True]), (0, [False, False])]


def test_an_environment_is_made_by_name() -> None:
    with make_env("BitFlipping-v0") as env:
        assert isinstance(env.observation_space, gymnasium.spaces.Dict)
    with make_env("CartPole-v1", mask_velocity=True) as env:
        assert env.observation_space.shape == (2,)

    def predict(observation: Any, state: Any, starts: Any) -> tuple[Any, Any]:
        assert set(observation) == {"observation", "achieved_goal", "desired_goal"}
        return np.zeros(len(observation["observation"]), dtype=np.int64), state

    found = evaluate(predict, lambda: make_env("BitFlipping-v0"), num_episodes=3)
    assert isinstance(found, Episodes)
    assert len(found.successes) == 3


def test_games_are_prepared_alike_for_both_systems() -> None:
    pytest.importorskip("ale_py")
    pytest.importorskip("cv2")
    for testing in (False, True):
        with make_env("ALE/Pong-v5", testing) as env:
            assert env.observation_space.shape == (4, 84, 84)
            assert ("ClipReward" in str(env), "EpisodicLife" in str(env)) == (not testing,) * 2
