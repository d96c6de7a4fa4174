from pathlib import Path
from typing import Any, cast

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import FlattenObservation, FrameStackObservation

from rl_core.errors import ConfigError, SpaceError
from rl_core.types import Array
from rl_envs import make_vec
from rl_envs.wrappers import VELOCITY_INDICES, MaskVelocity

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
    hidden = observation[list(VELOCITY_INDICES[name])]
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
    with pytest.raises(ConfigError, match="1 wrappers; use sync or async"):
        make_vec("CartPole-v1", 2, vectorization="native", mask_velocity=True)


def test_what_cannot_be_masked_is_refused() -> None:
    class CartPoles(gymnasium.Env):
        observation_space = spaces.Box(-1.0, 1.0, (4,))
        action_space = spaces.Discrete(2)

    with pytest.raises(ConfigError, match="did you mean 'CartPole'"):
        MaskVelocity(CartPoles())
    with pytest.raises(ConfigError, match="expected entries from 0 to 3"):
        MaskVelocity(CartPoles(), velocity_indices=[4])
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
