from my_plugin import Corridor
from my_plugin.corridor import LEFT, RIGHT
from rl_core import VecEnv
from rl_envs import make_gym_vec
from rl_testing.envs import VecEnvSuite


class TestCorridor(VecEnvSuite):
    def make_env(self) -> VecEnv:
        return make_gym_vec(Corridor, num_envs=3, seed=0)


def test_both_ends_end_the_episode() -> None:
    for action, reward in ((LEFT, -1.0), (RIGHT, 1.0)):
        env = Corridor(length=1)
        assert env.reset(seed=0)[0] == 1
        assert env.step(action)[1:] == (reward, True, False, {})


def test_dawdling_is_cut_but_not_punished() -> None:
    env = Corridor(length=2)
    cell, _ = env.reset(seed=0)
    for steps in range(1, 9):
        cell, reward, terminated, truncated, _ = env.step(LEFT if cell == 2 else RIGHT)
        assert (reward, terminated, truncated) == (0.0, False, steps == 8)
