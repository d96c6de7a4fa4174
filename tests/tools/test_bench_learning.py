from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from bench import learning
from bench.child import ChildError, Json
from bench.episodes import FIRST_SEED
from bench.learning_curves import PAGES
from bench.results import read_lines, read_records

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
        self.tasks: list[str] = []
        self.jobs: list[int] = []
        self.first_seed = FIRST_SEED
        self.evaluated = 2.0

    def __call__(
        self, task: str, payloads: Sequence[Mapping[str, Json]], threads: int, jobs: int
    ) -> Iterator[tuple[int, dict[str, Json] | ChildError]]:
        assert threads == 1
        self.jobs.append(jobs)
        for number, payload in enumerate(payloads):
            self.made.append(payload)
            self.tasks.append(task)
            yield number, self._result(task, payload)

    def _result(self, task: str, payload: Mapping[str, Json]) -> dict[str, Json] | ChildError:
        if payload["seed"] == 1:
            return ChildError("learn ended with exit status 1")
        if task == "bench.worker:evaluate":
            return {"first_seed": FIRST_SEED, "returns": [self.evaluated]}
        Path(str(payload["weights"])).parent.mkdir(exist_ok=True)
        Path(str(payload["weights"])).touch()
        curve: list[Json] = [[20, 0.5], [1000, 1.5]]
        return {
            "first_seed": self.first_seed,
            "returns": [1.0],
            "steps_per_second": 10.0,
            "wall_seconds": 3.0,
            "curve": curve,
        }


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    made = Runs()
    monkeypatch.setattr(learning, "run_children", made)
    monkeypatch.setattr(learning, "_PLANS", tmp_path)
    monkeypatch.setattr(learning, "PAGES", tmp_path / "pages")
    (tmp_path / "plan.toml").write_text(PLAN, encoding="utf-8")
    (tmp_path / "pages" / "algorithms").mkdir(parents=True)
    block = "<!-- {0}:begin -->\n<!-- {0}:end -->\n"
    for page in PAGES.values():
        path = tmp_path / "pages" / "algorithms" / page
        path.write_text(block.format("curves"), encoding="utf-8")
    page = block.format("learning") + block.format("comparison")
    (tmp_path / "page.md").write_text(page, encoding="utf-8")
    return made


def run(folder: Path, *arguments: str) -> int:
    where = ["--results", str(folder / "runs.jsonl"), "--page", str(folder / "page.md")]
    return learning.main([*arguments, *where, "--weights", str(folder / "weights")])


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
        "[3/3] ours dqn/Toy-v0 double, 1,000 steps, seed 1\n"
        "    failed: learn ended with exit status 1\n"
    ) in printed
    assert len(read_records(tmp_path / "runs.jsonl")) == 2
    run(tmp_path)
    assert [one["seed"] for one in runs.made[3:]] == [1]


def test_runs_with_other_episodes_are_made_again(tmp_path: Path, runs: Runs) -> None:
    runs.first_seed = 7
    assert run(tmp_path, "--only", "dqn/Toy-v0") == 0
    runs.first_seed = FIRST_SEED
    assert run(tmp_path, "--only", "dqn/Toy-v0") == 0
    assert run(tmp_path, "--only", "dqn/Toy-v0") == 0
    assert len(runs.made) == 2


@pytest.mark.parametrize(("jobs", "niceness"), [("2", 0), ("1", 19)])
def test_speeds_of_runs_that_share_the_machine_are_not_published(
    jobs: str, niceness: int, tmp_path: Path, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.nice", lambda increment: niceness)
    run(tmp_path, "--only", "dqn/Toy-v0", "--jobs", jobs)
    assert runs.jobs == [int(jobs)]
    (record,) = read_records(tmp_path / "runs.jsonl").values()
    assert not record.is_timed
    assert record.steps_per_second == 10.0
    assert "| 10 |" not in (tmp_path / "page.md").read_text(encoding="utf-8")
    monkeypatch.setattr("os.nice", lambda increment: 0)
    run(tmp_path, "--only", "dqn/Toy-v0", "--again")
    (record,) = read_records(tmp_path / "runs.jsonl").values()
    assert record.is_timed
    assert "| 10 |" in (tmp_path / "page.md").read_text(encoding="utf-8")


def test_kept_policies_are_evaluated_again(tmp_path: Path, runs: Runs) -> None:
    run(tmp_path, "--only", "dqn/Toy-v0")
    run(tmp_path, "--only", "dqn/Toy-v0", "--evaluate")
    assert runs.tasks == ["bench.worker:learn", "bench.worker:evaluate"]
    assert runs.made[0] == runs.made[1]
    (line,) = read_lines(tmp_path / "runs.jsonl").values()
    assert line["returns"] == [2.0]
    assert line["wall_seconds"] == 3.0
    (tmp_path / "weights" / Path(str(runs.made[0]["weights"])).name).unlink()
    run(tmp_path, "--only", "dqn/Toy-v0", "--evaluate")
    assert len(runs.made) == 2


def test_every_task_is_told_the_device(tmp_path: Path, runs: Runs) -> None:
    run(tmp_path, "--only", "dqn/Toy-v0")
    run(tmp_path, "--only", "dqn/Toy-v0", "--device", "cuda", "--evaluate")
    assert [one["device"] for one in runs.made] == ["cpu", "cuda"]


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
