from pathlib import Path

import pytest

from rl_command.main import main as rl
from rl_core.config import Recipe
from rl_train.recipe_files import load_recipe


def _recipe_of(words: str, run: Path) -> Recipe:
    """Train for an episode, and return the recipe that the run wrote."""
    assert rl(["train", *words.split(), "--total-episodes", "1", "--run-dir", str(run)]) == 0
    return load_recipe(run / "recipe.toml")


def test_a_run_begins_with_the_preset_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = _recipe_of("td3 Pendulum-v1 --preset --algorithm.tau 0.01", tmp_path / "run")
    assert recipe.resolved["preset"] == "td3/Pendulum-v1"
    assert recipe.resolved["total_episodes"] == 1
    assert "total_steps" not in recipe.resolved
    assert recipe.actor.kwargs["hidden_sizes"] == [400, 300]
    assert recipe.algorithm.kwargs["tau"] == 0.01
    assert "td3 on Pendulum-v1, seed 0, preset: 200 steps" in capsys.readouterr().out


def test_a_preset_is_chosen_by_its_name_before_or_after_the_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = _recipe_of("--preset plain dqn CartPole-v1", tmp_path / "run")
    assert recipe.resolved["preset"] == "dqn/CartPole-v1@plain"
    assert recipe.algorithm.kwargs["double"] is False
    assert recipe.storage.kwargs["n_step"] == 1
    assert "dqn on CartPole-v1, seed 0, preset plain: " in capsys.readouterr().out


def test_an_environment_behind_preset_is_no_name_of_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert rl(["train", "dqn", "--preset", "CartPole-v1", "--help"]) == 0
    assert "[default: 120 84]" in capsys.readouterr().out


def test_help_shows_the_presets_values(capsys: pytest.CaptureFixture[str]) -> None:
    assert rl(["train", "td3", "Pendulum-v1", "--preset", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "[default: 20000]" in shown
    assert "[default: 400 300]" in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("td3 Pendulum-v2 --preset", "td3 has no preset for 'Pendulum-v2'; did you mean"),
        ("bc Pendulum-v1 --preset", "bc has no preset for 'Pendulum-v1'"),
        ("dqn CartPole-v1 --preset plane", "dqn has no preset 'plane' for 'CartPole-v1'"),
        ("td3 Pendulum-v1 --preset --config a.toml", "a.toml"),
    ],
)
def test_a_preset_that_there_is_not_is_refused(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rl(["train", *words.split()]) == 2
    assert message in capsys.readouterr().err


def test_presets_are_listed_with_their_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert rl(["list", "presets"]) == 0
    shown = capsys.readouterr().out
    assert "dqn/CartPole-v1" in shown
    assert "rl train ppo Walker2d-v5 --preset" in shown
    assert "dqn/CartPole-v1@plain " in shown
    assert "rl train dqn CartPole-v1 --preset plain\n" in shown
