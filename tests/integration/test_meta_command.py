"""Meta-learning by the command line, with seeds, evaluation and curves."""

import csv
import json
from pathlib import Path

import pytest

from rl_command.main import main as rl

STAGES = ["oracle", "before adaptation", "after step 1"]


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of two seeds, each of two meta-updates."""
    path = tmp_path_factory.mktemp("runs") / "maml"
    words = "train maml-vpg PointNavigation-v0 --total-updates 4 --seeds 1..2 --progress none"
    options = "--env.num-envs 4 --algorithm.meta-batch-size 2 --trainer.test-every 2"
    tests = "--trainer.num-test-episodes 2 --algorithm.num-exploration-episodes 1"
    assert rl([*words.split(), *options.split(), *tests.split(), "--run-dir", str(path)]) == 0
    return path


def test_an_evaluation_has_the_tasks_and_every_stage_with_its_interval(
    group: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rl(["eval", str(group / "seed-1"), "--episodes", "3", "--json"]) == 0
    table = json.loads(capsys.readouterr().out)
    assert [len(task) for task in table["tasks"]] == [2, 2, 2]
    assert list(table["stages"]) == STAGES
    for stage in table["stages"].values():
        assert len(stage["returns"]) == 3
        assert stage["mean"] == pytest.approx(sum(stage["returns"]) / 3)
        low, high = stage["ci95"]
        assert min(stage["returns"]) <= low <= stage["iqm"] <= high <= max(stage["returns"])
    assert table["returns"] == table["stages"]["after step 1"]["returns"]
    # The oracle's return is that of the task beside it: no move is longer than 0.1.
    (x, y), oracle = table["tasks"][0], table["stages"]["oracle"]["returns"][0]
    parts = [max(abs(part) - 0.1 * n, 0.0) ** 2 for part in (x, y) for n in range(1, 6)]
    assert oracle == pytest.approx(-sum(parts), abs=1e-5)


def test_an_evaluation_of_several_seeds_has_statistics_of_every_stage(
    group: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rl(["eval", str(group), "--episodes", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(f"{stage} -" in lines[0] for stage in STAGES)
    assert " over 2 tasks (" in lines[0]
    assert [line.partition(": 2 seeds: IQM -")[0] for line in lines[-3:]] == STAGES
    assert rl(["eval", str(group), "--episodes", "2", "--json"]) == 0
    table = json.loads(capsys.readouterr().out)
    assert list(table["stages"]) == STAGES
    for name, stage in table["stages"].items():
        assert stage["num_runs"] == 2
        means = [run["stages"][name]["mean"] for run in table["runs"]]
        assert stage["mean"] == pytest.approx(sum(means) / 2)


def test_curves_before_and_after_adaptation_are_drawn_together(
    group: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = "test/return_before_adaptation", "test/return_after_step_1"
    words = ["plot", str(group), "--metric", f"{before},{after}"]
    assert rl([*words, "--csv", str(tmp_path / "curves.csv")]) == 0
    with (tmp_path / "curves.csv").open() as file:
        rows = list(csv.DictReader(file))
    name = "maml-vpg on PointNavigation-v0 (2 runs)"
    assert {(row["curve"], row["step"]) for row in rows} == {
        (f"{name}: {metric}", step) for metric in (before, after) for step in ("800", "1600")
    }
    assert {row["runs"] for row in rows} == {"2"}
    capsys.readouterr()
    assert rl(words) == 0
    shown = capsys.readouterr().out
    assert f"{name}: {before}\n" in shown
    assert f"{name}: {after}\n" in shown
    # Each rollout of training has a line too.
    assert rl(["plot", str(group), "--metric", "meta/return_after_1_steps"]) == 0


def test_the_four_algorithms_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert rl(["list", "algorithms"]) == 0
    words = capsys.readouterr().out.split()
    assert {"maml-vpg", "maml-ppo", "maml-trpo", "pearl"} <= set(words)
