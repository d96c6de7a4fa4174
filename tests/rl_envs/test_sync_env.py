import pickle
from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import partial
from typing import Any, cast

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit

from rl_core.env import VecEnv, as_numpy
from rl_core.errors import ConfigError, DataError, EnvironmentFaultError, SpaceError
from rl_core.types import Array, ArrayObservation
from rl_envs import EnvGuard, EnvMaker, GymVecEnv, SyncVecEnv, as_vec_env, make_gym_vec, make_vec
from rl_envs.vector.sync import LazyInfo
from rl_testing.envs import EnvFunctions, VecEnvSuite
from rl_testing.scripted import CountingEnv, Info
from support.envs import FaultName, FaultyEnv

ZEROS = np.zeros(2, np.int64)


class TestSync(VecEnvSuite):
    def make_env(self) -> VecEnv:
        return SyncVecEnv([gymnasium.make("CartPole-v1") for _ in range(3)])

    def vectorize(self, env_functions: EnvFunctions) -> VecEnv:
        return SyncVecEnv([build() for build in env_functions])


class TestSyncWithContinuousActions(VecEnvSuite):
    def make_env(self) -> VecEnv:
        return make_gym_vec("Pendulum-v1", 2, max_episode_steps=20)


class TestSyncWithNestedObservations(VecEnvSuite):
    may_end_both_ways = True

    def make_env(self) -> VecEnv:
        return make_gym_vec(TellingEnv, 3)


class TestSyncWithDictObservations(VecEnvSuite):
    may_end_both_ways = True

    def make_env(self) -> VecEnv:
        return make_gym_vec(partial(TellingEnv, "flat"), 3)


FLAT = spaces.Dict(
    {
        "image": spaces.Box(0, 255, (4, 4, 1), np.uint8),
        "position": spaces.Box(-np.inf, np.inf, (2,), np.float64),
        "mask": spaces.MultiBinary(2),
    }
)
SPACES: Mapping[str, gymnasium.Space[Any]] = {
    "nested": spaces.Dict({"parts": spaces.Tuple([FLAT, spaces.Discrete(5)]), "own": FLAT}),
    "flat": FLAT,
    "discrete": spaces.Discrete(5, start=-2),
    "narrow": spaces.Box(-3, 9, (2,), np.int8),
    "unsigned": spaces.Box(0, 9, (2,), np.uint16),
    "doubles": spaces.Box(-1.0, 1.0, (2, 3), np.float64),
    "scalar": spaces.Box(-1.0, 1.0, (), np.float64),
    "wide": spaces.MultiDiscrete(np.array([[3, 2], [4, 5]])),
}


class TellingEnv(gymnasium.Env):
    """A random walk of random length that tells something of every kind, at times."""

    action_space = spaces.MultiDiscrete([2, 3])

    def __init__(self, kind: str = "nested") -> None:
        self.observation_space = deepcopy(SPACES[kind])
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[object, Info]:
        super().reset(seed=seed)
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        self.steps = 0
        return self.observation_space.sample(), {"begun": float(self.np_random.random())}

    def step(self, action: object) -> tuple[object, float, bool, bool, Info]:
        self.steps += 1
        generator = self.np_random
        told: Info = {
            "number": np.float64(generator.random()),
            "vector": generator.random(2),
            "text": "abc"[: self.steps],
            "nested": {"steps": self.steps, "none": None},
        }
        if self.steps % 2:
            told["is_success"] = bool(generator.integers(2))
        ends, is_cut = (bool(flag) for flag in generator.random(2) < 0.2)
        return self.observation_space.sample(), float(generator.random()), ends, is_cut, told


def _same(ours: object, theirs: object, where: str) -> None:
    if isinstance(theirs, Mapping):
        assert isinstance(ours, Mapping)
        assert list(ours) == list(theirs), where
        for key, value in theirs.items():
            _same(ours[key], value, f"{where}/{key}")
    elif isinstance(theirs, np.ndarray) and theirs.dtype != object:
        assert isinstance(ours, np.ndarray)
        assert ours.dtype == theirs.dtype, where
        np.testing.assert_array_equal(ours, theirs, err_msg=where)
    elif isinstance(theirs, np.ndarray | tuple):
        for our_part, their_part in zip(cast("Array", ours), theirs, strict=True):
            _same(our_part, their_part, where)
    else:
        assert ours == theirs, where


@pytest.mark.parametrize("kind", SPACES)
def test_steps_and_infos_are_those_of_gymnasiums_own_vectorizer(kind: str) -> None:
    maker = EnvMaker(TellingEnv, {"kind": kind})
    gym = SyncVectorEnv(maker.numbered(3), autoreset_mode=AutoresetMode.SAME_STEP)
    with maker.sync(3, seed=5) as ours, GymVecEnv(gym, seed=5) as theirs:
        assert isinstance(ours, SyncVecEnv)
        _same(ours.reset(), theirs.reset(), "reset")
        num_ended = 0
        for _ in range(60):
            action = np.zeros((3, 2), np.int64)
            our_step, their_step = ours.step(action), theirs.step(action)
            num_ended += their_step.final_observation is not None
            for name in our_step.__slots__:
                _same(getattr(our_step, name), getattr(their_step, name), name)
            _same(our_step.final_info, their_step.final_info, "final_info")
        assert 5 < num_ended < 55
        assert ours.state_dict() == theirs.state_dict()
        _same(ours.reset(), theirs.reset(), "reset")
        _same(ours.reset(seed=2), theirs.reset(seed=2), "reset")


class ChangedReturnEnv(CountingEnv):
    """A counter whose returned values can be changed."""

    def __init__(self, change: Callable[..., tuple[Any, ...]], length: int = 9) -> None:
        super().__init__([length], index=1)
        self.change = change

    def step(self, action: object) -> tuple[Any, Any, bool, bool, Info]:
        return cast("tuple[Any, Any, bool, bool, Info]", self.change(*super().step(action)))


def _first(envs: VecEnv) -> list[object]:
    envs.reset()
    step = envs.step(ZEROS[: envs.num_envs])
    assert isinstance(step.observation, np.ndarray)
    assert step.observation.dtype == np.float32
    return [step.observation.tolist(), *(np.asarray(part).tolist() for part in _rows(step))]


def _rows(step: Any) -> tuple[Array, Array, Array]:
    return step.reward, step.terminated, step.truncated


@pytest.mark.parametrize(
    "change",
    [
        lambda o, r, e, c, i: (o.tolist(), int(r), np.bool_(e), np.bool_(c), i),
        lambda o, r, e, c, i: (torch.from_numpy(o), np.int32(r), int(e), int(c), i),
        lambda o, r, e, c, i: (o.astype(np.int16), np.array(r), np.array(e), c, Info(i)),
        lambda o, r, e, c, i: (o.astype(np.float64)[::-1][::-1], np.float16(r), e, c, i),
    ],
)
def test_returned_values_of_unusual_types_are_accepted(
    change: Callable[..., tuple[Any, ...]],
) -> None:
    expected = _first(SyncVecEnv([ChangedReturnEnv(lambda *answer: answer)] * 1))
    assert _first(SyncVecEnv([ChangedReturnEnv(change)])) == expected


def test_numbers_that_would_be_cut_are_refused_and_stay_refused() -> None:
    def fraction(
        observation: object, reward: float, ends: bool, is_cut: bool, info: Info
    ) -> tuple[object, ...]:
        return np.array([0.5, 1.5, 2.5]), reward, ends, is_cut, info

    for length in (1, 9):
        env = ChangedReturnEnv(fraction, length)
        env.observation_space = spaces.MultiDiscrete([5, 5, 5])
        envs = SyncVecEnv([env], check=False)
        for _ in range(3):
            env.reset = lambda **kwargs: (np.zeros(3, np.int64), {})  # type: ignore[method-assign]  # numbers
            envs.reset()
            with pytest.raises(
                EnvironmentFaultError, match=r"environment 0: the observation .* dtype float64"
            ):
                envs.step(ZEROS[:1])


class WideEnv(gymnasium.Env):
    """Declares small integers and returns what it is given, as NumPy's usual ones."""

    action_space = spaces.Discrete(2)

    def __init__(self, dtype: type[np.signedinteger], values: list[int]) -> None:
        self.observation_space = spaces.Box(np.iinfo(dtype).min, np.iinfo(dtype).max, (2,), dtype)
        self.values = values

    def reset(
        self, *, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[Array, Info]:
        return np.zeros(2, self.observation_space.dtype), {}

    def step(self, action: object) -> tuple[Array, float, bool, bool, Info]:
        return np.array(self.values), 0.0, False, False, {}


@pytest.mark.parametrize("stack_size", [1, 2])
@pytest.mark.parametrize(
    ("dtype", "values", "fits"),
    [
        (np.int8, [100, -128], True),
        (np.int8, [100, 128], False),
        (np.int32, [0, 2**40 + 7], False),
    ],
)
def test_integers_that_would_wrap_around_are_refused(
    dtype: type[np.signedinteger], values: list[int], fits: bool, stack_size: int
) -> None:
    with make_vec(partial(WideEnv, dtype, values), 2, stack_size=stack_size) as envs:
        envs.reset(seed=0)
        if fits:
            newest = as_numpy(cast("Array", envs.step(np.zeros(2, np.int64)).observation))
            assert newest.reshape(2, -1, 2)[:, -1].tolist() == [values, values]
            return
        with pytest.raises(EnvironmentFaultError, match=rf"int64.*{dtype.__name__}"):
            envs.step(np.zeros(2, np.int64))


def test_integers_that_wrap_around_after_some_that_fit_are_refused() -> None:
    env = WideEnv(np.int8, [5, 5])
    envs = SyncVecEnv([env])
    envs.reset()
    for _ in range(2):
        envs.step(np.zeros(1, np.int64))
    env.values = [5, 200]
    with pytest.raises(EnvironmentFaultError, match="int64; expected int8"):
        envs.step(np.zeros(1, np.int64))


def test_a_wrong_dtype_in_the_middle_of_an_episode_is_named() -> None:
    good, bad = CountingEnv([9]), FaultyEnv(CountingEnv([9]), "wrong_dtype", at_step=2)
    envs = SyncVecEnv([good, bad])
    envs.reset()
    envs.step(ZEROS)
    with pytest.raises(
        EnvironmentFaultError, match=r"CountingEnv, step 2, environment 1: .*the observation .* <U"
    ):
        envs.step(ZEROS)


def test_a_row_is_never_stretched_to_its_place() -> None:
    def shorter(observation: Array, *rest: Any) -> tuple[Any, ...]:
        return observation if observation[2] < 3 else observation[:1], *rest

    envs = SyncVecEnv([ChangedReturnEnv(shorter)])
    envs.reset()
    envs.step(ZEROS[:1])
    envs.step(ZEROS[:1])
    with pytest.raises(EnvironmentFaultError, match=r"step 3, environment 0: .*shape \(1,\)"):
        envs.step(ZEROS[:1])


FAULTS: Mapping[FaultName, str] = {
    "wrong_shape": r"shape \(4,\)",
    "none_observation": "the observation is None",
    "none_info": "returned None as info",
    "ragged_observation": "the observation is not an array",
    "four_values": "returned 4 values; Gymnasium expects 5",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_cannot_be_taken_is_refused_without_checks_too(fault: FaultName) -> None:
    envs = SyncVecEnv([FaultyEnv(CountingEnv([9]), fault, at_step=2)], check=False)
    envs.reset()
    envs.step(ZEROS[:1])
    expected = FAULTS[fault].replace("is None", "has shape")
    with pytest.raises(EnvironmentFaultError, match=f"step 2, environment 0.*{expected}"):
        envs.step(ZEROS[:1])
    envs.reset()
    envs.step(ZEROS[:1])


def test_a_reward_that_is_no_number_is_refused_without_checks_too() -> None:
    envs = SyncVecEnv([ChangedReturnEnv(lambda o, r, e, c, i: (o, "much", e, c, i))], check=False)
    envs.reset()
    with pytest.raises(EnvironmentFaultError, match=r"step 1, environment 0: .*could not convert"):
        envs.step(ZEROS[:1])


def test_a_fault_while_an_ended_row_resets_names_it() -> None:
    envs = SyncVecEnv([CountingEnv([9]), FaultyEnv(CountingEnv([2]), "raise_reset", at_step=2)])
    envs.reset()
    envs.step(ZEROS)
    with pytest.raises(
        EnvironmentFaultError, match=r"step 2, environment 1: reset\(\) raised RuntimeError"
    ) as caught:
        envs.step(ZEROS)
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_after_a_reset_that_failed_there_is_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    env = CountingEnv([9])
    envs = SyncVecEnv([env])
    envs.reset()
    with monkeypatch.context() as failing:
        failing.setattr(env, "reset", lambda **kwargs: 1 / 0)
        with pytest.raises(EnvironmentFaultError, match=r"reset\(\) raised ZeroDivisionError"):
            envs.reset()
    with pytest.raises(EnvironmentFaultError, match=r"was not reset; call reset\(\) first"):
        envs.step(ZEROS[:1])
    envs.reset()
    envs.step(ZEROS[:1])


def test_a_reset_that_returns_no_info_is_refused() -> None:
    env = CountingEnv([9])
    env.reset = lambda **kwargs: (np.zeros(3, np.float32), None)  # type: ignore[assignment, method-assign]  # what is tested
    with pytest.raises(EnvironmentFaultError, match=r"environment 0: reset\(\) returned None"):
        SyncVecEnv([env]).reset()


def test_ctrl_c_in_an_environment_is_no_fault_of_its() -> None:
    def interrupted(*answer: object) -> tuple[object, ...]:
        raise KeyboardInterrupt

    envs = SyncVecEnv([ChangedReturnEnv(interrupted)])
    envs.reset()
    with pytest.raises(KeyboardInterrupt):
        envs.step(ZEROS[:1])


@pytest.mark.parametrize(
    ("space", "good", "bad"),
    [
        (spaces.Discrete(5, start=-1), np.int64(3), np.int64(4)),
        (spaces.MultiDiscrete([2, 3]), np.array([1, 2]), np.array([2, 0])),
        (spaces.MultiBinary(2), np.array([1, 0], np.int8), np.array([-1, 0], np.int8)),
    ],
)
def test_a_category_that_does_not_exist_is_refused_in_whichever_step_it_comes(
    space: gymnasium.Space[Any], good: object, bad: object
) -> None:
    told = iter([good, good, bad])
    env = ChangedReturnEnv(lambda o, *rest: (next(told), *rest))
    env.observation_space = space
    env.reset = lambda **kwargs: (good, {})  # type: ignore[assignment, method-assign]  # a category
    envs = SyncVecEnv([env])
    envs.reset()
    envs.step(ZEROS[:1])
    envs.step(ZEROS[:1])
    with pytest.raises(
        EnvironmentFaultError, match=r"step 3, environment 0: the observation holds"
    ):
        envs.step(ZEROS[:1])


class OneBoard(CountingEnv):
    """Returns the same info dict every time, overwritten."""

    def __init__(self) -> None:
        super().__init__([3])
        self.board: Info = {}

    def step(self, action: object) -> tuple[Array, Any, bool, bool, Info]:
        *answer, _ = super().step(action)
        self.board["steps"] = self.steps
        return *answer, self.board  # type: ignore[return-value]  # mypy cannot count these


def test_infos_are_kept_apart_until_somebody_reads_them() -> None:
    envs = SyncVecEnv([OneBoard()])
    envs.reset()
    steps = [envs.step(ZEROS[:1]) for _ in range(4)]
    told = [np.asarray(step.final_info.get("steps")).tolist() for step in steps]
    assert told == [[1], [2], [3], [1]]
    assert list(steps[2].info) == ["final_obs", "_final_obs", "final_info", "_final_info"]
    assert len(pickle.loads(pickle.dumps(steps[2])).info) == 4
    assert "steps" not in steps[2].info
    assert repr(steps[0].info) == repr({"steps": np.array([1]), "_steps": np.array([True])})
    assert len(dict(LazyInfo([{3: 4}], {}))) == 2  # type: ignore[dict-item]  # keys of any kind


@pytest.mark.parametrize(
    ("told", "joined"),
    [
        ((1, None), [1, None]),
        ((None, 1), [None, 1]),
        ((np.zeros(2), np.ones(3)), [[0.0, 0.0], [1.0, 1.0, 1.0]]),
        (({"a": 1}, 3), [{"a": 1}, 3]),
        ((3, {"a": 1}), [3, {"a": 1}]),
        ((2**80, 1), [2**80, 1]),
        ((1, 0.5), [1, 0.5]),
        ((False, 3.5), [False, 3.5]),
        ((np.zeros(2, int), np.array([0.5, 0.5])), [[0, 0], [0.5, 0.5]]),
    ],
)
def test_any_infos_go_together(told: tuple[object, object], joined: list[object]) -> None:
    """As objects, where they fit no common array; `success` looks at its own key alone."""

    class Winner(CountingEnv):
        def step(self, action: object) -> tuple[Array, Any, bool, bool, Info]:
            *answer, _ = super().step(action)
            info = {"winner": told[self.index], "is_success": self.index == 1}
            return *answer, info  # type: ignore[return-value]  # mypy cannot count these

    envs = SyncVecEnv([Winner([1], index=0), Winner([1], index=1)])
    envs.reset()
    step = envs.step(ZEROS)
    assert [step.success(0), step.success(1)] == [False, True]
    winner: Any = step.final_info["winner"]
    assert [one.tolist() if isinstance(one, np.ndarray) else one for one in winner] == joined
    assert as_numpy(step.final_info["_winner"]).tolist() == [True, True]
    assert list(step.final_info) == ["winner", "_winner", "is_success", "_is_success"]


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
def test_a_number_too_large_for_float32_is_told_from_an_infinite_one() -> None:
    env = ChangedReturnEnv(lambda o, *rest: (np.full(1, 1e200), *rest))
    env.observation_space = spaces.Box(-1e300, 1e300, (1,), np.float64)
    env.reset = lambda **kwargs: (np.zeros(1), {})  # type: ignore[method-assign]  # of another size
    envs = SyncVecEnv([env])
    envs.reset()
    with pytest.raises(EnvironmentFaultError, match=r"inf at \[0\]; .* finite numbers in float32"):
        envs.step(ZEROS[:1])


@pytest.mark.parametrize("wrap", [lambda env: env, gymnasium.Wrapper])
def test_one_environment_cannot_be_several(
    wrap: Callable[[gymnasium.Env], gymnasium.Env],
) -> None:
    shared = CountingEnv([3])
    forms: list[dict[str, Any]] = [
        {"vectorization": "sync"},
        {"vectorization": "async", "num_workers": 1},
    ]
    for options in forms:
        with pytest.raises(ConfigError, match=r"CountingEnv.* given more than once"):
            make_vec(lambda: wrap(shared), 3, **options)


def test_a_wrong_action_is_no_step() -> None:
    envs = make_gym_vec("Pendulum-v1", 2)
    envs.reset(seed=0)
    for wrong in (np.zeros((2, 2)), np.zeros((3, 1)), np.zeros(2), torch.zeros(1, 1)):
        with pytest.raises(DataError, match=r"expected \(2, 1\)"):
            envs.step(wrong)
    assert envs.state_dict()["steps"] == 0
    numbers = np.array([[0.5], [-0.5]], np.float32)
    by_array = envs.step(numbers).observation
    envs.reset(seed=0)
    np.testing.assert_array_equal(
        cast("Array", envs.step(torch.from_numpy(numbers)).observation), cast("Array", by_array)
    )


def test_nested_actions_go_to_the_environment_they_are_for_from_one_array() -> None:
    class Twofold(CountingEnv):
        taken: object = None

        def step(self, action: object) -> tuple[Array, Any, bool, bool, Info]:
            self.taken = action
            return super().step(action)

    rows = [Twofold([9]), Twofold([9])]
    for env in rows:
        env.action_space = spaces.Tuple([spaces.Discrete(3), spaces.Discrete(3)])
    envs = SyncVecEnv(rows)
    envs.reset()
    envs.step(np.array([[0, 2], [1, 1]]))
    assert [env.taken for env in rows] == [(0, 2), (1, 1)]


def test_all_are_closed_before_the_first_fault_is_raised() -> None:
    closed: list[int] = []

    class Closing(CountingEnv):
        def close(self) -> None:
            closed.append(self.index)
            if self.index < 2:
                raise OSError(f"window {self.index}")

    envs = SyncVecEnv([Closing([9], index=index) for index in range(3)])
    with pytest.raises(EnvironmentFaultError, match=r"environment 0: .* OSError: window 0"):
        envs.close()
    envs.close()
    assert closed == [0, 1, 2]


def test_environments_that_step_together_share_their_spaces() -> None:
    with pytest.raises(SpaceError, match="action space of environment 1"):
        SyncVecEnv(_unlike("action_space"))
    with pytest.raises(SpaceError, match="observation space of environment 1"):
        SyncVecEnv(_unlike("observation_space"))
    with pytest.raises(ConfigError, match="no environments"):
        SyncVecEnv([])


def _unlike(attribute: str) -> list[gymnasium.Env]:
    envs: list[gymnasium.Env] = [CountingEnv([9]), CountingEnv([9])]
    setattr(envs[1], attribute, spaces.Box(0.0, 1.0, (3,)))
    return envs


def test_a_single_environment_and_own_functions_are_stepped_directly() -> None:
    env = CountingEnv([9])
    envs = as_vec_env(env)
    assert isinstance(envs, SyncVecEnv)
    assert envs.envs == (env,)
    guarded = EnvGuard(env, 0)
    assert SyncVecEnv([guarded]).envs == (env,)
    assert isinstance(make_gym_vec(partial(CountingEnv, [9])), SyncVecEnv)
    vector = SyncVectorEnv([partial(CountingEnv, [9])])
    assert isinstance(as_vec_env(vector), GymVecEnv)


def test_what_is_known_of_the_environments() -> None:
    with make_gym_vec("Pendulum-v1", 2, seed=1) as envs:
        assert (envs.spec_id, envs.max_episode_steps, envs.num_envs) == ("Pendulum-v1", 200, 2)
        assert envs.component is not None
        assert envs.component.kwargs["num_envs"] == 2
    twice = TimeLimit(TimeLimit(CountingEnv([9]), 100), 50)
    assert SyncVecEnv([twice]).max_episode_steps == 50
    observation: ArrayObservation = SyncVecEnv([CountingEnv([9])]).reset()
    assert isinstance(observation, np.ndarray)
