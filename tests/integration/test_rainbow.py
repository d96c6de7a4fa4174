"""The preset that combines every option of DQN."""

import pytest

from rl_algos_offpolicy import DQN, DQNConfig, Rainbow
from rl_command.errors import UsageError
from rl_command.train_arguments import read_train_request
from rl_core.types import Json
from rl_train.builder import build, build_trainer, compose
from rl_train.recipe_files import from_toml, to_toml

SMALL: dict[str, dict[str, Json]] = {
    "actor": {"hidden_sizes": [16], "num_atoms": 11, "value_range": [0.0, 20.0]},
    "algorithm": {"update_after": 100, "update_every": 4, "minibatch_size": 16},
    "storage": {"size": 1000},
    "trainer": {"compile": "off", "num_threads": 1},
}


def test_its_options_are_those_of_the_papers_table() -> None:
    parts = build(compose("rainbow", "CartPole-v1", device="cpu"))
    algorithm = parts.algorithm
    parts.envs.close()
    assert isinstance(algorithm, Rainbow)
    actor, config = algorithm.actor.config, algorithm.config
    assert (actor.noisy, actor.sigma, actor.dueling) == (True, 0.5, True)
    returns = algorithm.actor.critics.returns
    assert returns is not None
    assert returns.num_outputs == 51
    assert returns.get_buffer("atoms")[[0, -1]].tolist() == [-10.0, 10.0]
    assert config.double
    assert config.optimizer.name == "adam"
    assert config.optimizer.eps == 1.5e-4
    assert config.gamma == 0.99
    assert "epsilon" not in algorithm.schedules
    storage = parts.recipe.storage
    assert storage["n_step"] == 3
    prioritized = storage["prioritized"]
    assert isinstance(prioritized, dict)
    assert (prioritized["alpha"], prioritized["beta"]) == (0.5, "linear(0.4, 1.0)")


def test_it_trains_from_its_recipe_alone() -> None:
    recipe = from_toml(to_toml(compose("rainbow", "CartPole-v1", SMALL, device="cpu")))
    trainer = build_trainer(build(recipe))
    algorithm = trainer.algorithm
    before = algorithm.get_weights().tensors
    trainer.train(total_steps=400)
    trainer.envs.close()
    moved = [
        name
        for name, tensor in algorithm.get_weights().tensors.items()
        if name.startswith("actor.") and not tensor.equal(before[name])
    ]
    assert len(moved) == len(list(algorithm.actor.parameters()))
    assert algorithm.gradients.count > 70  # one in four steps, after the first 100


def test_without_noise_it_explores_like_dqn() -> None:
    plain = compose("rainbow", "CartPole-v1", {**SMALL, "actor": {"noisy": False}}, device="cpu")
    parts = build(plain)
    parts.envs.close()
    assert isinstance(parts.algorithm, DQN)
    assert isinstance(parts.algorithm.config, DQNConfig)
    assert parts.algorithm.schedules["epsilon"].value(1.0) == 0.05


@pytest.mark.parametrize(
    "words",
    [
        ["--storage.prioritized", "none"],
        ["--storage.prioritized=none"],
    ],
)
def test_a_table_of_the_preset_can_be_left_out(words: list[str]) -> None:
    storage = read_train_request(["rainbow", "CartPole-v1", *words]).recipe.storage
    assert storage["prioritized"] == "none"
    assert storage["n_step"] == 3


def test_a_table_can_be_taken_with_its_defaults() -> None:
    words = ["dqn", "CartPole-v1", "--storage.prioritized", "{}"]
    storage = read_train_request(words).recipe.storage
    assert storage.prioritized["alpha"] == 0.6


def test_a_table_that_is_left_out_has_no_options() -> None:
    words = ["--storage.prioritized", "none", "--storage.prioritized.eta", "0.3"]
    message = r"--storage\.prioritized\.eta contradicts --storage\.prioritized;"
    with pytest.raises(UsageError, match=message):
        read_train_request(["rainbow", "CartPole-v1", *words])
