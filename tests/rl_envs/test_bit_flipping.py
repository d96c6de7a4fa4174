import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from rl_core.errors import ConfigError
from rl_envs import BitFlipping, make_vec


def test_it_is_an_environment() -> None:
    check_env(BitFlipping(4), skip_render_check=True)
    assert isinstance(gymnasium.make("BitFlipping-v0").unwrapped, BitFlipping)
    with make_vec("BitFlipping-v0", env_kwargs={"num_bits": 6}) as envs:
        assert envs.max_episode_steps == 6


def test_flipping_the_wrong_bits_reaches_the_goal() -> None:
    env = BitFlipping(6)
    for seed in range(20):
        observation, _ = env.reset(seed=seed)
        wrong = (observation["observation"] != observation["desired_goal"]).nonzero()[0]
        assert len(wrong)
        for count, action in enumerate(wrong, start=1):
            observation, reward, terminated, truncated, info = env.step(action)
            is_last = count == len(wrong)
            assert (reward, terminated) == (0.0 if is_last else -1.0, is_last)
            assert info == {"is_success": is_last}
            assert truncated == (count == 6)


def test_observations_are_not_written_to_again() -> None:
    env = BitFlipping(4)
    first, _ = env.reset(seed=0)
    before = first["achieved_goal"].copy()
    env.step(np.int64(1))
    assert (first["achieved_goal"] == before).all()


def test_episodes_may_vary_in_length() -> None:
    env = BitFlipping(8, max_steps=10, varies=True)
    lengths = set()
    for seed in range(60):
        env.reset(seed=seed)
        length = 1
        while not (outcome := env.step(np.int64(length % 2)))[3]:
            if outcome[2]:
                length = 0
                break
            length += 1
        lengths.add(length)
    assert lengths - {0} == {5, 6, 7, 8, 9, 10}


def test_goals_are_judged_as_in_its_steps() -> None:
    bits = np.array([[0, 1], [1, 1]], np.int8)
    goals = np.array([[0, 1], [0, 1]], np.int8)
    env = BitFlipping(2)
    assert env.compute_reward(bits, goals, {}).tolist() == [0.0, -1.0]
    assert env.compute_terminated(bits, goals, {}).tolist() == [True, False]
    endless = BitFlipping(2, ends_on_success=False)
    assert endless.compute_terminated(bits, goals, {}).tolist() == [False, False]


@pytest.mark.parametrize("options", [{"num_bits": 0}, {"num_bits": 3, "max_steps": 0}])
def test_numbers_out_of_range_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        BitFlipping(**options)  # type: ignore[arg-type]  # of one type here


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_a_vector_of_them_tells_how_goals_are_rewarded(vectorization: str) -> None:
    with make_vec("BitFlipping-v0", 2, vectorization=vectorization) as envs:  # type: ignore[arg-type]  # one of its names
        functions = envs.goal_functions()
    assert functions is not None
    bits = np.array([[0] * 15, [1] * 15], np.int8)
    assert functions.rewards(bits, bits[::-1].copy()).tolist() == [-1.0, -1.0]
    assert functions.rewards(bits, bits).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_rewards_of_other_goals_are_scaled_and_clipped_like_the_others(vectorization: str) -> None:
    with make_vec(
        "BitFlipping-v0",
        2,
        vectorization=vectorization,  # type: ignore[arg-type]  # one of its names
        training_reward_scale=4.0,
        training_reward_clip=3.0,
    ) as envs:
        functions = envs.goal_functions()
        envs.reset(seed=0)
        reward = np.asarray(envs.step(np.zeros(2, np.int64)).reward)
    assert functions is not None
    assert reward.tolist() == [-3.0, -3.0]
    bits = np.array([[0] * 15, [1] * 15], np.int8)
    assert functions.rewards(bits, bits[::-1].copy()).tolist() == [-3.0, -3.0]
    assert functions.rewards(bits, bits).tolist() == [0.0, 0.0]
