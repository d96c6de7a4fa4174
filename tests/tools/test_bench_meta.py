from pathlib import Path

import pytest
from bench import meta
from bench.child import Json
from bench.measurement import Found


def test_the_oracle_moves_straight_to_the_goal() -> None:
    # A goal lies at most 0.5 away in each direction and is reached in five moves; a part of the
    # distance of 0.5 costs 0.4^2 + 0.3^2 + 0.2^2 + 0.1^2 = 0.3 at most.
    assert -0.6 < meta.oracle_return(0, 100) < -0.1
    assert meta.oracle_return(0, 100) == meta.oracle_return(0, 100)


def test_the_table_shows_the_share_of_the_gap_that_each_seed_closes() -> None:
    def run(after: float) -> dict[str, Json]:
        stages: dict[str, Json] = {"before adaptation": -10.0, "after step 1": after}
        return {"stages": stages, "oracle": 0.0, "seconds": 1.0, "machine": "any"}

    shown = meta.render({"pearl/0": run(-5.0), "pearl/3": run(-1.0)})
    assert "| `pearl` | 2 | -10.0 | -3.0 | 0.0 | **70%** (50%, 90%) |" in shown
    runs = {f"maml-trpo/velocity/{seed}": {**run(-8.0 + seed), "steps": 2e6} for seed in (0, 2)}
    row = "| `maml-trpo` | HalfCheetahVelocity-v0, 0 to 2 m/s | 2 | 2,000,000 | -10.0 | -7.0 |"
    assert f"{row} **+3.0** (+2.0, +4.0) |" in meta.render(runs)
    assert meta.render({}) == "Nothing was measured yet."


def test_runs_that_are_recorded_are_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    page = tmp_path / "page.md"
    page.write_text("<!-- meta:begin -->\n<!-- meta:end -->\n", encoding="utf-8")

    def learn(name: str, seed: int, options: object) -> Found:
        made.append(f"{name}/{seed}")
        stages: dict[str, Json] = {"before adaptation": -2.0, "after step 1": -1.0}
        return Found({"stages": stages, "oracle": 0.0}, True)

    monkeypatch.setattr(meta, "learn", learn)
    monkeypatch.setattr(meta, "LEARNERS", {"pearl": meta.Learner("pearl")})
    where = ["--results", str(tmp_path / "meta.json"), "--page", str(page), "--threads", "1"]
    assert meta.main(["--only", "pearl/1", *where]) == 0
    assert meta.main(["--learning", *where]) == 0
    assert made == ["pearl/1", "pearl/0", "pearl/2", "pearl/3", "pearl/4"]
    assert meta.main(["--learning", *where]) == 0
    assert len(made) == 5
