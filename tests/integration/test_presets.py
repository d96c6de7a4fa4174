from pathlib import Path

import gymnasium
import pytest

from rl_core import plugins
from rl_core.errors import ConfigError
from rl_train.builder import compose
from rl_train.presets import preset_envs, preset_file, preset_sections

PRESETS = [
    (algorithm, env)
    for algorithm in plugins.available("algorithm")
    for env in preset_envs(algorithm)
]


@pytest.mark.parametrize(("algorithm", "env"), PRESETS, ids=lambda name: name)
def test_every_preset_is_a_recipe_with_a_length(algorithm: str, env: str) -> None:
    if env == "FetchReach-v4" and env not in gymnasium.registry:
        pytest.skip("needs gymnasium-robotics")
    sections, total_steps = preset_sections(algorithm, env)
    recipe = compose(algorithm, env, sections)
    assert total_steps >= 20_000
    for section in ("actor", "storage", "algorithm"):
        kwargs = getattr(recipe, section).kwargs
        for name, value in sections.get(section, {}).items():
            if not isinstance(value, dict):
                assert kwargs[name] == value


def test_the_nearest_environment_with_a_preset_is_named() -> None:
    with pytest.raises(ConfigError, match=r"sac has no preset for 'HalfCheetah-v4'.*HalfCheetah-v5"):
        preset_file("sac", "HalfCheetah-v4")
    with pytest.raises(ConfigError, match="bc has no preset for 'CartPole-v1'"):
        preset_file("bc", "CartPole-v1")


def test_presets_lie_in_the_package_of_the_algorithm() -> None:
    path = preset_file("dqn", "CartPole-v1")
    assert path.parts[-3:] == Path("presets", "dqn", "CartPole-v1.toml").parts
