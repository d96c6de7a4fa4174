"""What is typed wins over the file, and that over the defaults; the options are the component's."""

import json
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from rl_command.errors import UsageError
from rl_command.train_arguments import DEFAULT_TOTAL_STEPS, read_train_request
from rl_train.recipe_files import save_recipe
from rl_train.trainer import Budget

pytestmark = pytest.mark.usefixtures("needs_ppo")

FILE = """
seed = 5

[env]
name = "CartPole-v1"
num_envs = 3

[algorithm]
name = "ppo"
learning_rate = 1e-3
gamma = 0.9

[algorithm.optimizer]
beta1 = 0.8

[trainer]
total_steps = 5000
keep_checkpoints = 7
"""


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "my.toml"
    path.write_text(FILE)
    return f"--config={path}"


def test_defaults_are_the_algorithm_s_own() -> None:
    request = read_train_request(["ppo", "CartPole-v1"])
    assert request.budget == Budget("steps", DEFAULT_TOTAL_STEPS)
    assert request.arguments.run_dir is None
    assert request.recipe.seed == 0
    assert request.recipe.algorithm["learning_rate"] == 3e-4
    assert request.recipe.env["num_envs"] == 8
    assert request.recipe.resolved == {"total_steps": DEFAULT_TOTAL_STEPS}


def test_the_file_wins_over_the_defaults(config: str) -> None:
    request = read_train_request([config])
    assert request.budget == Budget("steps", 5000)
    recipe = request.recipe
    assert recipe.seed == 5
    assert recipe.env["num_envs"] == 3
    assert recipe.algorithm["learning_rate"] == 1e-3
    assert recipe.trainer["keep_checkpoints"] == 7
    assert "total_steps" not in recipe.trainer
    assert recipe.algorithm["gae_lambda"] == 0.95


def test_a_file_in_json_says_the_same(config: str, tmp_path: Path) -> None:
    path = tmp_path / "my.json"
    path.write_text(json.dumps(tomllib.loads(FILE)))
    in_json, in_toml = (read_train_request([each]) for each in (f"--config={path}", config))
    assert (in_json.recipe, in_json.budget) == (in_toml.recipe, in_toml.budget)


def test_networks_are_typed_in_both_syntaxes() -> None:
    words = ["ppo", "CartPole-v1", "--actor.body"]
    in_toml = "[{func = 'Linear', kwargs = {out_features = 8}}, {func = 'Tanh'}]"
    in_json = '[{"func": "Linear", "kwargs": {"out_features": 8}}, {"func": "Tanh"}]'
    request = read_train_request([*words, in_json])
    assert request.recipe.actor["body"] == [
        {"func": "Linear", "kwargs": {"out_features": 8}},
        {"func": "Tanh", "kwargs": {}},
    ]
    assert request == read_train_request([*words, in_toml])


def test_what_is_typed_wins_over_the_file(config: str) -> None:
    words = "ppo CartPole-v1 --seed 0 --total-steps 1e4 --num-envs 8 --algorithm.gamma 0.99"
    request = read_train_request([*words.split(), config])
    assert request.budget == Budget("steps", 10_000)
    recipe = request.recipe
    assert recipe.seed == 0
    assert recipe.env["num_envs"] == 8
    assert recipe.algorithm["gamma"] == 0.99, "even a default wins where it is typed"
    assert recipe.algorithm["learning_rate"] == 1e-3


def test_a_table_given_in_part_keeps_the_rest(config: str) -> None:
    request = read_train_request([config, "--algorithm.optimizer.beta2", "0.95"])
    optimizer = request.recipe.algorithm["optimizer"]
    assert isinstance(optimizer, dict)
    assert (optimizer["beta1"], optimizer["beta2"], optimizer["eps"]) == (0.8, 0.95, 1e-5)


def test_a_recorded_recipe_is_a_configuration_file(tmp_path: Path) -> None:
    words = ["ppo", "CartPole-v1", "--total-steps=777", "--actor.hidden-sizes", "16", "8"]
    first = read_train_request(words)
    save_recipe(first.recipe, tmp_path / "recipe.toml")
    again = read_train_request([f"--config={tmp_path / 'recipe.toml'}"])
    assert again.recipe == first.recipe
    assert again.budget == Budget("steps", 777)


def test_of_two_options_that_say_the_same_the_one_that_is_typed_counts(tmp_path: Path) -> None:
    typed = "--algorithm.num-minibatches=4"
    algorithm = read_train_request(["ppo", "CartPole-v1", typed]).recipe.algorithm
    assert (algorithm["num_minibatches"], algorithm["minibatch_size"]) == (4, "none")
    path = tmp_path / "my.toml"
    path.write_text("[algorithm]\nminibatch_size = 32\n")
    words = ["ppo", "CartPole-v1", f"--config={path}"]
    algorithm = read_train_request(words).recipe.algorithm
    assert (algorithm["num_minibatches"], algorithm["minibatch_size"]) == ("none", 32)
    algorithm = read_train_request([*words, typed]).recipe.algorithm
    assert (algorithm["num_minibatches"], algorithm["minibatch_size"]) == (4, "none")
    path.write_text("[algorithm]\nnum_minibatches = 2\n")
    algorithm = read_train_request(words).recipe.algorithm
    assert (algorithm["num_minibatches"], algorithm["minibatch_size"]) == (2, "none")


def test_an_option_that_replaces_another_replaces_that_of_a_file(tmp_path: Path) -> None:
    words = ["ppo", "CartPole-v1", "--total-steps=7", "--actor.hidden-sizes", "16", "8"]
    path = tmp_path / "recipe.toml"
    save_recipe(read_train_request(words).recipe, path)
    head = "--actor.head=[{func = 'Linear', kwargs = {out_features = 5}}]"
    actor = read_train_request([f"--config={path}", head]).recipe.actor
    assert actor["hidden_sizes"] == [64, 64]
    with pytest.raises(UsageError, match="hidden-sizes has no effect with head"):
        read_train_request([*words, head])


def test_an_option_that_leaves_another_without_effect_drops_the_default_and_that_of_a_file(
    tmp_path: Path,
) -> None:
    words = ["vpg", "CartPole-v1", "--total-steps=7"]
    assert read_train_request(words).recipe.algorithm["entropy_coef"] == 0.01
    typed = "--algorithm.entropy-method=no_entropy"
    assert read_train_request([*words, typed]).recipe.algorithm["entropy_coef"] == 0.0
    path = tmp_path / "my.toml"
    path.write_text("[algorithm]\nentropy_coef = 0.5\n")
    recipe = read_train_request([*words, f"--config={path}", typed]).recipe
    assert recipe.algorithm["entropy_coef"] == 0.0
    with pytest.raises(UsageError, match="entropy-coef has no effect with entropy_method"):
        read_train_request([*words, typed, "--algorithm.entropy-coef=0.5"])


def test_another_optimizer_than_the_files_starts_anew(tmp_path: Path) -> None:
    words = ["ppo", "CartPole-v1", "--total-steps=7", "--algorithm.optimizer.beta2=0.9"]
    path = tmp_path / "recipe.toml"
    save_recipe(read_train_request(words).recipe, path)
    typed = [f"--config={path}", "--algorithm.optimizer.name=sgd"]
    optimizer = read_train_request(typed).recipe.algorithm["optimizer"]
    assert isinstance(optimizer, dict)
    assert optimizer["name"] == "sgd"
    assert optimizer["beta2"] == 0.999


def test_every_form_of_value_is_taken() -> None:
    line = (
        "--algorithm.learning-rate linear(3e-4,0) --algorithm.target_kl 0.02"
        " --algorithm.max-grad-norm none --actor.normalize-observations --no-env.check"
        " ppo CartPole-v1 --actor.value-hidden-sizes 32,32 --env.num-envs=2"
    )
    recipe = read_train_request(line.split()).recipe
    assert recipe.algorithm["learning_rate"] == "linear(0.0003, 0.0)"
    assert recipe.algorithm["target_kl"] == 0.02
    assert recipe.algorithm["max_grad_norm"] == "none"
    assert recipe.actor["normalize_observations"] is True
    assert recipe.env["check"] is False
    assert recipe.actor["value_hidden_sizes"] == [32, 32]
    assert recipe.env["num_envs"] == 2


def test_options_may_come_before_the_names() -> None:
    line = "--actor.squash-actions ppo --seed 3 Pendulum-v1 --actor.hidden-sizes 8 8"
    recipe = read_train_request(line.split()).recipe
    assert (recipe.algorithm.name, recipe.env.name, recipe.seed) == ("ppo", "Pendulum-v1", 3)
    assert recipe.actor["squash_actions"] is True


PLUGIN = '''
from dataclasses import dataclass
from typing import Literal

from rl_core.algorithm import DefaultRecipe
from rl_core.plugins import load
from rl_core.config import ComponentSpec

Base = load("algorithm", "ppo")


@dataclass(frozen=True, kw_only=True)
class SproutConfig:
    """Options of `Sprout`.

    Attributes:
        vigour: How fast it grows, in (0, 1].
        soil: What it stands in.
    """

    vigour: float = 0.5
    soil: Literal["clay", "sand"] = "clay"


class Sprout(Base):
    """Grow a policy. Slowly."""

    def __init__(self, actor, config: SproutConfig | None = None) -> None:
        super().__init__(actor)

    @classmethod
    def default_recipe(cls, env):
        return DefaultRecipe(
            ComponentSpec("actor", "on-policy", {"hidden_sizes": [4]}),
            ComponentSpec("storage", "rollout"),
            env={"num_envs": 2},
            algorithm={"soil": "sand"},
        )


@dataclass(frozen=True, kw_only=True)
class ThirstyConfig(SproutConfig):
    """Options of `Thirsty`.

    Attributes:
        water: Litres a day.
    """

    water: float


class Thirsty(Sprout):
    """Grow with water."""

    def __init__(self, actor, config: ThirstyConfig | None = None) -> None:
        super().__init__(actor)
'''


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    site = tmp_path / "site"
    folder = site / "sprout-1.0.dist-info"
    folder.mkdir(parents=True)
    (site / "planted_sprout.py").write_text(PLUGIN)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: sprout\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(
        "[rl_core.algorithms]\nsprout = planted_sprout:Sprout\nthirsty = planted_sprout:Thirsty\n"
    )
    monkeypatch.syspath_prepend(site)
    yield
    sys.modules.pop("planted_sprout", None)


@pytest.mark.usefixtures("plugin")
def test_a_plug_in_brings_its_own_options(
    refused: Callable[..., str], rl: Callable[..., tuple[int, str, str]]
) -> None:
    line = "sprout CartPole-v1 --algorithm.vigour 0.75"
    recipe = read_train_request(line.split()).recipe
    assert recipe.algorithm.kwargs == {"vigour": 0.75, "soil": "sand"}
    assert recipe.actor["hidden_sizes"] == [4]
    message = refused("train", *line.split(), "--algorithm.learning-rate=1")
    assert "unknown option --algorithm.learning-rate" in message
    assert "did you mean 'clay'" in refused("train", *line.split(), "--algorithm.soil=cly")
    status, out, _ = rl("train", *line.split(), "--help")
    assert status == 0
    text = " ".join(out.replace("│", " ").split())
    assert "sprout: Grow a policy." in text
    assert "--algorithm.vigour FLOAT How fast it grows, in (0, 1] [default: 0.5]" in text
    assert "--algorithm.soil clay|sand What it stands in [default: sand]" in text


@pytest.mark.usefixtures("plugin")
def test_options_without_a_default_are_given_like_others(
    refused: Callable[..., str], rl: Callable[..., tuple[int, str, str]]
) -> None:
    line = ("thirsty", "CartPole-v1")
    recipe = read_train_request([*line, "--algorithm.water", "2"]).recipe
    assert recipe.algorithm.kwargs == {"vigour": 0.5, "soil": "sand", "water": 2.0}
    assert "algorithm.water: missing; expected a number" in refused("train", *line)
    status, out, _ = rl("train", *line, "--help")
    assert status == 0
    assert "--algorithm.water FLOAT Litres a day" in " ".join(out.replace("│", " ").split())


def test_another_length_takes_the_place_of_a_presets() -> None:
    request = read_train_request(["ppo", "CartPole-v1", "--preset", "--total-updates", "1"])
    assert request.budget == Budget("updates", 1)
    assert "total_steps" not in request.recipe.resolved


def test_a_run_may_be_as_long_as_so_many_episodes_or_updates(config: str, tmp_path: Path) -> None:
    request = read_train_request([config, "--total-updates", "7"])
    assert request.budget == Budget("updates", 7), "the file's steps give way to what is typed"
    assert request.recipe.resolved == {"total_updates": 7}
    save_recipe(request.recipe, tmp_path / "recipe.toml")
    again = read_train_request([f"--config={tmp_path / 'recipe.toml'}"])
    assert again.budget == request.budget
    path = tmp_path / "short.toml"
    path.write_text("[trainer]\ntotal_episodes = 3\n")
    words = ["ppo", "CartPole-v1", f"--config={path}"]
    assert read_train_request(words).budget == Budget("episodes", 3)


@pytest.mark.parametrize(
    "line",
    [
        "ppo CartPole-v1 --trainer.loggers csv text --algorithm.add-ons reward-predictor --seed 2",
        "--trainer.loggers csv text ppo CartPole-v1 --algorithm.add-ons reward-predictor --seed 2",
        "--algorithm.add-ons reward-predictor ppo --trainer.loggers=csv,text CartPole-v1 --seed=2",
        "ppo --trainer.loggers csv {name='text'} --algorithm.add-ons={name='reward-predictor'} "
        "--seed 2 CartPole-v1",
    ],
)
def test_parts_are_given_by_name_or_with_options(line: str) -> None:
    recipe = read_train_request(line.split()).recipe
    assert (recipe.algorithm.name, recipe.env.name, recipe.seed) == ("ppo", "CartPole-v1", 2)
    text: object = {"name": "text"} if "{name='text'}" in line else "text"
    assert recipe.trainer["loggers"] == ["csv", text]
    (add_on,) = cast("list[dict[str, object]]", recipe.algorithm["add_ons"])
    assert add_on["name"] == "reward-predictor"
