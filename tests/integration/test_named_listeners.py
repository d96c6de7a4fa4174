"""Loggers and callbacks by registered name: from options to the recipe, and back after a resume."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rl_train
from rl_core.errors import ConfigError, PluginError
from rl_train import Callback, ConsoleLogger, TrainerConfig
from rl_train.builder import build_trainer
from rl_train.loggers import read_metrics
from rl_train.recipe_files import load_recipe

SMALL: dict[str, Any] = {
    "num_steps": 16,
    "num_minibatches": 1,
    "num_envs": 2,
    "num_test_episodes": 1,
    "compile": "off",
}
CONSOLE = {"name": "console", "every_seconds": 1e6}


def steps_in(run_dir: Path) -> tuple[list[int], list[int], list[int]]:
    """Return the logged steps by the JSON lines, the CSV and the text."""
    lines = [int(line["step"] or 0) for line in read_metrics(run_dir / "metrics.jsonl")]
    rows = (run_dir / "metrics.csv").read_text("utf-8").splitlines()[1:]
    headers = (run_dir / "metrics.txt").read_text("utf-8").split("--- step ")[1:]
    return (
        lines,
        [int(row.split(",")[0]) for row in rows],
        [int(header.split(", ")[0].replace(",", "")) for header in headers],
    )


def test_named_loggers_are_recorded_and_continue_when_a_run_is_resumed(tmp_path: Path) -> None:
    agent = rl_train.make("ppo", "CartPole-v1", loggers=["csv"], seed=0, **SMALL)
    agent.train(64, run_dir=tmp_path, loggers=["text", "csv"], progress=False)
    assert steps_in(tmp_path) == ([32, 64],) * 3
    recorded = load_recipe(tmp_path / "recipe.toml").trainer["loggers"]
    assert recorded == ["csv", "text"] == agent.recipe.trainer["loggers"]
    with (tmp_path / "metrics.csv").open("a") as rows, (tmp_path / "metrics.txt").open("a") as text:
        rows.write("9000,1.0\n")  # after the checkpoint from which the run resumes
        text.write("--- step 9,000, later ---\na  1\n\n")
    trainer = build_trainer(rl_train.load(tmp_path).parts, run_dir=tmp_path)
    trainer.resume()
    trainer.train(128, progress=False)
    assert steps_in(tmp_path) == ([32, 64, 96, 128],) * 3


def test_names_and_objects_go_together(capsys: pytest.CaptureFixture[str]) -> None:
    agent = rl_train.make("ppo", "CartPole-v1", seed=0, **SMALL)
    agent.train(32, loggers=[ConsoleLogger(), CONSOLE], progress=False)
    assert capsys.readouterr().out.count("train/episode_return ") == 2
    assert agent.recipe.trainer["loggers"] == [CONSOLE]


def refused_by_make(**options: Any) -> None:
    rl_train.make("ppo", "CartPole-v1", **options)


def refused_by_trainer(**options: Any) -> None:
    parts = rl_train.make("ppo", "CartPole-v1").parts
    config = TrainerConfig(**options)
    rl_train.Trainer(parts.envs, parts.algorithm, parts.storage, config=config)


@pytest.mark.parametrize("use", [refused_by_make, refused_by_trainer])
def test_unknown_names_and_options_are_refused_before_training(use: Callable[..., None]) -> None:
    with pytest.raises(PluginError, match="no logger 'csvv'; did you mean 'csv'"):
        use(loggers=("csvv",))
    with pytest.raises(ConfigError, match=r"logger\.every_second: .* mean 'every_seconds'"):
        use(loggers=({"name": "console", "every_second": 1.0},))
    with pytest.raises(PluginError, match="no callback 'csv'"):
        use(callbacks=("csv",))
    with pytest.raises(ConfigError, match=r"trainer\.loggers\[0\]: .*a table with a name"):
        use(loggers=({"every_seconds": 1.0},))


def test_objects_in_make_are_sent_to_train() -> None:
    with pytest.raises(ConfigError, match=r"callbacks: give objects to train\(callbacks="):
        rl_train.make("ppo", "CartPole-v1", callbacks=[Callback()])
