from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector.utils import batch_space
from torch import Tensor

from rl_core.env import TaskSplit, TaskVecEnv, VecEnv, as_numpy
from rl_core.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    EnvironmentFaultError,
    SpaceError,
)
from rl_core.spaces import event_shape
from rl_core.types import Array
from rl_envs import make_vec
from rl_envs.tasks import PointNavigation, SyncTaskVecEnv, TaskPool, TaskSampler, uniform
from rl_testing.envs import VecEnvSuite


def _assert_close(value: object, expected: object) -> None:
    got, wanted = torch.as_tensor(value), torch.as_tensor(expected)
    torch.testing.assert_close(got, wanted, check_dtype=False, atol=1e-5, rtol=0.0)


class TargetEnv(gymnasium.Env[Array, Array]):
    """Rewards the action's closeness to the task; its episodes have three steps."""

    observation_space = spaces.Box(-9.0, 9.0, (1,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    target = 0.0
    steps = 0

    def sample_tasks(
        self, count: int, generator: torch.Generator, split: TaskSplit = "train"
    ) -> Tensor:
        return torch.rand(count, 1, generator=generator)

    def set_task(self, task: Array) -> None:
        self.target = float(task[0])

    def reset(
        self, *, seed: int | None = None, options: Any = None
    ) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self.np_random.uniform(-1.0, 1.0, 1).astype(np.float32), {}

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        reward = -abs(float(action[0]) - self.target)
        return np.zeros(1, np.float32), reward, self.steps == 3, False, {}


class TestPointNavigation(VecEnvSuite):
    def make_env(self) -> VecEnv:
        return PointNavigation(3)


class TestEnvironmentsWithTasks(VecEnvSuite):
    def make_env(self) -> VecEnv:
        return make_vec(TargetEnv, 3)


def test_a_point_moves_as_far_as_it_may_and_pays_its_squared_distance() -> None:
    envs = PointNavigation(2)
    envs.set_tasks(torch.tensor([[0.1, 0.0], [0.0, -0.4]]))
    _assert_close(envs.reset(), np.zeros((2, 2)))
    step = envs.step(np.array([[0.05, 0.0], [0.0, -9.0]], np.float32))
    _assert_close(step.observation, [[0.05, 0.0], [0.0, -0.1]])
    _assert_close(step.reward, [-0.0025, -0.09])


def test_the_oracle_of_a_point_moves_straight_to_its_goal() -> None:
    goals = torch.tensor([[0.5, 0.0], [-0.25, 0.1], [0.0, 0.0]])
    envs = PointNavigation(3)
    # 0.4^2 + 0.3^2 + 0.2^2 + 0.1^2, and 0.15^2 + 0.05^2
    _assert_close(envs.oracle_returns(goals), [-0.3, -0.025, 0.0])
    envs.set_tasks(goals)
    place, total = as_numpy(envs.reset()), np.zeros(3)
    for _ in range(100):
        step = envs.step(goals.numpy() - place)
        place, total = as_numpy(step.observation), total + as_numpy(step.reward)
    _assert_close(envs.oracle_returns(goals), total)


def test_an_environment_may_know_its_oracle() -> None:
    class Knowing(TargetEnv):
        def oracle_returns(self, tasks: Tensor) -> Tensor:
            return -tasks[:, 0]

    envs = make_vec(Knowing, 2)
    assert isinstance(envs, TaskVecEnv)
    _assert_close(envs.oracle_returns(torch.tensor([[0.5], [0.25], [1.0]])), [-0.5, -0.25, -1.0])
    unknowing = make_vec(TargetEnv, 2)
    assert isinstance(unknowing, TaskVecEnv)
    assert unknowing.oracle_returns(torch.zeros(3, 1)) is None


_DRAWN: dict[str, tuple[Callable[[int], object], str]] = {
    "an array": (lambda count: np.zeros((count, 1)), "ndarray"),
    "a list": (lambda count: [[0.0]] * count, "list"),
    "nothing": (lambda _: None, "NoneType"),
    "too many": (lambda count: torch.zeros(count + 1, 1), r"shape \(4, 1\)"),
    "numbers": (torch.zeros, r"shape \(3,\)"),
    "a number": (lambda _: torch.zeros(()), r"shape \(\)"),
}


@pytest.mark.parametrize(("draw", "got"), _DRAWN.values(), ids=list(_DRAWN))
def test_tasks_that_are_no_rows_of_numbers_are_refused(
    draw: Callable[[int], object], got: str
) -> None:
    class Drawing(TargetEnv):
        def sample_tasks(self, count: int, *_: object) -> Any:
            return draw(count)

    class DrawingPoints(PointNavigation):
        def sample_tasks(self, count: int, *_: object) -> Any:
            return draw(count)

    message = f"sample_tasks of 3 tasks returned {got}; expected a tensor of shape \\(3, ...\\)"
    envs = make_vec(Drawing, 2)
    assert isinstance(envs, TaskVecEnv)
    with pytest.raises(EnvironmentFaultError, match=f"Drawing: {message}"):
        envs.sample_tasks(3, torch.Generator())
    with pytest.raises(EnvironmentFaultError, match=message):
        DrawingPoints(2).tasks_of_evaluation(3, 0)


@pytest.mark.parametrize("number", [3.5, -1, "3"])
def test_numbers_of_tasks_that_cannot_be_are_refused(number: object) -> None:
    class Counting(TargetEnv):
        def num_tasks(self, split: TaskSplit) -> Any:
            return number

    envs = make_vec(Counting, 2)
    assert isinstance(envs, TaskVecEnv)
    with pytest.raises(ConfigError, match=r"num_tasks\('test'\) must be a whole number"):
        envs.num_tasks("test")


@pytest.mark.parametrize(
    ("name", "found"),
    [("num_tasks", property(lambda _: 5)), ("oracle_returns", lambda _, tasks: tasks[100])],
)
def test_what_fails_in_a_task_environment_is_named(name: str, found: object) -> None:
    env = type("Faulty", (TargetEnv,), {name: found})
    with make_vec(env, 1) as envs:
        assert isinstance(envs, TaskVecEnv)
        with pytest.raises(EnvironmentFaultError, match=rf"Faulty, step 0: {name}\(\) raised"):
            envs.num_tasks("test") if name == "num_tasks" else envs.oracle_returns(
                torch.zeros(1, 2)
            )


def test_oracles_of_another_shape_are_refused() -> None:
    class Knowing(TargetEnv):
        def oracle_returns(self, tasks: Tensor) -> Tensor:
            return tasks

    envs = make_vec(Knowing, 2)
    assert isinstance(envs, TaskVecEnv)
    message = r"oracle_returns of 3 tasks returned shape \(3, 1\); expected .* shape \(3,\)"
    with pytest.raises(EnvironmentFaultError, match=message):
        envs.oracle_returns(torch.zeros(3, 1))


def test_every_episode_of_a_point_is_cut_after_100_steps() -> None:
    envs = PointNavigation(2)
    envs.reset(seed=0)
    action = np.full((2, 2), 0.01, np.float32)
    steps = [envs.step(action) for _ in range(100)]
    assert [bool(np.all(step.truncated)) for step in steps] == [False] * 99 + [True]
    _assert_close(steps[-1].final_observation, np.ones((2, 2)))
    _assert_close(steps[-1].observation, np.zeros((2, 2)))


def test_tasks_hold_from_the_next_episode_on() -> None:
    for envs, action in (
        (PointNavigation(2), np.zeros((2, 2), np.float32)),
        (make_vec(TargetEnv, 2), np.zeros((2, 1), np.float32)),
    ):
        assert isinstance(envs, TaskVecEnv)
        generator = torch.Generator().manual_seed(0)
        first, second = (envs.sample_tasks(2, generator) for _ in range(2))
        envs.set_tasks(first)
        envs.reset(seed=0)
        paid = envs.step(action).reward
        envs.set_tasks(second)
        _assert_close(envs.step(action).reward, paid)
        envs.reset()
        assert (as_numpy(envs.step(action).reward) != as_numpy(paid)).all()


def test_a_gymnasium_environment_gets_its_row_of_the_tasks() -> None:
    envs = make_vec(TargetEnv, 2)
    assert isinstance(envs, SyncTaskVecEnv)
    assert envs.num_tasks("test") is None
    envs.set_tasks(torch.tensor([[0.5], [-0.25]]))
    envs.reset(seed=0)
    for _ in range(4):  # over the end of an episode
        step = envs.step(np.zeros((2, 1), np.float32))
        _assert_close(step.reward, [-0.5, -0.25])
    restored = make_vec(TargetEnv, 2)
    restored.load_state_dict(envs.state_dict())
    restored.reset()
    _assert_close(restored.step(np.zeros((2, 1))).reward, [-0.5, -0.25])


def test_goals_are_numbers_in_any_array() -> None:
    envs = PointNavigation(1)
    envs.set_tasks(np.array([[0.25, 0.5]]))  # type: ignore[arg-type]  # arrays will do
    envs.reset()
    _assert_close(envs.step(np.zeros((1, 2), np.float32)).reward, [-0.3125])
    for number in (float("nan"), float("inf")):
        with pytest.raises(DataError, match="a goal is not finite"):
            envs.set_tasks(torch.tensor([[0.0, number]]))


def test_tasks_of_a_wrong_number_are_refused() -> None:
    for envs in (PointNavigation(2), make_vec(TargetEnv, 2)):
        assert isinstance(envs, TaskVecEnv)
        with pytest.raises(DataError, match="3"):
            envs.set_tasks(torch.zeros(3, 2))


@pytest.mark.parametrize("env_id", ["PointNavigation-v0", "CartPolePhysics-v0"])
def test_what_is_no_task_or_seed_is_refused(env_id: str) -> None:
    with make_vec(env_id, 2) as envs:
        assert isinstance(envs, TaskVecEnv)
        for tasks in (None, "x", [[1.0], [1.0, 2.0]]):
            with pytest.raises(DataError, match="the tasks are not a tensor"):
                envs.set_tasks(cast("Tensor", tasks))
        with pytest.raises(ConfigError, match="seed must be a whole number of at least 0, got -1"):
            envs.reset(seed=-1)


def test_a_velocity_that_is_not_finite_is_refused() -> None:
    with PointNavigation(2) as envs:
        envs.reset(seed=0)
        with pytest.raises(DataError, match="where a velocity is not finite"):
            envs.step(np.array([[0.0, 0.0], [0.0, np.nan]], np.float32))


def test_the_number_of_environments_is_given_once() -> None:
    with pytest.raises(ConfigError, match="env_kwargs has num_envs"):
        make_vec("PointNavigation-v0", 2, env_kwargs={"num_envs": 3})


def test_the_seed_decides_how_vectors_of_their_own_begin() -> None:
    some, same, others = (make_vec("PointNavigation-v0", 2, seed=seed) for seed in (3, 3, 4))
    goals = []
    for envs in (some, same, others):
        envs.reset()
        goals.append(as_numpy(envs.step(np.zeros((2, 2), np.float32)).reward))
    assert np.array_equal(goals[0], goals[1])
    assert not np.array_equal(goals[0], goals[2])
    with pytest.raises(ConfigError, match=r"env\.seed: unknown option"):
        make_vec("PointNavigation-v0", 2, env_kwargs={"seed": 3})


def test_a_fixed_number_of_tasks_is_drawn_from_evenly() -> None:
    sampler = TaskSampler(uniform(2.0, 3.0, 1), num_train_tasks=4, num_test_tasks=2)
    assert sampler.num_tasks("train") == 4
    generator = torch.Generator().manual_seed(0)
    drawn = sampler.sample(10, generator)
    assert ((drawn >= 2.0) & (drawn < 3.0)).all()
    counts = Counter(drawn.flatten().tolist())
    assert sorted(counts.values()) == [2, 2, 3, 3]
    assert set(counts) == set(sampler.sample(4, generator).flatten().tolist())
    test = sampler.sample(2, generator, "test")
    assert set(test.flatten().tolist()).isdisjoint(counts)
    again = TaskSampler(uniform(2.0, 3.0, 1), num_train_tasks=4)
    assert set(again.sample(4, generator).flatten().tolist()) == set(counts)


def test_train_tasks_may_be_drawn_with_replacement() -> None:
    with pytest.raises(ConfigError, match="no effect without num_train_tasks"):
        TaskSampler(uniform(2.0, 3.0, 1), with_replacement=True)
    sampler = TaskSampler(uniform(2.0, 3.0, 1), 4, 2, with_replacement=True)
    pool = TaskSampler(uniform(2.0, 3.0, 1), 4).sample(4, torch.Generator().manual_seed(1))
    generator = torch.Generator().manual_seed(0)
    counts = Counter(sampler.sample(4000, generator).flatten().tolist())
    assert set(counts) == set(pool.flatten().tolist())
    assert all(abs(count - 1000) < 150 for count in counts.values())  # 5.5 deviations of 27
    assert len(set(counts.values())) > 1
    fours = [set(sampler.sample(4, generator).flatten().tolist()) for _ in range(20)]
    assert min(map(len, fours)) < 4
    assert len(set(sampler.sample(2, generator, "test").flatten().tolist())) == 2


@pytest.mark.parametrize("env_id", ["PointNavigation-v0", "CartPolePhysics-v0"])
def test_replacement_is_an_option_of_our_tasks(env_id: str) -> None:
    with _vector(env_id, num_train_tasks=3, with_replacement=True) as envs:
        generator = torch.Generator().manual_seed(0)
        drawn = [envs.sample_tasks(3, generator)[:, 0].tolist() for _ in range(20)]
    assert len({number for batch in drawn for number in batch}) == 3
    assert min(len(set(batch)) for batch in drawn) < 3


def test_a_pool_is_the_environment_of_its_task() -> None:
    built: list[int] = []

    def build(number: int) -> Callable[[], TargetEnv]:
        def made() -> TargetEnv:
            built.append(number)
            env = TargetEnv()
            env.target = float(number)
            return env

        return made

    def pool() -> TaskPool:
        return TaskPool([build(0), build(1)], [build(2)])

    envs = make_vec(pool, 2)
    assert isinstance(envs, TaskVecEnv)
    assert (envs.num_tasks("train"), envs.num_tasks("test")) == (2, 1)
    generator = torch.Generator().manual_seed(0)
    assert sorted(envs.sample_tasks(4, generator).flatten().tolist()) == [0.0, 0.0, 1.0, 1.0]
    assert envs.sample_tasks(1, generator, "test").tolist() == [[2.0]]
    assert set(built) == {0}
    built.clear()
    for first, second in ((1.0, 2.0), (0.0, 1.0), (1.0, 2.0)):
        envs.set_tasks(torch.tensor([[first], [second]]))
        envs.reset(seed=0)
        _assert_close(envs.step(np.zeros((2, 1), np.float32)).reward, [-first, -second])
    assert built == [1, 2, 1]  # each row keeps what it has built, from the first on
    envs.close()


def test_a_pool_has_the_time_limit_of_its_environments() -> None:
    def pool() -> TaskPool:
        return TaskPool([partial(gymnasium.make, "Pendulum-v1")], [TargetEnv])

    with make_vec(pool, 2) as envs:
        assert envs.max_episode_steps == 200
    with make_vec(partial(TaskPool, [TargetEnv], [TargetEnv]), 2) as envs:
        assert envs.max_episode_steps is None


def test_a_pool_needs_environments_of_the_same_spaces() -> None:
    class Wider(TargetEnv):
        action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    with pytest.raises(ConfigError, match="1 environments to train on and 0 to test on"):
        TaskPool([TargetEnv], [])
    with pytest.raises(SpaceError, match="environment 1 has other spaces"):
        TaskPool([TargetEnv], [Wider]).set_task(np.ones(1, np.float32))


def test_without_a_number_tasks_are_new_every_time() -> None:
    envs = PointNavigation(1)
    generator = torch.Generator().manual_seed(0)
    assert len({tuple(goal) for goal in envs.sample_tasks(50, generator).tolist()}) == 50
    assert envs.num_tasks("test") is None
    assert PointNavigation(1, num_test_tasks=7).num_tasks("test") == 7


def test_without_a_task_rows_get_one_of_the_train_tasks() -> None:
    envs = PointNavigation(4, num_train_tasks=2, seed=0)
    envs.reset()
    known = {tuple(goal) for goal in envs.sample_tasks(2, torch.Generator()).tolist()}
    goals = cast("Tensor", envs.state_dict()["goal"]).tolist()
    assert sorted(map(tuple, goals)) == sorted([*known, *known])


def test_wrong_numbers_are_refused() -> None:
    with pytest.raises(ConfigError, match="num_envs"):
        PointNavigation(0)


IDS = ("CartPolePhysics-v0", "PendulumPhysics-v0", "HalfCheetahDir-v0")
MUJOCO_IDS = ("HalfCheetahDir-v0", "HalfCheetahVel-v0", "AntDir-v0")


def _vector(env_id: str, num_envs: int = 2, **options: Any) -> TaskVecEnv:
    if env_id in MUJOCO_IDS:
        pytest.importorskip("mujoco")
    envs = make_vec(env_id, num_envs, env_kwargs=options)
    assert isinstance(envs, TaskVecEnv)
    return envs


@pytest.mark.parametrize("env_id", ["PointNavigation-v0", *IDS[:2], *MUJOCO_IDS])
def test_our_tasks_are_made_by_name_and_saved_with_their_tasks(env_id: str) -> None:
    generator = torch.Generator().manual_seed(0)
    options = {} if env_id == "HalfCheetahDir-v0" else {"num_train_tasks": 2}
    with _vector(env_id, **options) as envs:
        assert envs.num_tasks("train") == 2
        tasks = envs.sample_tasks(6, generator)
        assert Counter(map(tuple, tasks.tolist())) == Counter(map(tuple, tasks[:2].tolist() * 3))
        envs.set_tasks(tasks[:2])
        envs.reset(seed=0)
        assert envs.resume_grade == "exact"
        state = envs.state_dict()
        actions = batch_space(envs.single_action_space, 2)
        actions.seed(0)
        taken = [actions.sample() for _ in range(20)]
        seen = [as_numpy(envs.step(action).observation) for action in taken]
    with _vector(env_id, **options) as envs:
        envs.load_state_dict(state)
        again = [as_numpy(envs.step(action).observation) for action in taken]
    np.testing.assert_array_equal(again, seen)


def test_there_are_two_directions_of_which_each_is_as_frequent() -> None:
    with _vector("HalfCheetahDir-v0") as envs:
        assert (envs.num_tasks("train"), envs.num_tasks("test")) == (2, None)
        drawn = envs.sample_tasks(7, torch.Generator().manual_seed(0)).flatten().tolist()
        assert Counter(drawn[:6]) == {1.0: 3, -1.0: 3}
        assert len(envs.tasks_of_evaluation(5, 0)) == 5
    with _vector("HalfCheetahDir-v0", with_replacement=True) as envs:
        generator = torch.Generator().manual_seed(0)
        drawn = [float(envs.sample_tasks(2, generator).sum()) for _ in range(20)]
        assert set(drawn) == {-2.0, 0.0, 2.0}
    with pytest.raises(ConfigError, match=r"does not take these arguments.*num_train_tasks"):
        _vector("HalfCheetahDir-v0", num_train_tasks=5)


@pytest.mark.parametrize(
    ("env_id", "task", "weights"),
    [
        ("HalfCheetahDir-v0", [-1.0], {"x_velocity": -1.0, "reward_ctrl": 1.0}),
        (
            "AntDir-v0",
            [0.6, -0.8],
            {"x_velocity": 0.6, "y_velocity": -0.8}
            | dict.fromkeys(("reward_ctrl", "reward_contact", "reward_survive"), 1.0),
        ),
    ],
)
def test_a_direction_is_rewarded(env_id: str, task: list[float], weights: dict[str, float]) -> None:
    with _vector(env_id, 1) as envs:
        envs.set_tasks(torch.tensor([task]))
        envs.reset(seed=0)
        step = envs.step(np.full((1, *event_shape(envs.single_action_space)), 0.3, np.float32))
        expected = sum(weight * step.info[name][0] for name, weight in weights.items())  # type: ignore[index]  # arrays
        _assert_close(as_numpy(step.reward), [expected])


def test_a_velocity_is_rewarded_by_the_distance_to_it() -> None:
    with _vector("HalfCheetahVel-v0", 1, low=1.0, high=3.0) as envs:
        tasks = envs.sample_tasks(100, torch.Generator().manual_seed(0))
        assert 1.0 <= float(tasks.min()) < 1.2 < 2.8 < float(tasks.max()) < 3.0
        envs.set_tasks(torch.tensor([[1.5]]))
        envs.reset(seed=0)
        step = envs.step(np.full((1, 6), 0.3, np.float32))
        velocity, control = step.info["x_velocity"][0], step.info["reward_ctrl"][0]  # type: ignore[index]  # arrays
        _assert_close(as_numpy(step.reward), [control - abs(velocity - 1.5)])


@pytest.mark.parametrize("env_id", ["HalfCheetahDir-v0", "HalfCheetahVel-v0", "AntDir-v0"])
def test_the_weight_of_going_forward_is_that_of_the_task(env_id: str) -> None:
    infos, rewards = [], []
    for weight in (1.0, 3.0):
        with _vector(env_id, 1, forward_reward_weight=weight) as envs:
            envs.reset(seed=0)
            action = np.full((1, *event_shape(envs.single_action_space)), 0.3, np.float32)
            step = envs.step(action)
            infos.append(step.info["reward_forward"][0])  # type: ignore[index]  # an array
            rewards.append(as_numpy(step.reward)[0])
    assert infos[1] == pytest.approx(3.0 * infos[0])
    assert rewards[1] - rewards[0] == pytest.approx(infos[1] - infos[0], rel=1e-5)


@pytest.mark.parametrize("env_id", IDS[:2])
def test_factors_of_one_are_the_usual_physics(env_id: str) -> None:
    usual = env_id.replace("Physics-v0", "-v1")
    with _vector(env_id) as envs, make_vec(usual, 1, vectorization="sync") as plain:
        envs.set_tasks(torch.tensor([[1.0, 1.0, 1.0], [1.2, 0.8, 1.1]]))
        envs.reset(seed=0)
        seen = as_numpy(envs.reset(seed=0))
        plain.reset(seed=0)
        for _ in range(5):
            action = np.ones((2, *event_shape(envs.single_action_space)), np.int64)
            seen = as_numpy(envs.step(action).observation)
            expected = as_numpy(plain.step(action[:1]).observation)
        _assert_close(seen[:1], expected)
        assert not np.allclose(seen[1], expected[0])


@pytest.mark.parametrize(
    "option",
    [{"vectorization": "async"}, {"rescale_action": True}, {"check": False}, {"preprocess": False}],
    ids=str,
)
def test_vectors_of_their_own_take_no_options_of_others(option: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="steps as one"):
        make_vec("PointNavigation-v0", 2, **option)


@pytest.fixture(scope="module")
def needs_meta_world() -> None:
    pytest.importorskip("metaworld")


@pytest.mark.usefixtures("needs_meta_world")
@pytest.mark.filterwarnings("ignore")  # of other packages' age
class TestMetaWorld:
    def test_goals_to_train_on_and_goals_to_test_on_are_50_each(self) -> None:
        generator = torch.Generator().manual_seed(0)
        with _vector("MetaWorldML1-v0") as envs:
            splits: dict[TaskSplit, int] = {"train": 0, "test": 50}
            for split, first in splits.items():
                tasks = envs.sample_tasks(50, generator, split)
                assert sorted(tasks.flatten().tolist()) == list(range(first, first + 50))
                assert envs.num_tasks(split) == 50

    def test_a_goal_is_rewarded_and_not_shown(self) -> None:
        with _vector("MetaWorldML1-v0", 3) as envs:
            envs.set_tasks(torch.tensor([[3.0], [3.0], [97.0]]))
            observation = as_numpy(envs.reset(seed=0))
            assert observation.shape == (3, 39)
            assert not observation[:, -3:].any()
            step = envs.step(np.full((3, 4), 0.5, np.float32))
            rewards = as_numpy(step.reward)
            assert rewards[0] == rewards[1] != rewards[2]
            assert as_numpy(step.info["is_success"]).tolist() == [False] * 3

    @pytest.mark.parametrize("env_name", ["reach-v3", "door-lock-v3", "soccer-v3"])
    def test_episodes_are_resumed_exactly(self, env_name: str) -> None:
        actions = np.random.default_rng(0).uniform(-1.0, 1.0, (40, 2, 4)).astype(np.float32)
        with _vector("MetaWorldML1-v0", env_name=env_name) as envs:
            envs.set_tasks(torch.tensor([[7.0], [60.0]]))
            envs.reset(seed=0)
            assert envs.resume_grade == "exact"
            for action in actions:
                envs.step(action)
            state = envs.state_dict()
            seen = [envs.step(action) for action in actions]
        with _vector("MetaWorldML1-v0", env_name=env_name) as envs:
            envs.load_state_dict(state)
            for action, expected in zip(actions, seen, strict=True):
                step = envs.step(action)
                np.testing.assert_array_equal(step.observation, expected.observation)
                np.testing.assert_array_equal(step.reward, expected.reward)

    def test_an_unknown_environment_is_refused_with_the_nearest(self) -> None:
        with pytest.raises(ConfigError, match="has no 'raech-v3'; did you mean 'reach-v3'"):
            _vector("MetaWorldML1-v0", env_name="raech-v3")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("PendulumPhysics-v0", {"num_train_tasks": 0}, "num_train_tasks must be a whole number"),
        ("PendulumPhysics-v0", {"num_test_tasks": -1}, "num_test_tasks must be a whole number"),
        ("PendulumPhysics-v0", {"spread": 1.0}, r"spread must be a number in \[0, 1\), got 1.0"),
        ("HalfCheetahVel-v0", {"low": 3.0}, "low=3.0 is above high=2.0"),
    ],
)
def test_distributions_that_cannot_be_are_refused(
    name: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make_vec(name, 1, env_kwargs=options)


def test_a_state_without_tasks_takes_them_away() -> None:
    envs = make_vec("PendulumPhysics-v0", 2)
    assert isinstance(envs, TaskVecEnv)
    envs.reset(seed=1)
    state = envs.state_dict()
    envs.set_tasks(torch.full((2, 3), 0.5))
    envs.load_state_dict(state)
    assert envs.state_dict()["tasks"] is None
    envs.set_tasks(np.full((2, 3), 0.5, np.float32))  # type: ignore[arg-type]  # arrays will do
    assert isinstance(envs.state_dict()["tasks"], Tensor)


def test_tasks_of_another_shape_are_refused() -> None:
    envs = make_vec("PendulumPhysics-v0", 2)
    assert isinstance(envs, TaskVecEnv)
    with pytest.raises(DataError, match=r"have shape \(2, 2\); expected \(2, 3\): one task"):
        envs.set_tasks(torch.zeros(2, 2))
    with pytest.raises(CheckpointError, match=r"'tasks': .*have shape \(2, 2\); expected \(2, 3\)"):
        envs.load_state_dict({**envs.state_dict(), "tasks": torch.zeros(2, 2)})


def test_a_state_of_points_that_lacks_their_next_goals_is_refused() -> None:
    envs = PointNavigation(2)
    envs.reset(seed=1)
    state = {name: part for name, part in envs.state_dict().items() if name != "next_goal"}
    with pytest.raises(CheckpointError, match="next_goal"):
        envs.load_state_dict(state)


@pytest.mark.parametrize("env_id", ["PointNavigation-v0", "HalfCheetahVel-v0"])
def test_an_unknown_split_is_refused(env_id: str) -> None:
    with make_vec(env_id, 2) as envs:
        assert isinstance(envs, TaskVecEnv)
        with pytest.raises(ConfigError, match="split: unknown name 'tests'; did you mean 'test'"):
            envs.sample_tasks(1, torch.Generator(), cast("Any", "tests"))
        with pytest.raises(ConfigError, match="split: unknown name 'valid'"):
            envs.num_tasks(cast("Any", "valid"))


def test_a_pool_seeds_each_of_its_environments_when_its_turn_comes() -> None:
    class Drawing(TargetEnv):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            gymnasium.Env.reset(self, seed=seed)
            return self.np_random.uniform(-1.0, 1.0, 1).astype(np.float32), {}

    def starts(seed: int) -> list[float]:
        pool, drawn = TaskPool([Drawing, Drawing], [Drawing]), []
        for number, given in ((0, seed), (1, None), (0, None), (2, None), (1, None), (0, seed)):
            pool.set_task(np.array([number], np.float32))
            drawn.append(float(pool.reset(seed=given)[0][0]))
        return drawn

    first, second, other = starts(3), starts(3), starts(4)
    assert first == second
    assert len(set(first)) == 5  # the last is the first again, whose seed it has
    assert first[0] == first[-1]
    assert not set(first) & set(other)
