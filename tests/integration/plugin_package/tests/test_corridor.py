import numpy as np

from my_plugin import Corridor
from my_plugin.corridor import RIGHT
from rl_core.env import VecEnv
from rl_testing.envs import VecEnvSuite


class TestCorridor(VecEnvSuite):
    def make_env(self) -> VecEnv:
        return Corridor(num_envs=3, seed=0)


def test_both_ends_end_the_episode() -> None:
    envs = Corridor(num_envs=2, length=1)
    assert envs.reset(seed=0).tolist() == [1, 1]
    step = envs.step(np.array([1 - RIGHT, RIGHT]))
    assert np.asarray(step.reward).tolist() == [-1.0, 1.0]
    assert np.asarray(step.terminated).tolist() == [True, True]
    assert np.asarray(step.final_observation).tolist() == [0, 2]


def test_dawdling_is_cut_but_not_punished() -> None:
    envs = Corridor(num_envs=1, length=2)
    cell = envs.reset(seed=0)
    for steps in range(1, 9):
        step = envs.step(np.where(cell == 2, 1 - RIGHT, RIGHT))
        cell = np.asarray(step.observation)
        assert float(np.asarray(step.reward)[0]) == 0.0
        assert bool(np.asarray(step.truncated)[0]) == (steps == 8)
