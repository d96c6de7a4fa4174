"""Recipes of algorithms: networks from data, intrinsic rewards, defaults."""

from pathlib import Path

import pytest

from rl_core import plugins
from rl_core.errors import ConfigError
from rl_core.stateful import StateReader
from rl_core.types import Json
from rl_testing.stateful import check_same_state
from rl_train.builder import build, build_trainer, compose
from rl_train.builder.components import complete_component
from rl_train.builder.describe import describe_component
from rl_train.recipe_files import from_toml, load_recipe, save_recipe, to_toml


def test_a_recipe_names_layers() -> None:
    head: Json = [{"func": "Linear", "kwargs": {"out_features": 5}}, {"func": "ReLU"}]
    recipe = compose("ppo", "CartPole-v1", {"actor": {"head": head}})
    assert from_toml(to_toml(recipe)) == recipe
    parts = build(recipe)
    parts.envs.close()
    assert describe_component("actor", parts.algorithm.actor) == recipe.actor
    with pytest.raises(ConfigError, match="unknown layer 'Lineal'"):
        compose("ppo", "CartPole-v1", {"actor": {"head": [{"func": "Lineal"}]}})


def test_a_recipe_names_layers_and_a_memory_brings_sequences() -> None:
    head: Json = [{"func": "Linear", "kwargs": {"out_features": 5}}, {"func": "GRU"}]
    recipe = compose("sac", "Pendulum-v1", {"actor": {"head": head}})
    assert from_toml(to_toml(recipe)) == recipe
    parts = build(recipe)
    parts.envs.close()
    assert parts.algorithm.actor.is_recurrent
    assert parts.storage.gives_sequences
    assert describe_component("actor", parts.algorithm.actor) == recipe.actor


@pytest.mark.parametrize("algorithm", sorted({*plugins.available("algorithms")} - {"pearl"}))
def test_options_that_replace_others_also_replace_those_of_the_algorithm(algorithm: str) -> None:
    usual = compose(algorithm, DEFAULT_ENVS[algorithm])
    own_layers: dict[str, dict[str, Json]] = {
        "rainbow": {"noisy": False},
        "droq": {"critic_dropout": 0.0, "critic_layer_norm": False},
    }
    head: Json = [{"func": "Linear", "kwargs": {"out_features": 5}}, {"func": "GRU"}]
    without = own_layers.get(algorithm, {})
    actor: dict[str, Json] = {"name": usual.actor.name, "head": head, **without}
    recipe = compose(algorithm, DEFAULT_ENVS[algorithm], {"actor": actor})
    assert (
        recipe.actor["hidden_sizes"]
        == complete_component("actor", usual.actor.name, {})["hidden_sizes"]
    )
    assert recipe.actor["normalize_observations"] == usual.actor["normalize_observations"]
    with pytest.raises(ConfigError, match="hidden_sizes has no effect with head; leave one"):
        compose(algorithm, DEFAULT_ENVS[algorithm], {"actor": {**actor, "hidden_sizes": [7]}})
    same = compose(algorithm, DEFAULT_ENVS[algorithm], {"actor": {"head": "none"}})
    assert same.actor == usual.actor


def test_the_default_recipe_of_an_algorithm() -> None:
    recipe = compose("ppo", "CartPole-v1")
    assert recipe.algorithm.clip_range == 0.2
    assert recipe.algorithm.optimizer.name == "adam"
    with pytest.raises(AttributeError, match="did you mean 'clip_range'"):
        _ = recipe.algorithm.clip_rang


def test_the_entropy_of_discrete_actions_alone_counts_in_vpg() -> None:
    assert compose("vpg", "CartPole-v1").algorithm.entropy_coef == 0.01
    assert compose("vpg", "Pendulum-v1").algorithm.entropy_coef == 0.0


DEFAULT_ENVS = {
    "a2c": "CartPole-v1",
    "bc": "CartPole-v1",
    "ddpg": "Pendulum-v1",
    "dqn": "CartPole-v1",
    "droq": "Pendulum-v1",
    "maml-ppo": "PointNavigation-v0",
    "maml-trpo": "PointNavigation-v0",
    "maml-vpg": "PointNavigation-v0",
    "pearl": "PointNavigation-v0",
    "ppo": "Pendulum-v1",
    "rainbow": "CartPole-v1",
    "redq": "Pendulum-v1",
    "rnd-ppo": "MountainCar-v0",
    "sac": "Pendulum-v1",
    "td3": "Pendulum-v1",
    "trpo": "Pendulum-v1",
    "vpg": "CartPole-v1",
}


def test_every_algorithm_is_in_the_table() -> None:
    assert set(plugins.available("algorithms")) == set(DEFAULT_ENVS)


@pytest.mark.parametrize(("algorithm", "env"), DEFAULT_ENVS.items())
def test_default_recipes_are_saved_loaded_and_built(
    algorithm: str, env: str, tmp_path: Path
) -> None:
    recipe = compose(algorithm, env)
    assert recipe.algorithm.name == algorithm
    assert recipe.env.name == env
    save_recipe(recipe, tmp_path / "recipe.toml")
    assert load_recipe(tmp_path / "recipe.toml") == recipe
    small = {"size": 100} if "size" in recipe.storage.kwargs else {}
    parts = build(recipe.merged({"storage": dict(small)}))
    parts.envs.close()
    built = describe_component("algorithm", parts.algorithm)
    for option, value in recipe.algorithm.kwargs.items():
        if value != "none":  # such as DQN's epsilon, which it settles by its critics
            assert built[option] == value, option
    assert describe_component("actor", parts.algorithm.actor) == recipe.actor


@pytest.mark.parametrize("algorithm", ["rnd-ppo", "a2c"])
def test_a_run_begins_with_random_steps_and_goes_on_where_it_was(algorithm: str) -> None:
    rnd: dict[str, Json] = {"hidden_sizes": [8], "pre_normalization_steps": 64}
    own: dict[str, Json] = {"rnd": rnd, "minibatch_size": 8}
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
    modules = StateReader(state, "algorithm").tensors("modules")
    assert modules["add_ons.0.novelty.normalize.norms.0.count"] == 64 + 16
    assert describe_component("algorithm", whole.algorithm) == recipe.algorithm
    assert whole.total_steps == 16
    saved = whole.state_dict()
    other = build_trainer(build(recipe))
    other.load_state_dict(saved)
    check_same_state(other.algorithm.state_dict(), whole.algorithm.state_dict())


@pytest.mark.parametrize(
    ("algorithm", "actor", "options"),
    [
        ("redq", {"num_critics": 10}, {"num_target_critics": 2}),
        ("droq", {"critic_dropout": 0.01, "critic_layer_norm": True}, {}),
    ],
)
def test_redq_and_droq_are_sac_with_these_options(
    algorithm: str, actor: dict[str, Json], options: dict[str, Json]
) -> None:
    many_steps: dict[str, Json] = {"policy_value": "mean", "num_minibatches": 20}
    options |= {**many_steps, "policy_delay": 20}
    sac = compose("sac", "Pendulum-v1", {"actor": actor, "algorithm": options})
    ours = compose(algorithm, "Pendulum-v1")
    assert ours.algorithm.kwargs == sac.algorithm.kwargs
    assert (ours.actor, ours.storage, ours.env) == (sac.actor, sac.storage, sac.env)


def test_a_recipe_names_the_version_of_an_id() -> None:
    # so that a run which is resumed after an update goes on with the environment that it began with
    assert compose("ppo", "CartPole").env.name == "CartPole-v1"
    assert compose("ppo", "CartPole-v0").env.name == "CartPole-v0"
    assert compose("maml-trpo", "PointNavigation-v0").env.name == "PointNavigation-v0"
    with pytest.raises(ConfigError, match="did you mean 'CartPole"):
        compose("ppo", "CartPol")
