import sys
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import partial
from typing import Any, cast

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space
from torch import Tensor

from rl_core.env import VecEnv, as_numpy
from rl_core.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    EnvironmentFaultError,
    MissingExtraError,
)
from rl_core.stateful import Stateful
from rl_core.types import Array, ArrayObservation, StateDict
from rl_envs import EnvMaker, GymVecEnv, SyncVecEnv, as_vec_env, find_spec, make_gym_vec, make_vec
from rl_envs.vector.base import spread_seed
from rl_envs.vector.gymnasium_vector import _DEFERRED_STEPS, _TorchArrays
from rl_testing.envs import EnvFunctions, VecEnvSuite
from rl_testing.scripted import CountingEnv, IdentityEnv, MemoryCueEnv
from support.envs import FaultyEnv

ZEROS = np.zeros(2, np.int64)


def _sync(env_functions: EnvFunctions, mode: AutoresetMode, *, copy: bool = True) -> GymVecEnv:
    guarded = [partial(EnvMaker(build), index) for index, build in enumerate(env_functions)]
    return GymVecEnv(SyncVectorEnv(guarded, copy=copy, autoreset_mode=mode))


def _cart_poles(mode: AutoresetMode, *, copy: bool = True) -> GymVecEnv:
    return _sync([partial(gymnasium.make, "CartPole-v1")] * 3, mode, copy=copy)


class TestSameStep(VecEnvSuite):
    def make_env(self) -> VecEnv:
        return _cart_poles(AutoresetMode.SAME_STEP)

    def vectorize(self, env_functions: EnvFunctions) -> VecEnv:
        return _sync(env_functions, AutoresetMode.SAME_STEP)


class TestNextStepWithoutCopies(VecEnvSuite):
    def make_env(self) -> VecEnv:
        return _cart_poles(AutoresetMode.NEXT_STEP, copy=False)

    def vectorize(self, env_functions: EnvFunctions) -> VecEnv:
        return _sync(env_functions, AutoresetMode.NEXT_STEP, copy=False)


class TestDisabled(VecEnvSuite):
    def make_env(self) -> VecEnv:
        return _cart_poles(AutoresetMode.DISABLED)

    def vectorize(self, env_functions: EnvFunctions) -> VecEnv:
        return _sync(env_functions, AutoresetMode.DISABLED)


class TestNativeCartPole(VecEnvSuite):
    def make_env(self) -> VecEnv:
        return make_gym_vec("CartPole-v1", 3)


class TestTorch(VecEnvSuite):
    def make_env(self) -> VecEnv:
        return GymVecEnv(TensorCartPoles(gymnasium.make_vec("CartPole-v1", num_envs=3)))


class TensorCartPoles(VectorWrapper):
    """Returns tensors, as environments on an accelerator do."""

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        return torch.from_numpy(observation), info

    def step(self, actions: Tensor) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        *answer, info = self.env.step(actions.numpy())
        observation, reward, terminated, truncated = (torch.from_numpy(part) for part in answer)
        return observation, reward, terminated, truncated, info


class TestNestedObservations(VecEnvSuite):
    def make_env(self) -> VecEnv:
        return make_gym_vec(NestedEnv, 3)


class NestedEnv(gymnasium.Env):
    """A random walk of three steps, told in every kind of observation at once."""

    observation_space = spaces.Dict(
        {
            "image": spaces.Box(0, 255, (4, 4, 1), np.uint8),
            "pair": spaces.Tuple(
                [spaces.Discrete(5), spaces.Box(-np.inf, np.inf, (2,), np.float64)]
            ),
            "action_mask": spaces.MultiBinary(2),
        }
    )
    action_space = spaces.MultiDiscrete([2, 3])

    def __init__(self) -> None:
        self.steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[object, dict[str, object]]:
        super().reset(seed=seed)
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action: object) -> tuple[object, float, bool, bool, dict[str, object]]:
        self.steps += 1
        return self.observation_space.sample(), 1.0, False, self.steps == 3, {}


class LiveEnv(VectorEnv):
    """Counts in place: hands out its own state, and ends every row in its third step."""

    def __init__(
        self,
        mode: object = AutoresetMode.SAME_STEP,
        *,
        as_tensor: bool = False,
        spoil: Mapping[str, Any] | None = None,
    ) -> None:
        self.num_envs = 2
        self.metadata = {} if mode is None else {"autoreset_mode": mode}
        self.single_observation_space = spaces.Box(0.0, 9.0, (2,), np.float32)
        self.single_action_space = spaces.Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, 2)
        self.action_space = batch_space(self.single_action_space, 2)
        self.as_tensor = as_tensor
        self.spoil = dict(spoil or {})
        self.state: Any = torch.zeros(2, 2) if as_tensor else np.zeros((2, 2), np.float32)
        self.reward: Any = torch.zeros(2) if as_tensor else np.zeros(2)
        self.seed: object = None

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.seed = seed
        self.state[:] = 0.0
        return self.state, {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        self.state += 1.0
        self.reward += 1.0
        ended = self.state[:, 0] == 3.0
        info = {"final_obs": self.state * 1.0}
        self.state[ended] = 0.0
        answer = {
            "observation": self.state,
            "reward": self.reward,
            "terminated": ended,
            "truncated": ended & False,
            "info": info,
            **self.spoil,
        }
        return cast("tuple[Any, Any, Any, Any, dict[str, Any]]", tuple(answer.values()))


def _values(observation: ArrayObservation | None) -> list[object]:
    assert observation is not None
    assert not isinstance(observation, Mapping)
    return cast("list[object]", observation.tolist())


def test_a_batched_final_observation_is_taken_where_rows_ended() -> None:
    envs = GymVecEnv(LiveEnv())
    envs.reset()
    steps = [envs.step(ZEROS) for _ in range(4)]
    assert [step.final_observation is None for step in steps] == [True, True, False, True]
    assert _values(steps[2].final_observation) == [[3.0, 3.0], [3.0, 3.0]]
    assert _values(steps[2].observation) == [[0.0, 0.0], [0.0, 0.0]]
    assert [_values(step.reward) for step in steps] == [[float(n)] * 2 for n in (1, 2, 3, 4)]


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
@pytest.mark.parametrize("as_tensor", [False, True])
def test_arrays_are_of_the_same_kind_after_a_restart(mode: AutoresetMode, as_tensor: bool) -> None:
    class SavedEnv(LiveEnv):
        def state_dict(self) -> StateDict:
            return {"state": torch.as_tensor(self.state).clone()}

        def load_state_dict(self, state: StateDict) -> None:
            self.state[:] = state["state"]

        def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
            assert isinstance(actions, Tensor) is as_tensor
            return super().step(actions)

    whole, resumed = (GymVecEnv(SavedEnv(mode, as_tensor=as_tensor)) for _ in range(2))
    whole.reset()
    for _ in range(3):  # in the third step both rows end
        whole.step(ZEROS)
    resumed.load_state_dict(whole.state_dict())
    for _ in range(3):
        expected, step = whole.step(ZEROS), resumed.step(ZEROS)
        assert type(step.reward) is type(expected.reward)
        assert _values(step.observation) == _values(expected.observation)
        assert _values(step.valid) == _values(expected.valid)


@pytest.mark.parametrize("form", [np.asarray, list])
def test_only_the_ended_rows_of_a_final_observation_come_from_it(form: Any) -> None:
    ended = np.array([True, False])
    final = np.full((2, 2), 7.0)
    spoil = {"terminated": ended, "info": {"final_obs": form(final)}}
    envs = GymVecEnv(LiveEnv(spoil=spoil))
    envs.reset()
    step = envs.step(ZEROS)
    assert _values(step.final_observation) == [[7.0, 7.0], [1.0, 1.0]]
    assert _values(step.successor) == _values(step.final_observation)


def test_tensors_stay_tensors_and_are_copied() -> None:
    envs = GymVecEnv(LiveEnv(as_tensor=True))
    first = envs.reset()
    assert envs.array_type == "torch"
    steps = [envs.step(torch.zeros(2, dtype=torch.int64)) for _ in range(3)]
    assert _values(first) == [[0.0, 0.0], [0.0, 0.0]]
    assert _values(steps[1].observation) == [[2.0, 2.0], [2.0, 2.0]]
    assert _values(steps[2].final_observation) == [[3.0, 3.0], [3.0, 3.0]]
    assert all(isinstance(step.valid, Tensor) for step in steps)
    assert _values(steps[2].terminated) == [True, True]


def test_a_missing_autoreset_mode_means_next_step() -> None:
    envs = GymVecEnv(LiveEnv(mode=None))
    envs.reset()
    valid = [_values(envs.step(ZEROS).valid) for _ in range(5)]
    assert valid == [[True, True]] * 3 + [[False, False], [True, True]]


@pytest.mark.parametrize("as_tensor", [False, True])
@pytest.mark.parametrize("flag", ["terminated", "truncated"])
def test_a_row_that_only_reset_is_not_rewarded_and_does_not_end(flag: str, as_tensor: bool) -> None:
    ended = torch.tensor([True, False]) if as_tensor else np.array([True, False])
    envs = GymVecEnv(LiveEnv("NextStep", as_tensor=as_tensor, spoil={flag: ended}))
    envs.reset()
    first, second, third = (envs.step(ZEROS) for _ in range(3))
    assert _values(getattr(first, flag)) == _values(getattr(third, flag)) == [True, False]
    assert _values(first.valid) == _values(third.valid) == [True, True]
    assert _values(second.valid) == [False, True]
    assert _values(getattr(second, flag)) == [False, False]
    assert _values(second.reward) == [0.0, 2.0]
    assert all(step.final_observation is None for step in (first, second, third))
    envs.reset()
    assert _values(envs.step(ZEROS).valid) == [True, True]  # all rows have begun already


def test_of_a_reset_only_the_ended_rows_are_taken() -> None:
    spoil = {"terminated": np.array([True, False])}
    envs = GymVecEnv(LiveEnv(AutoresetMode.DISABLED, spoil=spoil))  # which resets all rows
    envs.reset()
    step = envs.step(ZEROS)
    assert _values(step.observation) == [[0.0, 0.0], [1.0, 1.0]]
    assert _values(step.final_observation) == [[1.0, 1.0], [1.0, 1.0]]


def test_an_unknown_autoreset_mode_is_refused() -> None:
    with pytest.raises(ConfigError, match="autoreset_mode='Sometimes'"):
        GymVecEnv(LiveEnv("Sometimes"))


def test_same_step_mode_owes_a_final_observation() -> None:
    envs = GymVecEnv(LiveEnv(spoil={"info": {}}))
    envs.reset()
    envs.step(ZEROS)
    envs.step(ZEROS)
    with pytest.raises(EnvironmentFaultError, match=r"step 3, environment 0.*final_obs"):
        envs.step(ZEROS)


NAN = float("nan")
SPOILT: Sequence[tuple[dict[str, object], str]] = [
    ({"observation": np.full((2, 2), NAN)}, r"environment 0: the observation is nan at \[0\]"),
    ({"reward": np.array([0.0, NAN])}, "environment 1: the reward is nan"),
    ({"reward": np.zeros(3)}, r"the reward has shape \(3,\); expected \(2,\)"),
    ({"reward": np.zeros((2, 1))}, r"the reward has shape \(2, 1\)"),
    ({"observation": np.zeros((2, 3))}, r"the observation has shape \(2, 3\)"),
    ({"observation": np.zeros((2, 2), np.complex64)}, "the observation has dtype complex64"),
    ({"observation": None}, r"the observation has shape \(\)"),
    ({"observation": [[0.0], [0.0, 1.0]]}, "the observation is not an array"),
    ({"truncated": np.zeros(2)}, "truncated has dtype float64; expected bool"),
    ({"info": None}, r"step\(\) returned None as info; expected a dict"),
]


@pytest.mark.parametrize(("spoil", "message"), SPOILT)
def test_what_does_not_fit_is_refused_by_field(spoil: dict[str, object], message: str) -> None:
    envs = GymVecEnv(LiveEnv(spoil=spoil), name="Live")
    envs.reset()
    with pytest.raises(EnvironmentFaultError, match=f"^Live, step 1.*{message}"):
        envs.step(ZEROS)


def test_tensors_that_do_not_fit_are_refused_by_field() -> None:
    live = LiveEnv(as_tensor=True, spoil={"observation": torch.zeros(2, 2, dtype=torch.complex64)})
    envs = GymVecEnv(live)
    envs.reset()
    with pytest.raises(EnvironmentFaultError, match=r"the observation has dtype torch\.complex64"):
        envs.step(ZEROS)
    live.spoil["observation"] = [[0.0], [0.0, 1.0]]
    envs.reset()
    with pytest.raises(EnvironmentFaultError, match="the observation is not an array"):
        envs.step(ZEROS)


def test_another_number_of_returned_values_is_refused() -> None:
    live = LiveEnv()
    envs = GymVecEnv(live, name="Live")
    envs.reset()
    live.step = lambda action: (np.zeros((2, 2)), np.zeros(2), np.zeros(2), {})  # type: ignore[assignment, method-assign, return-value]  # what is tested
    with pytest.raises(EnvironmentFaultError, match=r"^Live, step 1: step\(\) returned 4 values"):
        envs.step(ZEROS)
    live.reset = lambda **kwargs: np.zeros((2, 2))  # type: ignore[assignment, method-assign]  # what is tested
    with pytest.raises(EnvironmentFaultError, match=r"reset\(\) returned one ndarray; .* 2 values"):
        envs.reset()


def test_a_final_observation_must_be_finite_too() -> None:
    final = np.array([[1.0, 1.0], [np.inf, 1.0]])
    live = LiveEnv()
    envs = GymVecEnv(live)
    envs.reset()
    envs.step(ZEROS)
    live.spoil = {"terminated": np.array([False, True]), "info": {"final_obs": final}}
    with pytest.raises(EnvironmentFaultError, match="environment 1: the observation is inf"):
        envs.step(ZEROS)


def test_large_but_finite_observations_pass() -> None:
    envs = GymVecEnv(LiveEnv(spoil={"observation": np.full((2, 2), 3e38)}))
    envs.reset()
    assert np.isfinite(np.asarray(envs.step(ZEROS).observation)).all()


def test_checks_can_be_turned_off() -> None:
    envs = GymVecEnv(LiveEnv(spoil={"reward": np.array([0.0, NAN])}), check=False)
    envs.reset()
    assert np.isnan(np.asarray(envs.step(ZEROS).reward)).any()


def test_a_category_out_of_range_is_refused_in_the_first_step() -> None:
    live = LiveEnv(spoil={"observation": np.array([1, 4])})
    live.single_observation_space = spaces.Discrete(4)
    live.reset = lambda **kwargs: (np.zeros(2, np.int64), {})  # type: ignore[method-assign]  # numbers
    envs = GymVecEnv(live)
    envs.reset()
    with pytest.raises(EnvironmentFaultError, match="holds 1 to 4"):
        envs.step(ZEROS)
    live.reset = lambda **kwargs: (np.array([1, 4]), {})  # type: ignore[method-assign]  # numbers
    with pytest.raises(EnvironmentFaultError, match="holds 1 to 4"):
        GymVecEnv(live, check=False).reset()


@pytest.mark.parametrize(
    ("declared", "given", "value", "fits"),
    [
        (np.uint8, torch.int8, 100, True),
        (np.uint8, torch.int8, -5, False),
        (np.int8, torch.uint8, 100, True),
        (np.int8, torch.uint8, 200, False),
        (np.uint8, torch.int64, 256, False),
        (np.uint8, torch.bool, 1, True),
    ],
)
def test_integers_of_tensors_do_not_wrap_around(
    declared: type[np.integer], given: torch.dtype, value: int, fits: bool
) -> None:
    shown = torch.tensor([[1, 1], [1, value]], dtype=given)  # one of which may not fit
    live = LiveEnv(as_tensor=True, spoil={"observation": shown})
    live.single_observation_space = spaces.Box(
        np.iinfo(declared).min, np.iinfo(declared).max, (2,), declared
    )
    live.reset = lambda **kwargs: (torch.zeros(2, 2, dtype=torch.int8), {})  # type: ignore[method-assign]
    envs = GymVecEnv(live)
    envs.reset()
    if fits:
        assert as_numpy(envs.step(ZEROS).observation).tolist() == [[1, 1], [1, value]]
        return
    with pytest.raises(EnvironmentFaultError, match=f"expected {declared.__name__}, or what it"):
        envs.step(ZEROS)


def test_on_an_accelerator_the_check_waits_but_names_the_step() -> None:
    live = LiveEnv(as_tensor=True)
    envs = GymVecEnv(live)
    envs.reset()
    assert isinstance(envs._arrays, _TorchArrays)
    envs._arrays.waits = False
    envs.step(ZEROS)
    live.spoil["reward"] = torch.tensor([0.0, NAN])
    envs.step(ZEROS)
    live.spoil.clear()
    for _ in range(_DEFERRED_STEPS - 3):
        envs.step(ZEROS)
    with pytest.raises(EnvironmentFaultError, match=r"environment 1: the reward .* in step 2"):
        envs.step(ZEROS)
    envs.reset()
    live.spoil["observation"] = torch.full((2, 2), NAN)
    for _ in range(2):
        envs.step(ZEROS)
    with pytest.raises(EnvironmentFaultError, match=rf"the obs.* in step {_DEFERRED_STEPS + 1}$"):
        envs.reset()
    envs.reset()
    envs.step(ZEROS)
    with pytest.raises(EnvironmentFaultError, match="the observation was not finite"):
        envs.close()


def test_what_an_environment_raises_is_the_cause() -> None:
    envs = make_gym_vec(lambda: FaultyEnv(CountingEnv([5]), "raise_step", at_step=2))
    envs.reset()
    envs.step(ZEROS[:1])
    with pytest.raises(
        EnvironmentFaultError, match=r"step 2, environment 0: step\(\) raised ValueError"
    ) as caught:
        envs.step(ZEROS[:1])
    assert isinstance(caught.value.__cause__, ValueError)
    with pytest.raises(EnvironmentFaultError, match=r"call reset\(\) first"):
        envs.step(ZEROS[:1])
    envs.reset()
    envs.step(ZEROS[:1])


def test_the_info_of_an_episodes_last_step_is_found_in_every_mode() -> None:
    class Telling(CountingEnv):
        def step(self, action: object) -> tuple[Array, Any, bool, bool, dict[str, object]]:
            observation, reward, terminated, truncated, _ = super().step(action)
            return observation, reward, terminated, truncated, {"is_success": self.steps == 2}

    for mode in AutoresetMode:
        envs = _sync([partial(Telling, [2])] * 2, mode)
        envs.reset()
        envs.step(ZEROS)
        step = envs.step(ZEROS)
        assert np.asarray(step.terminated).all()
        assert np.asarray(step.final_info["is_success"]).all()


def test_seeds_are_spread_and_distinct() -> None:
    seeds = spread_seed(0, 500)
    assert len(set(seeds)) == 500
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert seeds[:3] == spread_seed(0, 3)
    assert not set(seeds) & set(spread_seed(1, 500))
    assert len(spread_seed(19, 9_931)) == 9_931  # the last one draws a number that is taken
    with pytest.raises(ConfigError, match="seed must be a whole number of at least 0, got -1"):
        spread_seed(-1, 2)


def test_native_environments_get_one_number_and_the_others_a_list() -> None:
    live = LiveEnv()
    GymVecEnv(live, seed=4).reset()
    assert live.seed == spread_seed(4, 1)[0]
    with make_gym_vec(IdentityEnv, 3, 4, space=spaces.Discrete(9)) as envs:
        assert isinstance(envs, SyncVecEnv)
        envs.reset()
        assert [env.np_random_seed for env in envs.envs] == spread_seed(4, 3)


@pytest.mark.parametrize("num_envs", [2, 6])
def test_the_plain_makers_environments_are_made_again_as_they_were(num_envs: int) -> None:
    with make_gym_vec("CartPole-v1", num_envs, 0, sutton_barto_reward=True) as envs:
        envs.reset()
        envs.step(np.zeros(num_envs, np.int64))
        state, made = envs.state_dict(), envs.component
        expected = envs.step(np.zeros(num_envs, np.int64))
    assert made is not None
    options = cast("dict[str, Any]", made.kwargs)
    with make_vec("CartPole-v1", **options) as again:
        again.load_state_dict(state)
        step = again.step(np.zeros(num_envs, np.int64))
    assert _values(step.observation) == _values(expected.observation)
    assert _values(step.reward) == _values(expected.reward) == [0.0] * num_envs


def test_no_recipe_holds_arguments_that_have_no_plain_form() -> None:
    with make_gym_vec("Pendulum-v1", 2, g=Fraction(49, 5)) as envs:
        assert envs.component is None


def test_what_cannot_be_stepped_is_refused() -> None:
    with pytest.raises(ConfigError, match="envs holds a function; expected environments that are"):
        SyncVecEnv([lambda: None])  # type: ignore[list-item]  # what is tested
    with pytest.raises(ConfigError, match=r"envs is a TimeLimit; expected .*VectorEnv; as_vec_env"):
        GymVecEnv(gymnasium.make("CartPole-v1"))  # type: ignore[arg-type]  # what is tested
    with make_gym_vec("Pendulum-v1", 2) as envs:
        envs.reset()
        with pytest.raises(DataError, match="the action is not an array"):
            envs.step([[0.0], [1.0, 2.0]])  # type: ignore[arg-type]  # what is tested


def test_a_resumed_environment_neither_repeats_its_start_nor_guesses() -> None:
    def resumed(steps: int) -> list[object]:
        with make_gym_vec("CartPole-v1", 2, 0) as envs:
            envs.load_state_dict({"seed": 0, "steps": steps})
            assert envs.state_dict() == {"seed": 0, "steps": steps}
            return _values(envs.reset())

    with make_gym_vec("CartPole-v1", 2, 0) as envs:
        assert isinstance(envs, Stateful)
        start = _values(envs.reset())
        envs.step(ZEROS)
        state = envs.state_dict()
        assert (state["seed"], state["steps"]) == (0, 1)
        with pytest.raises(CheckpointError):
            envs.load_state_dict({"seed": 0})
    assert resumed(1) == resumed(1)
    assert resumed(1) != resumed(2)
    assert resumed(1) != start
    assert resumed(0) == start
    with make_gym_vec("CartPole-v1", 2, 0) as envs:
        envs.reset(5)
        assert envs.state_dict()["seed"] == 5


def test_users_own_objects_go_straight_in() -> None:
    envs = make_gym_vec("CartPole-v1")
    assert as_vec_env(envs) is envs
    vector = gymnasium.make_vec("CartPole-v1", num_envs=2)
    assert as_vec_env(vector).num_envs == 2
    with as_vec_env(gymnasium.make("Pendulum-v1")) as single:
        assert (single.num_envs, single.spec_id, single.max_episode_steps) == (
            1,
            "Pendulum-v1",
            200,
        )
        assert np.asarray(single.reset()).shape == (1, 3)
    for unbuilt in ("CartPole-v1", lambda: gymnasium.make("CartPole-v1")):
        with as_vec_env(unbuilt, 3) as built:
            assert built.num_envs == 3
    with pytest.raises(ConfigError, match="env is int; expected an id such as 'CartPole-v1'"):
        as_vec_env(5)  # type: ignore[arg-type]  # what is tested


def test_what_is_built_has_the_environments_that_it_has() -> None:
    with pytest.raises(ConfigError, match=r"num_envs=2, but a built .* is one environment; give"):
        as_vec_env(gymnasium.make("Pendulum-v1"), 2)
    with pytest.raises(ConfigError, match="num_envs=3, but the given environments are 2; leave"):
        as_vec_env(make_gym_vec("CartPole-v1", 2), 3)


def test_the_plain_maker_takes_ids_functions_and_arguments() -> None:
    six = cast("int", np.int64(6))
    with make_gym_vec("CartPole-v1", six, max_episode_steps=9) as native:
        assert isinstance(native, GymVecEnv)
        assert native.max_episode_steps == 9
    with make_gym_vec("CartPole-v1", 6, render_mode="rgb_array") as native:
        assert isinstance(native, GymVecEnv)
    with make_gym_vec("Pendulum-v1", 2, g=1.0) as sync:
        assert sync.max_episode_steps == 200
        assert np.asarray(sync.reset(seed=0)).dtype == np.float32
    with make_gym_vec(MemoryCueEnv, 2, delay=1) as own:
        assert own.spec_id == "MemoryCueEnv"


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("CartPoll-v1", "did you mean 'CartPole-v1'"),
        ("PointNavigatoin-v0", "did you mean 'PointNavigation-v0'"),
        ("PointNavigation-v1", "did you mean 'PointNavigation-v0'"),
        ("cartpole-v1", "did you mean 'CartPole-v1'"),
        ("LunarLander-v2", "the newest version is 'LunarLander-v3'"),
        ("Pendulum-v9", "the newest version is 'Pendulum-v1'"),
        ("not an id", "import that module first"),
        ("mine/CartPoll-v1", r"'CartPole-v1'\? if another module registers it"),
        ("os:CartPole-v1", "import os yourself and ask for 'CartPole-v1'"),
    ],
)
def test_a_wrong_id_is_refused_with_a_right_one(env_id: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_gym_vec(env_id)


def test_an_id_without_version_means_the_newest() -> None:
    assert find_spec("Pendulum").id == "Pendulum-v1"


@pytest.mark.parametrize(
    ("env_id", "module", "extra"),
    [
        ("LunarLander-v3", "Box2D", "packages/rl-envs[box2d]"),
        ("HalfCheetah-v5", "mujoco", "packages/rl-envs[mujoco]"),
        ("HalfCheetahDir-v0", "mujoco", "packages/rl-envs[mujoco]"),
        ("phys2d/CartPole-v1", "jax", "install the package"),
    ],
)
def test_a_missing_simulator_is_refused_with_the_pip_line(
    env_id: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = ("box2d", "mujoco", "phys2d", "locomotion")
    for name in list(sys.modules):
        if any(part in name.lower() for part in parts):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError) as caught:
        make_gym_vec(env_id)
    assert extra in str(caught.value)


def test_what_is_no_environment_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"built a dict; expected a gymnasium\.Env"):
        make_gym_vec(dict)  # type: ignore[arg-type]  # what is tested
    with pytest.raises(EnvironmentFaultError, match="could not be built: ZeroDivisionError"):
        make_gym_vec(lambda: cast("gymnasium.Env", 1 / 0))
    with pytest.raises(ConfigError, match="does not take these arguments"):
        make_gym_vec("Pendulum-v1", gravity=3)


def test_scripted_environments_know_their_optimum() -> None:
    for delay in (1, 3):
        env = MemoryCueEnv(delay, num_cues=4)
        observation, _ = env.reset(seed=delay)
        cue = int(np.argmax(observation))
        rewards = []
        terminated = False
        while not terminated:
            _, reward, terminated, _, _ = env.step(cue)
            rewards.append(float(reward))
        assert rewards == [0.0] * delay + [1.0]
    box = IdentityEnv(spaces.Box(-1.0, 1.0, (1,)), episode_length=400)
    box.reset(seed=0)
    earned = sum(float(box.step(np.zeros(1))[1]) for _ in range(400))
    assert earned == pytest.approx(box.constant_return, rel=0.05)
