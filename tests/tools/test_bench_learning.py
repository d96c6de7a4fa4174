from collections.abc import Mapping
from pathlib import Path

import pytest
from bench import learning
from bench.child import ChildError, Json
from bench.learning_curves import PAGES
from bench.results import read_records

PLAN = """
[[row]]
algorithm = "dqn"
env = "Toy-v0"
steps = 1000
seeds = [0]
target = 1
[row.ours]

[[row]]
algorithm = "dqn"
env = "Toy-v0"
note = "double"
steps = 1000
seeds = [0, 1]
target = 1
[row.ours.algorithm]
double = true
"""


class Runs:
    """Stands in for the processes of runs; those of a seed may fail."""

    def __init__(self) -> None:
        self.made: list[Mapping[str, Json]] = []

    def __call__(self, task: str, payload: Mapping[str, Json], threads: int) -> dict[str, Json]:
        assert (task, threads) == ("learn", 1)
        self.made.append(payload)
        if payload["seed"] == 1:
            raise ChildError("learn ended with exit status 1")
        curve: list[Json] = [[20, 0.5], [1000, 1.5]]
        return {"returns": [1.0], "steps_per_second": 10.0, "curve": curve}


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    made = Runs()
    monkeypatch.setattr(learning, "run_child", made)
    monkeypatch.setattr(learning, "_PLANS", tmp_path)
    monkeypatch.setattr(learning, "_PAGES", tmp_path / "pages")
    (tmp_path / "plan.toml").write_text(PLAN, encoding="utf-8")
    (tmp_path / "pages" / "algorithms").mkdir(parents=True)
    block = "<!-- {0}:begin -->\n<!-- {0}:end -->\n"
    for page in PAGES.values():
        path = tmp_path / "pages" / "algorithms" / page
        path.write_text(block.format("curves"), encoding="utf-8")
    (tmp_path / "page.md").write_text(block.format("learning"), encoding="utf-8")
    return made


def run(folder: Path, *arguments: str) -> int:
    where = ["--results", str(folder / "runs.jsonl"), "--page", str(folder / "page.md")]
    return learning.main([*arguments, *where])


def test_runs_are_named_with_their_note_and_made_once(
    tmp_path: Path, runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path) == 1
    assert [(one.get("note"), one["seed"]) for one in runs.made] == [
        (None, 0),
        ("double", 0),
        ("double", 1),
    ]
    printed = capsys.readouterr().out
    assert "[1/3] ours dqn/Toy-v0, 1,000 steps, seed 0\n" in printed
    assert "[2/3] ours dqn/Toy-v0 double, 1,000 steps, seed 0\n" in printed
    assert (
        "failed: ours dqn/Toy-v0 double, 1,000 steps, seed 1: learn ended with exit status 1"
        in printed
    )
    assert len(read_records(tmp_path / "runs.jsonl")) == 2
    run(tmp_path)
    assert [one["seed"] for one in runs.made[3:]] == [1]


def test_only_the_row_of_a_label_is_run(tmp_path: Path, runs: Runs) -> None:
    assert run(tmp_path, "--only", "dqn/Toy-v0") == 0
    assert [one.get("note") for one in runs.made] == [None]
    assert "| 1 | 1.0 |" in (tmp_path / "page.md").read_text(encoding="utf-8")


def test_a_pattern_of_no_row_is_refused(
    tmp_path: Path, runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, "--only", "sac") == 2
    assert "no row matches 'sac'; there are 'dqn/Toy-v0'" in capsys.readouterr().err
    assert runs.made == []


def test_curves_are_drawn_of_what_is_recorded(
    tmp_path: Path, runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path, "--only", "dqn/Toy-v0 double")
    made = len(runs.made)
    assert run(tmp_path, "--curves") == 0
    assert len(runs.made) == made
    figures = tmp_path / "pages" / "figures" / "learning"
    assert [path.name for path in figures.iterdir()] == ["dqn-Toy-v0-double.svg"]
    (tmp_path / "pages" / "algorithms" / "dqn.md").unlink()
    assert run(tmp_path, "--curves") == 1
    assert "algorithms/dqn.md: " in capsys.readouterr().err
