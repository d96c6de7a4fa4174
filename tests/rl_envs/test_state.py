"""Environments that were saved in the middle of an episode continue bit for bit."""

import itertools
import time
from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import partial
from typing import Any, Literal

import gymnasium
import numpy as np
import pytest
from gymnasium import make
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import (
    FrameStackObservation,
    NormalizeObservation,
    RenderCollection,
    TimeAwareObservation,
    TransformObservation,
    TransformReward,
    vector,
)
from gymnasium.wrappers.vector import RecordEpisodeStatistics

from rl_core.env import VecEnv
from rl_core.errors import CheckpointError, EnvironmentFaultError
from rl_core.seeding import numpy_generator_state, set_numpy_generator_state
from rl_core.stateful import StateReader
from rl_core.types import Array, StateDict
from rl_envs import EnvMaker, ProcessVecEnv, as_vec_env, make_vec
from rl_envs.families import family_of_id
from rl_envs.state import can_save, get_state, set_state
from rl_envs.tasks import TaskPool
from rl_envs.wrappers import MaskVelocity
from rl_testing.envs import VecEnvSuite
from rl_testing.stateful import copy_state

IDS = [
    "CartPole-v1",
    "Pendulum-v1",
    "Acrobot-v1",
    "MountainCar-v0",
    "MountainCarContinuous-v0",
    "FrozenLake-v1",
    "Taxi-v4",
    "CliffWalking-v1",
    "Blackjack-v1",
    "BitFlipping-v0",
    "HalfCheetah-v5",
    "Ant-v5",
    "Humanoid-v5",
    "Hopper-v5",
    "Walker2d-v5",
    "Swimmer-v5",
    "Reacher-v5",
    "Pusher-v5",
    "InvertedPendulum-v5",
    "InvertedDoublePendulum-v5",
    "ALE/Pong-v5",
    "ALE/Breakout-v5",
    "ALE/Qbert-v5",
    "ALE/Tetris-v5",
    "MiniGrid-Dynamic-Obstacles-6x6-v0",
    "MiniGrid-MultiRoom-N2-S4-v0",
    "MiniGrid-Unlock-v0",
    "BabyAI-PutNextLocal-v0",
    "BabyAI-UnlockToUnlock-v0",
    "FetchPush-v4",
    "HandReach-v3",
    "HandManipulateBlock_ContinuousTouchSensors-v1",
    "AdroitHandDoor-v1",
    "AdroitHandPen-v1",
]


class Drift(gymnasium.Env):
    """A walk whose author saves its state."""

    observation_space = gymnasium.spaces.Box(-9.0, 9.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    place = 0.0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self.place = 0.0
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self.place += self.np_random.normal() + action
        return np.array([self.place], np.float32), self.place, abs(self.place) > 5.0, False, {}


class SavedDrift(Drift):
    def state_dict(self) -> StateDict:
        return {"place": self.place, "random": numpy_generator_state(self.np_random)}

    def load_state_dict(self, state: StateDict) -> None:
        saved = StateReader(state, "drift")
        self.place = saved.number("place")
        set_numpy_generator_state(self.np_random, saved.tree("random"))


def _play(env: gymnasium.Env, actions: list[Any]) -> list[Any]:
    """Return all that was seen, in as many episodes as it takes."""
    seen: list[Any] = []
    for action in actions:
        observation, reward, terminated, truncated, _ = env.step(action)
        seen.append((deepcopy(observation), float(reward), terminated, truncated))
        if terminated or truncated:
            seen.append(deepcopy(env.reset()[0]))
    return seen


def test_constant_tables_are_not_saved() -> None:
    env = gymnasium.make("Taxi-v4")
    env.reset(seed=0)
    layers = get_state(env).values()
    assert not any("P" in layer for layer in layers if isinstance(layer, Mapping))


def _check_continues(build: Callable[[], gymnasium.Env], steps: int = 40) -> None:
    env = build()
    assert can_save(env)
    env.action_space.seed(1)
    actions = [env.action_space.sample() for _ in range(2 * steps)]
    env.reset(seed=3)
    _play(env, actions[:steps])
    state = get_state(env)
    copy = {name: copy_state(value) for name, value in state.items()}
    expected = _play(env, actions[steps:])
    set_state(env, copy)
    np.testing.assert_equal(_play(env, actions[steps:]), expected)
    fresh = build()
    set_state(fresh, copy)
    np.testing.assert_equal(_play(fresh, actions[steps:]), expected)


@pytest.mark.filterwarnings("ignore:.*texts:RuntimeWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of other packages
@pytest.mark.parametrize("env_id", IDS)
def test_a_restored_environment_continues_bit_for_bit(env_id: str) -> None:
    family = family_of_id(env_id)
    if family is not None:
        pytest.importorskip(family.module)
    elif env_id.endswith("-v5"):
        pytest.importorskip("mujoco")
    maker = EnvMaker(env_id)
    _check_continues(lambda: maker().env)  # type: ignore[attr-defined]  # a guard's


def test_a_restored_game_repeats_the_action_before() -> None:
    """Wherever it was saved: a quarter of the frames repeat it, which the emulator cannot save."""
    pytest.importorskip("ale_py")
    pytest.importorskip("cv2")
    maker = EnvMaker("ALE/Breakout-v5")
    env, other = maker(), maker()
    assert can_save(env.env)  # type: ignore[attr-defined]  # a guard's
    env.reset(seed=1)
    for actions in np.random.default_rng(0).integers(4, size=(40, 3)).tolist():
        _play(env, actions)
        state = get_state(env.env)  # type: ignore[attr-defined]
        set_state(other.env, state)  # type: ignore[attr-defined]
        np.testing.assert_equal(_play(other, actions), _play(env, actions))


@pytest.mark.parametrize(("probability", "grade"), [(0.25, "episode"), (0.0, "exact")])
def test_a_game_that_repeats_actions_itself_is_not_resumed_exactly(
    probability: float, grade: str
) -> None:
    pytest.importorskip("ale_py")
    kwargs = {"repeat_action_probability": probability}
    with make_vec("ALE/Pong-v5", 1, env_kwargs=kwargs, preprocess=False) as envs:
        assert envs.resume_grade == grade


@pytest.mark.filterwarnings("ignore:.*texts:RuntimeWarning")
def test_counts_by_place_are_saved() -> None:
    wrappers = pytest.importorskip("minigrid.wrappers")

    def build() -> gymnasium.Env:
        return wrappers.ImgObsWrapper(wrappers.PositionBonus(make("MiniGrid-Empty-5x5-v0")))  # type: ignore[no-any-return]  # untyped

    _check_continues(build)


def test_a_pool_of_environments_is_not_resumed_exactly() -> None:
    """Which of them has which state is not known to it."""
    pool = TaskPool([CartPoleEnv], [CartPoleEnv])
    assert not can_save(pool)
    with make_vec(partial(TaskPool, [CartPoleEnv], [CartPoleEnv]), 2) as envs:
        assert envs.resume_grade == "episode"


def _wrapped() -> gymnasium.Env:
    env = gymnasium.make("CartPole-v1", disable_env_checker=True)
    return TimeAwareObservation(NormalizeObservation(FrameStackObservation(MaskVelocity(env), 3)))


def _observed_drift() -> gymnasium.Env:
    return FrameStackObservation(SavedDrift(), 2)


def test_wrappers_are_part_of_the_state() -> None:
    _check_continues(_wrapped, steps=50)


def test_an_environment_may_save_itself() -> None:
    _check_continues(_observed_drift)


class Counter:
    """Adds to a number how often it was called."""

    calls = 0

    def __call__(self, number: Any) -> Any:
        self.calls += 1
        return number + self.calls


class SavedCounter(Counter):
    def state_dict(self) -> StateDict:
        return {"calls": self.calls}

    def load_state_dict(self, state: StateDict) -> None:
        self.calls = int(StateReader(state, "counter").number("calls"))


def _transformed(function: Callable[[Any], Any]) -> gymnasium.Env:
    env = make("CartPole-v1", disable_env_checker=True)
    return TransformReward(TransformObservation(env, function, None), function)


def test_of_functions_of_users_nothing_is_assumed() -> None:
    """They may count, or draw random numbers."""
    assert not can_save(_transformed(Counter()))
    assert not can_save(_transformed(partial(Counter())))
    assert not can_save(_transformed(lambda number: number + 1))
    vectors = SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")])
    assert can_save(vectors)
    assert not can_save(vector.TransformReward(vectors, Counter()))
    assert not can_save(vector.VectorizeTransformReward(vectors, TransformReward, func=Counter()))


def test_functions_that_save_themselves_are_part_of_the_state() -> None:
    _check_continues(lambda: _transformed(SavedCounter()))


def test_wrappers_by_name_are_part_of_the_state() -> None:
    with make_vec(
        "Pendulum-v1",
        vectorization="sync",
        rescale_observation=True,
        rescale_action=True,
        training_reward_scale=0.5,
        training_reward_clip=1.0,
    ) as envs:
        assert envs.resume_grade == "exact"


def test_images_are_no_part_of_the_state() -> None:
    pytest.importorskip("pygame")
    env = RenderCollection(gymnasium.make("CartPole-v1", render_mode="rgb_array"))
    env.reset(seed=0)
    env.step(1)
    assert len(env.frame_list) == 2
    assert "frame_list" not in get_state(env)["0"]  # type: ignore[operator]  # a dict
    set_state(env, get_state(env))
    assert len(env.frame_list) == 2


def test_of_other_environments_nothing_is_assumed() -> None:
    assert not can_save(Drift())
    with make_vec(Drift) as envs:
        assert envs.resume_grade == "episode"
        envs.reset(seed=0)
        assert set(envs.state_dict()) == {"seed", "steps"}


@pytest.mark.parametrize(
    "damage",
    [
        {"0": {}, "1": {}},
        {"0": {"a": {"unknown": 1}}, "1": {}, "2": {}},
        {"0": {"a": {"object": "builtins:list", "number": 0, "state": {}}}, "1": {}, "2": {}},
        {"0": {"a": {"object": "os:system", "number": 0, "state": {}}}, "1": {}, "2": {}},
        {"0": {"a": {"layer": 99}}, "1": {}, "2": {}},
        {"0": {}, "1": {}, "2": {"_np_random": {"generator": {"bit_generator": "MT"}}}},
    ],
)
def test_a_state_that_does_not_fit_is_refused(damage: StateDict) -> None:
    with pytest.raises(CheckpointError, match=r"does not fit|is of kind"):
        set_state(gymnasium.make("CartPole-v1"), damage)


class _SavedSuite(VecEnvSuite):
    """What can be saved is resumed exactly by every vectorizer."""

    vectorization: Literal["sync", "async", "native"]

    def make_env(self) -> VecEnv:
        envs = make_vec("CartPole-v1", 2, vectorization=self.vectorization)
        assert envs.resume_grade == "exact"
        return envs


class TestSavedSync(_SavedSuite):
    vectorization = "sync"


class TestSavedNative(_SavedSuite):
    vectorization = "native"


class TestSavedProcesses(_SavedSuite):
    vectorization = "async"


class TestSavedVectorOfTheUser(VecEnvSuite):
    autoreset_mode = AutoresetMode.NEXT_STEP

    def make_env(self) -> VecEnv:
        builders = [lambda: gymnasium.make("CartPole-v1")] * 2
        given = SyncVectorEnv(builders, autoreset_mode=self.autoreset_mode)
        envs = as_vec_env(RecordEpisodeStatistics(given))
        assert envs.resume_grade == "exact"
        return envs


class TestSavedVectorThatResetsInTheSameStep(TestSavedVectorOfTheUser):
    autoreset_mode = AutoresetMode.SAME_STEP


def test_a_vector_of_environments_that_cannot_be_saved_cannot_either() -> None:
    with as_vec_env(SyncVectorEnv([SavedDrift, Drift])) as envs:
        assert envs.resume_grade == "episode"


_FORMS: Mapping[str, Mapping[str, Any]] = {
    "sync": {"vectorization": "sync"},
    "async": {"vectorization": "async"},
    "shared": {"vectorization": "async", "num_workers": 2},
}


@pytest.mark.parametrize(("saved", "restored"), list(itertools.permutations(_FORMS, 2)))
def test_it_makes_no_difference_what_saved_the_episodes(saved: str, restored: str) -> None:
    """For environments without a name, no recipe says what a measurement had chosen."""
    actions = np.random.default_rng(0).integers(2, size=(40, 3))
    with make_vec(SavedDrift, 3, 0, **_FORMS[saved]) as envs:
        envs.reset()
        for action in actions:
            envs.step(action)
        state = envs.state_dict()
        expected = [envs.step(action) for action in actions]
    with make_vec(SavedDrift, 3, **_FORMS[restored]) as envs:
        envs.load_state_dict(state)
        for action, told in zip(actions, expected, strict=True):
            step = envs.step(action)
            np.testing.assert_array_equal(step.observation, told.observation)
            np.testing.assert_array_equal(step.reward, told.reward)


@pytest.mark.parametrize("form", _FORMS)
def test_a_reset_after_restored_episodes_is_the_one_that_would_have_come(form: str) -> None:
    with (
        make_vec("CartPole-v1", 2, 0, **_FORMS[form]) as saved,
        make_vec("CartPole-v1", 2, 0, **_FORMS[form]) as restored,
    ):
        saved.reset()
        saved.step(np.ones(2, np.int64))
        restored.load_state_dict(saved.state_dict())
        np.testing.assert_array_equal(restored.reset(), saved.reset())


def test_processes_save_what_they_loaded_and_have_not_stepped() -> None:
    """A `SyncVecEnv` does not save its last observation."""
    with make_vec(SavedDrift, 2, 0, vectorization="sync") as envs:
        envs.reset()
        state = envs.state_dict()
        expected = envs.step(np.ones(2, np.int64))
    for _ in range(2):
        with make_vec(SavedDrift, 2, vectorization="async") as envs:
            envs.load_state_dict(state)
            state = envs.state_dict()
            step = envs.step(np.ones(2, np.int64))
            np.testing.assert_array_equal(step.observation, expected.observation)


def test_episodes_of_another_number_of_environments_are_refused() -> None:
    with make_vec(SavedDrift, 3, 0) as envs:
        envs.reset()
        state = envs.state_dict()
    for vectorization in ("sync", "async"):
        with (
            make_vec(SavedDrift, 2, vectorization=vectorization) as envs,
            pytest.raises(CheckpointError, match="'2', which is not expected"),
        ):
            envs.load_state_dict(state)


def test_a_restored_process_that_dies_is_restarted_at_its_last_observation() -> None:
    with make_vec("CartPole-v1", 2, 0, vectorization="async") as envs:
        shown = envs.reset()
        state = envs.state_dict()
    with ProcessVecEnv(EnvMaker("CartPole-v1").numbered(2), max_restarts=1) as envs:
        envs.load_state_dict(state)
        envs.processes[1].kill()
        with pytest.warns(RuntimeWarning, match="environment 1"):
            step = envs.step(np.zeros(2, np.int64))
    assert isinstance(step.final_observation, np.ndarray)
    assert isinstance(shown, np.ndarray)
    np.testing.assert_array_equal(step.final_observation[1], shown[1])
    assert step.truncated.tolist() == [False, True]


@pytest.mark.parametrize("max_restarts", [0, 1])
def test_episodes_of_a_process_that_died_are_left_out(max_restarts: int) -> None:
    with ProcessVecEnv(EnvMaker("CartPole-v1").numbered(2), max_restarts=max_restarts) as envs:
        envs.reset()
        assert envs.resume_grade == "exact"
        envs.processes[0].kill()
        with pytest.warns(RuntimeWarning, match=r"signal 9; the running episodes are not saved"):
            state = envs.state_dict()
        assert "episodes" not in state
        assert envs.resume_grade == "episode"  # type: ignore[comparison-overlap]  # it changes
        if max_restarts == 0:
            with pytest.raises(EnvironmentFaultError, match="environment 0"):
                envs.step(np.zeros(2, np.int64))
            return
        with pytest.warns(RuntimeWarning, match="started again"):
            step = envs.step(np.zeros(2, np.int64))
        assert step.truncated.tolist() == [True, False]
        assert "episodes" in envs.state_dict()
        assert envs.resume_grade == "exact"


class Slow(SavedDrift):
    def state_dict(self) -> StateDict:
        time.sleep(1.0)
        return super().state_dict()


def test_a_reply_that_comes_too_late_is_not_taken_for_a_steps() -> None:
    with ProcessVecEnv([Slow, SavedDrift], timeout_s=0.5, max_restarts=1) as envs:
        envs.reset()
        with pytest.warns(RuntimeWarning, match=r"within 0\.5 s.* are not saved"):
            envs.state_dict()
        time.sleep(1.0)  # by then, the late reply would have come
        with pytest.warns(RuntimeWarning, match="environment 0: .* started again"):
            step = envs.step(np.zeros(2, np.int64))
        assert step.truncated.tolist() == [True, False]


@pytest.mark.parametrize("wrong", [{"steps": -5}, {"seed": -1}, {"seed": True}, {"steps": 1.5}])
def test_numbers_that_no_state_has_are_refused(wrong: StateDict) -> None:
    with make_vec("CartPole-v1", 2, seed=0) as envs:
        state = {**envs.state_dict(), **wrong}
        with pytest.raises(CheckpointError, match=f"CartPole-v1: '{next(iter(wrong))}'"):
            envs.load_state_dict(state)


def test_an_environment_that_was_built_to_ask_for_goals_is_closed() -> None:
    closed = []

    class Closing(gymnasium.Wrapper):
        def close(self) -> None:
            closed.append(self)
            super().close()

    def build() -> gymnasium.Env:
        return Closing(make("CartPole-v1"))

    with ProcessVecEnv([build]) as envs:
        assert envs.goal_functions() is None
        assert len(closed) == 1
