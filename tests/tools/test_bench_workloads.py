import gymnasium
import numpy as np
import pytest
from bench import ours
from bench.workloads import WORKLOADS, PPOSettings

from rl_envs import make_vec


class Screen(gymnasium.Env):
    """Has the spaces of a prepared Atari game."""

    observation_space = gymnasium.spaces.Box(0, 255, (4, 84, 84), np.uint8)
    action_space = gymnasium.spaces.Discrete(6)


def test_our_network_for_images_is_the_one_of_stable_baselines3() -> None:
    settings = WORKLOADS["ppo-pong"].settings
    assert isinstance(settings, PPOSettings)
    with make_vec(Screen) as envs:
        algorithm, _ = ours._from_rollouts(settings, envs, "cpu")
    sizes = {
        "convolutions": 32 * (4 * 8 * 8 + 1) + 64 * (32 * 4 * 4 + 1) + 64 * (64 * 3 * 3 + 1),
        "linear": 512 * (64 * 7 * 7 + 1),
        "heads": 6 * (512 + 1) + (512 + 1),
    }
    assert sum(each.numel() for each in algorithm.actor.parameters()) == sum(sizes.values())


@pytest.mark.parametrize("name", WORKLOADS)
def test_whole_rollouts_fill_the_minibatches(name: str) -> None:
    settings = WORKLOADS[name].settings
    if isinstance(settings, PPOSettings):
        assert settings.num_envs * settings.num_steps % settings.minibatch_size == 0
