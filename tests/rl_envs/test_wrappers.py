from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import (
    FlattenObservation,
    FrameStackObservation,
    NormalizeObservation,
    NormalizeReward,
)

from rl_core.env import VecEnv
from rl_core.errors import ConfigError, EnvironmentFaultError, SpaceError
from rl_core.spaces import HybridSpace, mask_sizes
from rl_core.types import Array
from rl_envs import SyncVecEnv, make_vec
from rl_envs.wrappers import FrameStack, MaskVelocity
from rl_testing.envs import VecEnvSuite

MUJOCO_NAMES = (
    "InvertedPendulum",
    "InvertedDoublePendulum",
    "Hopper",
    "Walker2d",
    "HalfCheetah",
    "Swimmer",
)


@pytest.mark.parametrize(
    ("env_id", "kept"),
    [
        ("CartPole-v1", [0, 2]),
        ("Pendulum-v1", [0, 1]),
        ("MountainCar-v0", [0]),
        ("MountainCarContinuous-v0", [0]),
        ("Acrobot-v1", [0, 1, 2, 3]),
        ("LunarLander-v3", [0, 1, 4, 6, 7]),
        ("BipedalWalker-v3", [0, 4, 6, 8, 9, 11, *range(13, 24)]),
    ],
)
def test_the_entries_that_are_left_are_the_positions(env_id: str, kept: list[int]) -> None:
    if env_id.startswith(("Lunar", "Bipedal")):
        pytest.importorskip("Box2D")
    plain, masked = gymnasium.make(env_id), MaskVelocity(gymnasium.make(env_id))
    assert masked.observation_space.shape == (len(kept),)
    before, _ = plain.reset(seed=1)
    after, _ = masked.reset(seed=1)
    np.testing.assert_array_equal(after, before[kept])
    plain.action_space.seed(1)
    action = plain.action_space.sample()
    np.testing.assert_array_equal(masked.step(action)[0], plain.step(action)[0][kept])
    assert masked.observation_space.contains(after)


@pytest.mark.parametrize("name", MUJOCO_NAMES)
def test_the_hidden_entries_are_what_the_simulator_calls_velocities(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("mujoco")
    monkeypatch.chdir(tmp_path)  # MuJoCo writes its warnings into a file there
    env = gymnasium.make(f"{name}-v5")
    env.reset(seed=1)
    env.action_space.seed(1)
    for _ in range(3):
        # Gentle actions, because some of these environments clip velocities at 10.
        observation, *_ = env.step(0.1 * env.action_space.sample())
    velocity = np.asarray(env.unwrapped.data.qvel)  # type: ignore[attr-defined]  # MuJoCo's
    visible = MaskVelocity(env).observation(np.arange(len(observation)))
    hidden = np.delete(observation, visible.astype(int))
    assert np.abs(velocity).max() < 10.0
    np.testing.assert_allclose(hidden, velocity)
    env.close()


def test_observations_of_another_size_are_not_guessed_at() -> None:
    stacked = FlattenObservation(FrameStackObservation(gymnasium.make("CartPole-v1"), 2))
    with pytest.raises(ConfigError, match=r"in observations of 4 numbers, but these have 8; give"):
        MaskVelocity(stacked)
    assert MaskVelocity(stacked, [1, 3, 5, 7]).observation_space.shape == (4,)


def test_entries_of_other_environments_can_be_given() -> None:
    masked = MaskVelocity(gymnasium.make("CartPole-v1"), velocity_indices=[0])
    assert masked.observation_space.shape == (3,)


@pytest.mark.parametrize("vectorization", ["auto", "async"])
def test_an_option_masks_and_is_recorded(vectorization: Any) -> None:
    with make_vec("CartPole-v1", 2, vectorization=vectorization, mask_velocity=True) as envs:
        assert envs.single_observation_space.shape == (2,)
        assert cast("Array", envs.reset(0)).shape == (2, 2)
        assert envs.component is not None
        assert envs.component["mask_velocity"] is True
    with make_vec("CartPole-v1", 2) as envs:
        assert envs.component is not None
        assert "mask_velocity" not in envs.component.kwargs


def test_masking_leaves_no_native_form() -> None:
    with pytest.raises(ConfigError, match="1 wrappers; use the vectorization auto, sync or async"):
        make_vec("CartPole-v1", 2, vectorization="native", mask_velocity=True)


def test_what_cannot_be_masked_is_refused() -> None:
    class CartPoles(gymnasium.Env):
        observation_space = spaces.Box(-1.0, 1.0, (4,))
        action_space = spaces.Discrete(2)

    with pytest.raises(ConfigError, match="did you mean 'CartPole'"):
        MaskVelocity(CartPoles())
    for indices in ([4], [1.5], []):
        with pytest.raises(ConfigError, match="expected entries from 0 to 3"):
            MaskVelocity(CartPoles(), velocity_indices=cast("list[int]", indices))
    with pytest.raises(SpaceError, match="leaves nothing"):
        MaskVelocity(CartPoles(), velocity_indices=range(4))
    with pytest.raises(SpaceError, match="rank 1"):
        MaskVelocity(gymnasium.make("FrozenLake-v1"), velocity_indices=[0])


def test_it_wraps_each_row_of_a_vector() -> None:
    with make_vec("CartPole-v1", 3, wrappers=[MaskVelocity]) as envs:
        assert cast("Array", envs.reset(seed=0)).shape == (3, 2)
        assert envs.max_episode_steps == 500


def test_an_environment_can_be_built_again_from_its_spec() -> None:
    masked = MaskVelocity(gymnasium.make("CartPole-v1"), velocity_indices=(0, 1))
    assert masked.spec is not None
    again = gymnasium.make(masked.spec)
    assert again.observation_space == masked.observation_space


class Nested(gymnasium.Env):
    """Keeps its last action; two of three choices are allowed, in turns."""

    observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    spec = None
    taken: Any = None
    steps = 0

    def __init__(self, action_space: spaces.Space[Any]) -> None:
        self.action_space = action_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), self._info()

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self.taken, self.steps = action, self.steps + 1
        return np.zeros(1, np.float32), 3.0, self.steps == 2, False, self._info()

    def _info(self) -> dict[str, Any]:
        return {"action_mask": np.arange(3) != self.steps % 3}


def _first(envs: VecEnv) -> Any:
    assert isinstance(envs, SyncVecEnv)
    return envs.envs[0]


def test_categorical_leaves_become_one_multi_discrete_action() -> None:
    space = spaces.Dict(
        {
            "gear": spaces.Discrete(3, start=-1),
            "pedals": spaces.Tuple([spaces.MultiBinary(2), spaces.MultiDiscrete([4, 5])]),
        }
    )
    with make_vec(lambda: Nested(space)) as envs:
        assert envs.single_action_space == spaces.MultiDiscrete(
            [3, 2, 2, 4, 5], start=[-1, 0, 0, 0, 0]
        )
        envs.reset(seed=0)
        envs.step(np.array([[1, 0, 1, 3, 4]]))
        taken = _first(envs).unwrapped.taken
        assert space.contains(taken)
        assert taken["gear"] == 1
        np.testing.assert_equal(taken["pedals"], (np.array([0, 1]), np.array([3, 4])))


def test_box_leaves_become_one_box_action() -> None:
    space = spaces.Tuple([spaces.Box(-1.0, 2.0, (2, 1)), spaces.Box(0.0, 9.0, ())])
    with make_vec(lambda: Nested(space)) as envs:
        assert envs.single_action_space == spaces.Box(
            np.array([-1, -1, 0], np.float32), np.array([2, 2, 9], np.float32)
        )
        envs.reset(seed=0)
        envs.step(np.array([[0.5, -0.5, 7.0]], np.float32))
        taken = _first(envs).unwrapped.taken
        np.testing.assert_equal(taken, (np.array([[0.5], [-0.5]], np.float32), np.float32(7.0)))


MIXED = spaces.Dict(
    {
        "arm": spaces.Tuple([spaces.Discrete(3, start=1), spaces.Box(-1.0, 2.0, (2, 1))]),
        "lights": spaces.MultiBinary(2),
        "speed": spaces.Box(0.0, 9.0, ()),
    }
)


def test_continuous_and_categorical_leaves_become_one_hybrid_action() -> None:
    with make_vec(lambda: Nested(MIXED)) as envs:
        low, high = np.array([-1, -1, 0], np.float32), np.array([2, 2, 9], np.float32)
        choices = spaces.MultiDiscrete([3, 2, 2], start=[1, 0, 0])
        assert envs.single_action_space == HybridSpace(spaces.Box(low, high), choices)
        envs.reset(seed=0)
        envs.step(np.array([[0.5, -0.5, 7.0, 3, 0, 1]], np.float32))
        taken = _first(envs).unwrapped.taken
        assert MIXED.contains(taken)
        number, place = taken["arm"]
        assert (number, taken["speed"]) == (3, 7.0)
        np.testing.assert_array_equal(place, [[0.5], [-0.5]])
        np.testing.assert_array_equal(taken["lights"], [0, 1])


class TestHybridActions(VecEnvSuite):
    is_random = False

    def make_env(self) -> VecEnv:
        return make_vec(lambda: Nested(MIXED), 2, vectorization="sync")


def test_processes_take_hybrid_actions() -> None:
    with make_vec(lambda: Nested(MIXED), 2, vectorization="async") as envs:
        envs.reset(seed=0)
        actions = [cast("Array", envs.single_action_space.sample()) for _ in range(2)]
        assert envs.step(np.stack(actions)).reward.tolist() == [3.0, 3.0]


def test_bounded_observations_are_mapped_to_the_unit_interval_and_others_are_not() -> None:
    with (
        make_vec("CartPole-v1", vectorization="sync") as plain,
        make_vec("CartPole-v1", rescale_observation=True) as scaled,
    ):
        space = scaled.single_observation_space
        assert isinstance(space, spaces.Box)
        np.testing.assert_array_equal(space.high, np.array([1, np.inf, 1, np.inf], np.float32))
        before, after = (np.asarray(envs.reset(seed=1), np.float32) for envs in (plain, scaled))
        bounds = np.array([4.8, 1.0, 24 * 2 * np.pi / 360, 1.0], np.float32)
        np.testing.assert_allclose(after, before / bounds, rtol=1e-5)


def test_rescaled_actions_reach_the_bounds_of_the_space() -> None:
    with make_vec("Pendulum-v1", rescale_action=True) as envs:
        assert envs.single_action_space == spaces.Box(-1.0, 1.0, (1,), np.float32)
        envs.reset(seed=1)
        envs.step(np.array([[0.25]], np.float32))
        assert _first(envs).unwrapped.last_u == 0.5  # of 2.0


class Constant(Nested):
    """Observes the same numbers in each step."""

    def __init__(self, space: Any, seen: list[float]) -> None:
        super().__init__(spaces.Discrete(3))
        self.observation_space = space
        self.seen = np.array(seen, space.dtype)

    def reset(self, **options: Any) -> tuple[Array, dict[str, Any]]:
        return self.seen, super().reset(**options)[1]


@pytest.mark.parametrize("seen", [np.array([3, 9]), [3, 9]])
def test_whole_numbers_are_rescaled_as_real_ones(seen: Any) -> None:
    env = Constant(spaces.Box(0.0, 10.0, (2,)), [])
    env.seen = seen
    with make_vec(lambda: env, rescale_observation=True, vectorization="sync") as envs:
        np.testing.assert_allclose(np.asarray(envs.reset()), [[-0.4, 0.8]], rtol=1e-6)


MOST = np.finfo(np.float32).max


def test_entries_without_meant_bounds_are_left_as_they_are() -> None:
    low, high = np.array([-2, 1, -MOST, 0], np.float32), np.array([6, 1, MOST, 1e30], np.float32)
    env = Constant(spaces.Box(low, high), [4, 1, 3, 5])
    with make_vec(lambda: env, rescale_observation=True, vectorization="sync") as envs:
        space = envs.single_observation_space
        assert isinstance(space, spaces.Box)
        np.testing.assert_array_equal(space.low, np.array([-1, 1, -MOST, 0], np.float32))
        np.testing.assert_array_equal(envs.reset(), [[0.5, 1, 3, 5]])
    for bound in (MOST, 1e30):
        unbounded = Constant(spaces.Box(-bound, bound, (2,)), [3, 3])
        with pytest.raises(SpaceError, match=r"no entry of .* is bounded"):
            make_vec(lambda: unbounded, rescale_observation=True)  # noqa: B023  # called at once


def test_an_action_entry_with_one_value_gets_it() -> None:
    low, high = np.array([0, 1], np.float32), np.array([0, 3], np.float32)
    with make_vec(lambda: Nested(spaces.Box(low, high)), rescale_action=True) as envs:
        envs.reset(seed=1)
        for action, taken in (([0.5, -1.0], [0.0, 1.0]), ([-1.0, 1.0], [0.0, 3.0])):
            envs.step(np.array([action], np.float32))
            np.testing.assert_array_equal(_first(envs).unwrapped.taken, taken)
            assert _first(envs).unwrapped.taken.dtype == np.float32


@pytest.mark.parametrize(
    ("space", "options", "message"),
    [
        (spaces.Box(0, 9, (2,), np.int32), {"rescale_action": True}, "floating-point with bounds"),
        (spaces.Box(-MOST, MOST, (2,)), {"rescale_action": True}, "floating-point with bounds"),
        (
            spaces.Dict(x=spaces.Box(0, 3, (1,), np.int32), y=spaces.Box(-2.0, 3.0, (1,))),
            {},
            r"holds Box\(0, 3, \(1,\), int32\); expected a floating-point Box: .* Discrete",
        ),
    ],
)
def test_boxes_of_whole_numbers_or_without_bounds_are_refused_as_actions(
    space: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpaceError, match=message):
        make_vec(lambda: Nested(space), **options)


def test_an_empty_observation_space_is_refused() -> None:
    with pytest.raises(SpaceError, match=r"observation space Box\(.*\) is empty"):
        make_vec(lambda: Constant(spaces.Box(0.0, 1.0, (0,)), []))


@pytest.mark.parametrize("mask", [None, np.array([0.5, 1.0, 0.0]), [2, 0, 1]])
def test_an_action_mask_holds_flags(mask: Any) -> None:
    env = Nested(spaces.Discrete(3))
    env._info = lambda: {"action_mask": mask}  # type: ignore[method-assign]
    with (
        make_vec(lambda: env, action_mask=True, vectorization="sync") as envs,
        pytest.raises(EnvironmentFaultError, match=r"\['action_mask'\] is .* expected a flag"),
    ):
        envs.reset()


def test_the_time_feature_is_the_elapsed_fraction_of_the_limit() -> None:
    with make_vec("CartPole-v1", time_feature=True) as envs:
        first = cast("Array", envs.reset(seed=1))
        second = cast("Array", envs.step(np.zeros(1, np.int64)).observation)
    assert (first.shape, first[0, -1]) == ((1, 5), 0.0)
    assert second[0, -1] == np.float32(1 / 500)


def test_action_masks_of_infos_become_what_actors_look_for() -> None:
    with make_vec(lambda: Nested(spaces.Discrete(3)), action_mask=True) as envs:
        assert mask_sizes(envs.single_observation_space, envs.single_action_space) == (3,)
        observation = cast("dict[str, Array]", envs.reset(seed=1))
        for forbidden in (0, 1, 0, 1):  # an episode has two steps
            np.testing.assert_array_equal(observation["action_mask"][0], np.arange(3) != forbidden)
            step = envs.step(np.array([2]))
            observation = cast("dict[str, Array]", step.observation)


def test_rewards_are_scaled_and_clipped_in_training_alone() -> None:
    def rewards(testing: bool, **options: float) -> float:
        space = spaces.Discrete(3)
        with make_vec(lambda: Nested(space), testing=testing, **options) as envs:  # type: ignore[arg-type]  # all floats
            envs.reset(seed=0)
            return float(envs.step(np.array([0])).reward[0])

    assert rewards(False, training_reward_scale=0.5) == 1.5
    assert rewards(False, training_reward_scale=0.5, training_reward_clip=1.0) == 1.0
    assert rewards(True, training_reward_scale=0.5, training_reward_clip=1.0) == 3.0


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"rescale_observation": True}, SpaceError, "no entry of .* is bounded"),
        ({"action_mask": True}, SpaceError, "expected a Discrete"),
        ({"training_reward_clip": 0.0}, ConfigError, "training_reward_clip"),
        ({"training_reward_scale": -1.0}, ConfigError, "training_reward_scale"),
    ],
)
def test_wrappers_that_do_not_fit_are_refused(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    pytest.importorskip("mujoco")
    with pytest.raises(error, match=message):
        make_vec("HalfCheetah-v5", **options)


def test_a_time_feature_needs_a_time_limit() -> None:
    with pytest.raises(ConfigError, match="time limit"):
        make_vec(lambda: Nested(spaces.Discrete(3)), time_feature=True)


class Film(gymnasium.Env):
    """Shows the number of its step in each pixel, as an image of 2x3."""

    observation_space = spaces.Box(0, 255, (2, 3), np.uint8)
    action_space = spaces.Discrete(2)
    number = 0
    spoilt: Any = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self.number = 0
        return np.zeros((2, 3), np.uint8), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self.number += 1
        frame = np.full((2, 3), self.number, np.uint8)
        return frame if self.spoilt is None else self.spoilt, 1.0, self.number == 200, False, {}


def test_stacks_are_those_of_gymnasium() -> None:
    ours, theirs = FrameStack(Film(), 3), FrameStackObservation(Film(), 3)
    assert ours.observation_space == theirs.observation_space
    for _ in range(2):
        stacks = [(ours.reset()[0], theirs.reset()[0])]
        stacks += [(ours.step(0)[0], theirs.step(0)[0]) for _ in range(150)]
        for one, other in stacks:  # also those of other blocks of memory
            np.testing.assert_array_equal(one, other)


def test_neighbouring_stacks_share_their_frames() -> None:
    env = FrameStack(Film(), 3)
    env.reset()
    stacks = [env.step(0)[0] for _ in range(60)]
    assert {np.shares_memory(one, other) for one, other in pairwise(stacks)} == {True}
    assert {len(cast("Array", stack.base)) for stack in stacks} == {63}


@pytest.mark.parametrize(
    ("spoilt", "message"),
    [
        (np.zeros(3, np.uint8), r"shape \(3,\) and dtype uint8; expected \(2, 3\) and uint8"),
        (np.zeros((2, 3)), "dtype float64; expected .* uint8"),
        (None, ""),
    ],
)
def test_a_frame_is_neither_stretched_nor_cut(spoilt: Any, message: str) -> None:
    with make_vec(Film, stack_size=2, vectorization="sync") as envs:
        envs.reset()
        _first(envs).unwrapped.spoilt = spoilt
        if message:
            with pytest.raises(EnvironmentFaultError, match=message):
                envs.step(np.zeros(1, np.int64))
        else:
            assert cast("Array", envs.step(np.zeros(1, np.int64)).observation)[0, 1, 0, 0] == 1


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_a_stack_is_recorded_saved_and_kept_at_an_episodes_end(vectorization: Any) -> None:
    with make_vec("CartPole-v1", 2, 0, vectorization=vectorization, stack_size=4) as envs:
        assert envs.single_observation_space.shape == (4, 4)
        assert envs.component is not None
        assert envs.component["stack_size"] == 4
        assert envs.resume_grade == "exact"
        envs.reset()
        shown = cast("Array", envs.reset())
        while not (step := envs.step(np.zeros(2, np.int64))).truncated.any():
            ended = np.asarray(step.terminated)
            final = cast("Array", step.successor)
            np.testing.assert_array_equal(final[:, :3], shown[:, 1:])
            shown = cast("Array", step.observation)
            if ended.any():
                assert (shown[ended] == shown[ended][:, :1]).all()
                break
        state = envs.state_dict()
        expected = envs.step(np.ones(2, np.int64)).observation
    with make_vec("CartPole-v1", 2, vectorization=vectorization, stack_size=4) as envs:
        envs.load_state_dict(state)
        np.testing.assert_array_equal(envs.step(np.ones(2, np.int64)).observation, expected)


def test_only_arrays_are_stacked() -> None:
    with pytest.raises(SpaceError, match="expected a Box to stack frames of"):
        make_vec("FrozenLake-v1", stack_size=2)
    with pytest.raises(ConfigError, match="stack_size must be a whole number of at least 1"):
        make_vec("CartPole-v1", stack_size=0)


@pytest.mark.parametrize(
    ("wrapper", "instead"),
    [(NormalizeObservation, "normalize_observations"), (NormalizeReward, "scale_rewards")],
)
def test_statistics_that_begin_anew_in_tests_are_warned_about(wrapper: Any, instead: str) -> None:
    def build() -> gymnasium.Env:
        return cast("gymnasium.Env", wrapper(gymnasium.make("CartPole-v1")))

    make_vec(build, 2).close()
    with pytest.warns(RuntimeWarning, match=f"{wrapper.__name__} of a test .* {instead}") as told:
        make_vec(build, 2, testing=True).close()
    assert len(told) == 1
