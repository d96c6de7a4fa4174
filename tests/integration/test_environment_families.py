"""One environment of every family trains, is evaluated and resumes by the command line."""

from pathlib import Path

import pytest

from rl_command.main import main as rl
from rl_train.recipe_files import load_recipe

SHORT = (
    "--total-steps 32 --storage.num-steps 8 --algorithm.num-epochs 1 --algorithm.num-minibatches 1 "
    "--env.num-envs 2 --trainer.compile off --trainer.num-test-episodes 1 "
    "--trainer.max-test-steps 20"
)


@pytest.mark.filterwarnings("ignore")  # of other packages' age, texts and bounds
@pytest.mark.parametrize(
    ("modules", "env_id", "options"),
    [
        ("", "CartPole-v1", ""),
        ("", "FrozenLake-v1", ""),
        ("Box2D", "LunarLander-v3", ""),
        ("mujoco", "HalfCheetah-v5", ""),
        ("ale_py cv2", "ALE/Pong-v5", ""),
        ("minigrid", "MiniGrid-Empty-5x5-v0", ""),
        ("pybullet_envs_gymnasium", "AntBulletEnv-v0", ""),
        ("gymnasium_robotics", "FetchReach-v4", ""),
        ("metaworld", "MetaWorldML1-v0", ""),
        ("shimmy dm_control", "dm_control/cartpole-balance-v0", ""),
        ("envpool", "CartPole-v1", "--env.vectorization envpool"),
        ("envpool", "ALE/Pong-v5", "--env.vectorization envpool"),
        ("", "PointNavigation-v0", ""),
        ("", "PendulumPhysics-v0", ""),
    ],
)
def test_an_environment_of_every_family_trains_by_its_name(
    modules: str, env_id: str, options: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in modules.split():
        pytest.importorskip(module)
    monkeypatch.chdir(tmp_path)  # simulators write their warnings into files there
    assert rl(f"train ppo {env_id} {SHORT} {options} --run-dir run".split()) == 0
    recipe = load_recipe(tmp_path / "run" / "recipe.toml")
    assert recipe.env.name == env_id
    if "vectorization" in recipe.env.kwargs:  # what auto chose, so that a resume does not choose
        assert recipe.env.kwargs["vectorization"] in ("sync", "async", "native", "envpool")
    assert rl(["resume", "run", "--total-steps", "64"]) == 0
