from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from bench.curve import NUM_POINTS
from bench.learning_curves import (
    PAGES,
    band,
    bands_of,
    figure_text,
    file_name,
    title,
    write_curves,
)
from bench.markdown import replace_block
from bench.plan import Key, PlanRow, load_plans
from bench.results import Record

ROOT = Path(__file__).resolve().parents[2]

ROW = PlanRow(
    algorithm="dqn",
    env="CartPole-v1",
    steps=100,
    seeds=(0, 1, 2),
    target=475.0,
    options={"ours": {}, "sb3": {}},
    note="double, 1 environment",
)

BLOCK = "# DQN\n\n<!-- curves:begin -->\n<!-- curves:end -->\n"


def record(system: str, seed: int, *points: tuple[float, float], row: PlanRow = ROW) -> Record:
    return Record(
        run=row.run(system, seed),
        returns=np.array([1.0]),
        steps_per_second=1.0,
        machine="a machine",
        curve=np.array(points).reshape(-1, 2),
    )


def by_key(*records: Record) -> dict[Key, Record]:
    return {one.run.key: one for one in records}


def make_pages(folder: Path, *names: str) -> Path:
    (folder / "algorithms").mkdir(parents=True)
    for name in names:
        (folder / "algorithms" / name).write_text(BLOCK, encoding="utf-8")
    return folder


def test_seeds_are_interpolated_where_all_of_them_have_points() -> None:
    rising = np.array([[10.0, 0.0], [60.0, 50.0], [108.0, 98.0]])
    falling = np.array([[4.0, 96.0], [100.0, 0.0]])
    made = band([rising, falling])
    assert made is not None
    assert made.num_seeds == 2
    assert np.allclose(made.steps, np.linspace(10.0, 100.0, NUM_POINTS))
    assert np.allclose(made.mean, 45.0)  # (steps - 10 + 100 - steps) / 2
    distance = np.abs(made.steps - 55.0)
    assert np.allclose(made.low, 45.0 - distance)
    assert np.allclose(made.high, 45.0 + distance)


@pytest.mark.parametrize(
    "curves",
    [
        [],
        [np.empty((0, 2))],
        [np.array([[10.0, 1.0]])],
        [np.array([[10.0, 1.0], [20.0, 1.0]]), np.array([[20.0, 1.0], [30.0, 1.0]])],
    ],
)
def test_too_few_points_are_no_curve(curves: list[np.ndarray]) -> None:
    assert band(curves) is None


def test_seeds_and_systems_without_a_curve_are_left_out() -> None:
    records = by_key(
        record("ours", 0, (10, 1.0), (100, 3.0)),
        record("ours", 1),
        record("ours", 2, (10, 3.0), (100, 5.0)),
        record("sb3", 0),
    )
    bands = bands_of(ROW, records)
    assert list(bands) == ["ours"]
    assert bands["ours"].num_seeds == 2
    assert bands["ours"].mean[[0, -1]].tolist() == [2.0, 4.0]


def test_a_figure_names_its_row_and_its_ends() -> None:
    assert title(ROW) == "DQN on CartPole-v1, double, 1 environment"
    assert file_name(ROW) == "dqn-CartPole-v1-double-1-environment.svg"
    bands = bands_of(ROW, by_key(record("ours", 0, (10, 1.0), (100, 1234.56))))
    assert figure_text(ROW, bands) == (
        "![Training returns of DQN on CartPole-v1, double, 1 environment over 100 steps: "
        "rl toolbox from 1 to 1235](../figures/learning/dqn-CartPole-v1-double-1-environment.svg)"
        "\n\n`hatch run bench:learning --only 'dqn/CartPole-v1 double, 1 environment'`"
    )


def test_the_same_records_draw_the_same_small_file(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    records = by_key(
        *(
            record(system, seed, *((2.0 * i, float(generator.normal())) for i in range(50)))
            for system in ("ours", "sb3")
            for seed in ROW.seeds
        )
    )
    drawn = []
    for name in ("first", "second"):
        pages = make_pages(tmp_path / name, *PAGES.values())
        assert write_curves([ROW], records, pages) == []
        drawn.append((pages / "figures" / "learning" / file_name(ROW)).read_bytes())
    assert drawn[0] == drawn[1]
    assert len(drawn[0]) < 40_000
    for text in (b"rl toolbox, 3 seeds", b"Stable-Baselines3, 3 seeds", b"environment steps"):
        assert text in drawn[0]
    assert b"<dc:date>" not in drawn[0]
    changed = by_key(*(replace(one, curve=one.curve + 1.0) for one in records.values()))
    write_curves([ROW], changed, pages)
    assert (pages / "figures" / "learning" / file_name(ROW)).read_bytes() != drawn[0]


def test_pages_say_what_is_drawn_and_old_figures_go(tmp_path: Path) -> None:
    pages = make_pages(tmp_path, *PAGES.values())
    folder = pages / "figures" / "learning"
    write_curves([ROW], by_key(record("ours", 0, (10, 1.0), (100, 3.0))), pages)
    assert [path.name for path in folder.iterdir()] == [file_name(ROW)]
    page = (pages / "algorithms" / "dqn.md").read_text(encoding="utf-8")
    assert page.startswith(
        "# DQN\n\n<!-- curves:begin -->\n\nMean return of the last 100 *training*"
    )
    assert f"](../figures/learning/{file_name(ROW)})" in page
    empty = "<!-- curves:begin -->\n\nNo run with a curve is recorded yet.\n"
    assert empty in (pages / "algorithms" / "ppo.md").read_text(encoding="utf-8")
    write_curves([ROW], {}, pages)
    assert list(folder.iterdir()) == []
    assert empty in (pages / "algorithms" / "dqn.md").read_text(encoding="utf-8")


def test_what_has_no_place_is_told(tmp_path: Path) -> None:
    pages = make_pages(tmp_path, "dqn.md", "sac.md")
    (pages / "algorithms" / "sac.md").write_text("# SAC\n", encoding="utf-8")
    other = replace(ROW, algorithm="mpo", note="")
    problems = write_curves([ROW, other], {}, pages)
    assert "mpo/CartPole-v1: no page of 'mpo' is named in PAGES" in problems
    assert any(problem.startswith("algorithms/sac.md: the page needs one") for problem in problems)
    assert any(problem.startswith("algorithms/ppo.md: ") for problem in problems)
    assert not any("dqn.md" in problem for problem in problems)


def test_every_algorithm_of_the_plans_has_a_page_with_a_block() -> None:
    rows = load_plans(sorted((ROOT / "tools" / "bench" / "plans").glob("*.toml")))
    for algorithm in {row.algorithm for row in rows}:
        page = ROOT / "docs" / "pages" / "algorithms" / PAGES[algorithm]
        assert "sentinel" in replace_block(page.read_text(encoding="utf-8"), "curves", "sentinel")
