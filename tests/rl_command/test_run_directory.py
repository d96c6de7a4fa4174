"""Where a new run is written, when none says so and others start at the same time."""

import os
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest

from rl_command.main import main
from rl_command.run_directory import new_run_dir
from rl_core.config import ComponentSpec, Recipe
from rl_train import Trainer
from rl_train.builder import Parts, build_trainer

Run = Callable[..., tuple[int, str, str]]
Refused = Callable[..., str]

NOW = datetime(2026, 1, 2, 3, 4, 5)
NAME = "ppo-CartPole-v1-s0-20260102-030405"
RECIPE = Recipe(
    env=ComponentSpec("env", "CartPole-v1"),
    actor=ComponentSpec("actor", "on-policy"),
    algorithm=ComponentSpec("algorithm", "ppo"),
    storage=ComponentSpec("storage", "rollout"),
)


class Frozen(datetime):
    """The same second for everyone."""

    @classmethod
    def now(cls, tz: object = None) -> datetime:  # type: ignore[override]  # always without a zone
        return NOW


@pytest.fixture(autouse=True)
def in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_two_names_of_the_same_second_differ_before_anything_is_written() -> None:
    with new_run_dir(None, RECIPE, NOW) as first, new_run_dir(None, RECIPE, NOW) as second:
        assert (first, second) == (Path("runs", NAME), Path("runs", f"{NAME}-2"))
        assert sorted(Path("runs").iterdir()) == [first, second]


def test_a_name_that_is_taken_after_it_was_chosen_is_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken = Path("runs", NAME)
    taken.mkdir(parents=True)
    looks = iter([False])
    exists = os.path.lexists
    monkeypatch.setattr("os.path.lexists", lambda path: next(looks, exists(path)))
    with new_run_dir(None, RECIPE, NOW) as path:
        assert path == Path("runs", f"{NAME}-2")


def test_runs_that_start_in_the_same_second_are_both_trained(
    rl: Run, tiny: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["train", "ppo", "CartPole-v1", *tiny, "--total-steps=64"]
    statuses = []

    def after_another(parts: Parts, **options: object) -> Trainer:
        monkeypatch.setattr("rl_command.training.build_trainer", build_trainer)
        statuses.append(main(words))
        return build_trainer(parts, **options)

    monkeypatch.setattr("rl_command.training.datetime", Frozen)
    monkeypatch.setattr("rl_command.training.build_trainer", after_another)
    status, _, err = rl(*words)
    assert ([status, *statuses], err) == ([0, 0], "")
    runs = sorted(Path("runs").iterdir())
    assert [run.name for run in runs] == [NAME, f"{NAME}-2"]
    assert all((run / "summary.json").is_file() for run in runs)


@pytest.mark.parametrize("has_runs", [False, True])
def test_a_run_that_is_refused_leaves_no_directory(
    refused: Refused, tiny: tuple[str, ...], has_runs: bool
) -> None:
    if has_runs:
        Path("runs").mkdir()
    words = ("train", "ppo", "CartPole-v1", *tiny, "--total-steps=64")
    assert "minibatch_size=1000" in refused(*words, "--algorithm.minibatch-size=1000")
    assert [path.name for path in Path().iterdir()] == ["runs"] * has_runs
    assert not any(Path().glob("runs/*"))


def test_a_directory_of_the_user_s_is_neither_made_early_nor_removed() -> None:
    Path("mine").mkdir()
    for name, is_there in (("mine", True), ("new", False)):
        with pytest.raises(ValueError, match="refused"), new_run_dir(Path(name), RECIPE, NOW):
            raise ValueError("refused")
        assert Path(name).exists() == is_there
    assert not Path("runs").exists()


def test_what_a_failing_run_has_to_keep_is_kept() -> None:
    def run() -> None:
        with new_run_dir(None, RECIPE, NOW) as path:
            (path / "metrics.jsonl").write_text("{}\n")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run()
    assert [path.name for path in Path("runs", NAME).iterdir()] == ["metrics.jsonl"]


def test_default_directories_need_a_place_that_can_be_written(
    refused: Refused, needs_ppo: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("train", "ppo", "CartPole-v1", "--total-steps=64")
    with monkeypatch.context() as patch:
        patch.setattr("rl_command.run_directory.os.access", lambda path, mode: False)
        assert "run directory runs is not writable" in refused(*words)
    Path("runs").write_text("mine")
    assert "run directory runs is a file" in refused(*words)
