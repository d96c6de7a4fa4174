from dataclasses import replace

import gymnasium
import pytest

from rl_core import plugins
from rl_core.errors import ConfigError
from rl_train import make
from rl_train.builder import compose
from rl_train.presets import preset_envs, read_preset

PRESETS = [
    (algorithm, env, name)
    for algorithm in plugins.available("algorithm")
    for env, names in preset_envs(algorithm).items()
    for name in names
]


@pytest.mark.filterwarnings("ignore:builtin type:DeprecationWarning")  # of Box2D
@pytest.mark.parametrize(("algorithm", "env", "name"), PRESETS, ids=lambda name: name)
def test_every_preset_is_a_recipe_with_a_length(algorithm: str, env: str, name: str) -> None:
    if env == "FetchReach-v4" and env not in gymnasium.registry:
        pytest.skip("needs gymnasium-robotics")
    resolved, sections = read_preset(algorithm, env, name or True)
    recipe = compose(algorithm, env, preset=name or True)
    assert resolved["preset"] == f"{algorithm}/{env}@{name}".removesuffix("@")
    assert replace(compose(algorithm, env, sections), resolved=resolved) == recipe


def test_given_options_win_over_a_presets() -> None:
    recipe = compose(
        "dqn", "CartPole-v1", {"actor": {"num_critics": 1}}, preset=True, unplaced={"gamma": 0.9}
    )
    assert recipe.actor.kwargs["num_critics"] == 1
    assert recipe.actor.kwargs["hidden_sizes"] == [120, 84]
    assert recipe.algorithm.kwargs["gamma"] == 0.9
    assert recipe.storage.kwargs["n_step"] == 3


def test_the_nearest_environment_with_a_preset_is_named() -> None:
    with pytest.raises(
        ConfigError, match=r"sac has no preset for 'HalfCheetah-v4'.*HalfCheetah-v5"
    ):
        read_preset("sac", "HalfCheetah-v4")
    with pytest.raises(ConfigError, match="bc has no preset for 'CartPole-v1'"):
        read_preset("bc", "CartPole-v1")
    assert read_preset("bc", "CartPole-v1", None) == ({}, {})


def test_the_nearest_name_of_a_preset_is_named() -> None:
    with pytest.raises(
        ConfigError,
        match=r"'one-stp' for 'CartPole-v1'; did you mean 'one-step'\?.*; one has no name",
    ):
        read_preset("dqn", "CartPole-v1", "one-stp")
    with pytest.raises(
        ConfigError, match="td3 has no preset 'fast' for 'Pendulum-v1'; one has no name"
    ):
        read_preset("td3", "Pendulum-v1", "fast")


def test_an_agent_trains_as_long_as_its_preset_says() -> None:
    agent = make("td3", "Pendulum-v1", preset=True)
    agent.parts = replace(agent.parts, recipe=replace(agent.recipe, resolved={"total_steps": 300}))
    assert agent.train(progress=False).total_steps == 300
    agent.close()
    with pytest.raises(ConfigError, match="total_steps"):
        make("td3", "Pendulum-v1").train()
