"""Recipes of on-policy algorithms: networks from data, intrinsic rewards, defaults."""

import pytest

from rl_core.build import build, build_trainer, compose
from rl_core.components import describe_component
from rl_core.errors import ConfigError
from rl_core.recipe import Recipe
from rl_core.stateful import StateReader
from rl_core.testing.stateful import check_same_state
from rl_core.types import Json


def test_a_recipe_names_layers() -> None:
    head: Json = [{"func": "Linear", "kwargs": {"out_features": 5}}, {"func": "ReLU"}]
    recipe = compose("ppo", "CartPole-v1", {"actor": {"head": head}})
    assert Recipe.from_toml(recipe.to_toml()) == recipe
    parts = build(recipe)
    parts.envs.close()
    assert describe_component("actor", parts.algorithm.actor) == recipe.actor
    with pytest.raises(ConfigError, match="unknown layer 'Lineal'"):
        compose("ppo", "CartPole-v1", {"actor": {"head": [{"func": "Lineal"}]}})


def test_the_default_recipe_of_an_algorithm() -> None:
    recipe = Recipe.default("ppo")
    assert recipe == compose("ppo", "CartPole-v1")
    assert recipe.algorithm.clip_range == 0.2
    assert recipe.algorithm.optimizer["name"] == "adam"  # type: ignore[index,call-overload]  # a table
    with pytest.raises(AttributeError, match="did you mean 'clip_range'"):
        _ = recipe.algorithm.clip_rang


@pytest.mark.parametrize("algorithm", ["rnd-ppo", "a2c"])
def test_a_run_begins_with_random_steps_and_goes_on_where_it_was(algorithm: str) -> None:
    rnd: dict[str, Json] = {"hidden_sizes": [8], "pre_normalization_steps": 64}
    own: dict[str, Json] = {"rnd": rnd, "mini_batch_size": 8}
    if algorithm == "a2c":
        own = {"add_ons": [{"name": "rnd", "rnd": rnd}]}
    options: dict[str, dict[str, Json]] = {
        "env": {"num_envs": 2},
        "storage": {"num_steps": 8},
        "actor": {"hidden_sizes": [4]},
        "algorithm": own,
        "trainer": {"compile": "off", "num_threads": 1},
    }
    recipe = compose(algorithm, "MountainCar-v0", options)
    whole = build_trainer(build(recipe))
    whole.train(16)
    state = whole.algorithm.state_dict()
    name = "novelty" if algorithm == "rnd-ppo" else "add_ons.0.novelty"
    modules = StateReader(state, "algorithm").tensors("modules")
    assert modules[f"{name}.normalize.norms.0.count"] == 64 + 16
    assert whole.total_steps == 16
    saved = whole.state_dict()
    other = build_trainer(build(recipe))
    other.load_state_dict(saved)
    check_same_state(other.algorithm.state_dict(), whole.algorithm.state_dict())
