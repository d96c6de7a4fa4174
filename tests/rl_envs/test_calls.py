"""Methods of single environments that are called through a vector of them."""

import threading
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit

from rl_core.errors import ConfigError, EnvironmentFaultError
from rl_envs import as_vec_env, make_vec


class Levels(gymnasium.Env[Any, Any]):
    """Observes its level, which a method sets for the episodes that follow."""

    observation_space = spaces.Box(0.0, 9.0, (1,))
    action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        self.level = self.next_level = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.level = self.next_level
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self._observation(), 0.0, False, False, {}

    def set_level(self, level: int) -> int:
        """Return the level before."""
        if level > 9:
            raise ValueError("there are nine levels")
        before, self.next_level = self.next_level, level
        return before

    def lock(self) -> object:
        """Return what no process can send to another."""
        return threading.Lock()

    def _observation(self) -> Any:
        return np.array([self.level], np.float32)


def limited() -> gymnasium.Env[Any, Any]:
    return TimeLimit(Levels(), 2)


KINDS: dict[str, Any] = {
    "sync": lambda: make_vec(limited, 3, vectorization="sync"),
    "async": lambda: make_vec(limited, 3, vectorization="async", num_workers=2),
    "gymnasium-sync": lambda: as_vec_env(
        SyncVectorEnv([limited] * 3, autoreset_mode=AutoresetMode.SAME_STEP)
    ),
    "gymnasium-async": lambda: as_vec_env(
        AsyncVectorEnv([limited] * 3, autoreset_mode=AutoresetMode.SAME_STEP)
    ),
}


@pytest.fixture(params=KINDS)
def envs(request: pytest.FixtureRequest) -> Any:
    with KINDS[request.param]() as made:
        yield made


def test_a_call_reaches_every_environment_and_changes_its_next_episode(envs: Any) -> None:
    assert envs.reset(seed=0).tolist() == [[0.0]] * 3
    assert envs.call("set_level", 4) == (0, 0, 0)
    assert envs.call("set_level", 5) == (4, 4, 4)
    actions = np.zeros(3, np.int64)
    assert envs.step(actions).observation.tolist() == [[0.0]] * 3
    assert envs.step(actions).observation.tolist() == [[5.0]] * 3  # the time limit has passed
    assert envs.call("level") == (5, 5, 5)
    assert envs.call("_max_episode_steps") == (2, 2, 2)  # of a wrapper
    envs.call("set_wrapper_attr", "next_level", 7)
    assert envs.reset().tolist() == [[7.0]] * 3


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_calls_that_fail_say_where(kind: str) -> None:
    with KINDS[kind]() as envs:
        envs.reset(seed=0)
        with pytest.raises(EnvironmentFaultError, match="set_levels"):
            envs.call("set_levels", 4)
        with pytest.raises(EnvironmentFaultError, match="there are nine levels"):
            envs.call("set_level", 10)
        assert envs.step(np.zeros(3, np.int64)).reward.tolist() == [0.0] * 3  # goes on
    with pytest.raises(EnvironmentFaultError, match="called after close"):
        envs.call("level")


def test_what_cannot_be_sent_is_named() -> None:
    with KINDS["async"]() as envs:
        envs.reset(seed=0)
        with pytest.raises(EnvironmentFaultError, match=r"cannot pickle '_thread\.lock'"):
            envs.call("lock")
        with pytest.raises(EnvironmentFaultError, match=r"cannot pickle '_thread\.lock'"):
            envs.call("set_level", threading.Lock())
        assert envs.call("level") == (0, 0, 0)


def test_environments_that_step_as_one_have_none_to_call() -> None:
    with (
        make_vec("CartPole-v1", 2, vectorization="native") as envs,
        pytest.raises(ConfigError, match=r"^CartPole-v1: .* steps all environments as one"),
    ):
        envs.call("set_level", 4)
