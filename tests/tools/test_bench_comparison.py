from dataclasses import replace

import numpy as np
import pytest
from bench.comparison import comparison_table, improvement_interval, probability_of_improvement
from bench.plan import Key, PlanRow
from bench.results import Record

ROW = PlanRow(
    algorithm="ppo", env="E-v0", steps=10, seeds=(0, 1, 2), options={"ours": {}, "sb3": {}}
)
OTHER = replace(ROW, env="F-v0")

OURS = np.array([[3.0, 1.0, 2.0], [10.0, 10.0, 20.0]])
THEIRS = np.array([[2.0, 0.0], [10.0, 30.0]])
"""By row; rliable 1.2.0's `probability_of_improvement` of their transposes is 0.541667."""


def records(row: PlanRow, ours: list[float], theirs: list[float]) -> dict[Key, Record]:
    found = [
        Record(
            run=row.run(system, seed),
            returns=np.array([value - 1.0, value + 1.0]),
            steps_per_second=1.0,
            machine="m",
            is_comparable=True,
        )
        for system, values in (("ours", ours), ("sb3", theirs))
        for seed, value in enumerate(values)
    ]
    return {record.run.key: record for record in found}


def test_ties_count_half() -> None:
    # 3 beats both, 1 beats 0, 2 beats 0 and ties with 2: (2 + 1 + 1.5) / 6
    assert probability_of_improvement(OURS[0], THEIRS[0]) == pytest.approx(4.5 / 6)
    assert probability_of_improvement(OURS[1], THEIRS[1]) == pytest.approx(2.0 / 6)


def test_the_average_over_rows_is_that_of_rliable() -> None:
    rows = list(zip(OURS, THEIRS, strict=True))
    centre, (low, high) = improvement_interval(rows, np.random.default_rng(0))
    assert centre == pytest.approx(0.541667, abs=1e-6)
    assert 0.0 <= low < centre < high <= 1.0


def test_rows_of_which_no_run_varies_are_certain() -> None:
    better = (np.full(3, 2.0), np.full(4, 1.0))
    equal = (np.full(3, 1.0), np.full(4, 1.0))
    centre, interval = improvement_interval([better, equal], np.random.default_rng(0))
    assert (centre, interval) == (0.75, (0.75, 0.75))


def test_the_interval_of_two_runs_each_is_exact() -> None:
    # Of the 16 resamples one in four takes the lower (or the higher) of ours twice.
    pair = (np.array([0.0, 2.0]), np.array([1.0, 1.0]))
    centre, interval = improvement_interval([pair], np.random.default_rng(0))
    assert (centre, interval) == (0.5, (0.0, 1.0))


def test_a_line_compares_means_over_seeds() -> None:
    found = records(ROW, [4.0, 6.0], [3.0, 3.0, 3.0])
    text = comparison_table([ROW], found)
    assert "| `ppo/E-v0` | same | 2 | 3 | 5.0 | 3.0 | +2.0 [+1.0, +3.0] | 1.00 |" in text
    assert text.endswith("over these 1 rows: **1.00** [1.00, 1.00].")
    key = ROW.run("sb3", 1).key
    found[key] = replace(found[key], is_comparable=False)
    assert "| `ppo/E-v0` | own |" in comparison_table([ROW], found)


def test_what_cannot_be_compared_is_left_out() -> None:
    found = records(ROW, [4.0, 6.0], [3.0]) | records(OTHER, [1.0, 1.0], [1.0, 1.0])
    alone = replace(OTHER, env="G-v0", options={"ours": {}})
    failing = replace(OTHER, at_most=True)
    assert comparison_table([ROW, alone, failing], found) == "Nothing to compare yet."
    assert "these 1 rows: **0.50** [0.50, 0.50]" in comparison_table([ROW, OTHER], found)
