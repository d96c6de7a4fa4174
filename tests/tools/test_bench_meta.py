import json
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest
from bench import meta
from bench.child import Json

STAGES: dict[str, Json] = {
    "oracle": {"returns": [0.0, 0.0]},
    "before adaptation": {"returns": [-9.0, -11.0]},
    "after step 1": {"returns": [-4.0, -6.0]},
}


def run_of(after: float, **stages: list[Json]) -> dict[str, Json]:
    found: dict[str, Json] = {"before adaptation": [-9.0, -11.0], "after step 1": [after]}
    return {"steps": 2e6, "stages": {**found, **stages}, "curves": {}}


def recorded(*afters: float, **stages: list[Json]) -> dict[str, Json]:
    runs: dict[str, Json] = {str(i): run_of(after, **stages) for i, after in enumerate(afters)}
    return {"machine": "any", "runs": runs}


class Command:
    """In place of ``rl``: finishes some seeds of a run, or is stopped before."""

    def __init__(self, finishes: Sequence[int] = (), status: int = 0) -> None:
        self.words: list[list[str]] = []
        self.finishes, self.status = finishes, status

    def __call__(self, words: Sequence[str]) -> int:
        self.words.append(list(words))
        (folder,) = (word.partition("=")[2] for word in words if word.startswith("--run-dir="))
        for seed in self.finishes:
            run = Path(folder) / f"seed-{seed}"
            run.mkdir(parents=True)
            summary = {"total_steps": 400, "final_evaluation": {"stages": STAGES}}
            (run / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
            lines = [
                {"step": 100, "time": 0.0, "train/episodes": 4.0},
                {"step": 200, "time": 0.0, "test/return_after_step_1": -7.0},
                {"step": 400, "time": 0.0, "test/return_after_step_1": -5.0},
            ]
            text = "".join(json.dumps(line) + "\n" for line in lines)
            (run / "metrics.jsonl").write_text(text, encoding="utf-8")
        return self.status


@pytest.fixture
def where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Pages, results and runs in a folder of the test's own."""
    monkeypatch.setattr(meta, "LEARNERS", {"pearl": meta.Learner("pearl", num_seeds=2)})
    (tmp_path / "algorithms").mkdir()
    pages = {"page.md": "meta", "algorithms/maml.md": "curves", "algorithms/pearl.md": "curves"}
    for page, block in pages.items():
        text = f"<!-- {block}:begin -->\n<!-- {block}:end -->\n"
        (tmp_path / page).write_text(text, encoding="utf-8")
    places = {"results": "meta.json", "page": "page.md", "runs": "runs"}
    words = [word for name, at in places.items() for word in (f"--{name}", str(tmp_path / at))]
    return [*words, "--threads", "1"]


def test_the_table_shows_stages_with_intervals_and_the_share_of_the_gap_closed() -> None:
    shown = meta.render({"pearl": recorded(-5.0, -1.0, oracle=[0.0])})
    row = "| `pearl` | PointNavigation-v0 | 2 | 2,000,000 | -10.0 (-10.0 to -10.0) "
    assert f"{row}| -3.0 (-5.0 to -1.0) | - | 0.0 (0.0 to 0.0) | **70%** (50%, 90%) |" in shown
    assert "Measured on any." in shown


def test_without_an_oracle_the_table_shows_what_was_gained() -> None:
    shown = meta.render({"maml-trpo/velocity": recorded(-8.0)})
    row = "| `maml-trpo` | HalfCheetahVel-v0, 0 to 2 m/s | 1 | 2,000,000 | -10.0 | -8.0 "
    assert f"{row}| - | - | **+2.0** (+2.0) |" in shown
    assert meta.render({}) == "Nothing was measured yet."


def test_finished_runs_are_recorded_with_their_curves_and_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: list[str]
) -> None:
    command = Command(finishes=(1,), status=2)  # the other seed failed
    monkeypatch.setattr(meta, "rl", command)
    assert meta.main(["--learning", "--jobs", "2", *where]) == 1
    ((kind, *words),) = command.words
    assert kind == "train"
    wanted = {"--seeds=0..1", "--jobs=2"}
    assert wanted <= set(words)
    kept = json.loads((tmp_path / "meta.json").read_text(encoding="utf-8"))["pearl"]["runs"]
    assert list(kept) == ["1"]
    assert kept["1"]["stages"]["after step 1"] == [-4.0, -6.0]
    assert kept["1"]["curves"]["after step 1"] == [[200, -7.0], [400, -5.0]]
    page = (tmp_path / "algorithms" / "pearl.md").read_text(encoding="utf-8")
    assert "after one step from -7 to -5](../figures/meta/pearl.svg)" in page
    assert "`hatch run bench:meta --only pearl`" in page
    assert (tmp_path / "figures" / "meta" / "pearl.svg").exists()

    monkeypatch.setattr(meta, "rl", Command(finishes=(0,)))
    assert meta.main(["--learning", *where]) == 0  # one run was missing
    monkeypatch.setattr(meta, "rl", command)
    assert meta.main(["--learning", *where]) == 0
    assert len(command.words) == 1  # none is missing


def test_an_interruption_of_the_runs_ends_the_benchmark(
    monkeypatch: pytest.MonkeyPatch, where: list[str]
) -> None:
    command = Command(status=128 + signal.SIGTERM)
    monkeypatch.setattr(meta, "rl", command)
    monkeypatch.setattr(meta, "LEARNERS", {n: meta.Learner(n) for n in ("pearl", "maml-vpg")})
    assert meta.main(["--learning", *where]) == 130
    assert len(command.words) == 1


@pytest.mark.parametrize("name", sorted(meta.LEARNERS))
def test_every_learner_is_evaluated_after_whole_meta_updates(name: str) -> None:
    learner = meta.LEARNERS[name]
    recipe = learner.recipe(1)
    num_envs, num_steps = recipe.env.kwargs["num_envs"], recipe.storage.kwargs["num_steps"]
    assert isinstance(num_envs, int)
    assert isinstance(num_steps, int)
    total_steps, test_every = recipe.resolved["total_steps"], recipe.trainer["test_every"]
    assert isinstance(total_steps, int)
    assert isinstance(test_every, int)
    assert total_steps % (num_envs * num_steps) == 0
    assert total_steps // (num_envs * num_steps) // test_every in (20, 21)
    assert learner.num_test_tasks % 2 == 0
    if learner.algorithm.startswith("maml"):
        assert test_every % 2 == 0
