from dataclasses import replace

import numpy as np
import pytest
from bench.comparison import (
    chance_of_equals,
    comparison_table,
    holm,
    improvement_interval,
    probability_of_improvement,
)
from bench.plan import Key, PlanRow
from bench.results import Record

ROW = PlanRow(
    algorithm="ppo", env="E-v0", steps=10, seeds=(0, 1, 2), options={"ours": {}, "sb3": {}}
)
OTHER = replace(ROW, env="F-v0")

OURS = np.array([[3.0, 1.0, 2.0], [10.0, 10.0, 20.0]])
THEIRS = np.array([[2.0, 0.0], [10.0, 30.0]])
"""By row; rliable 1.2.0's `probability_of_improvement` of their transposes is 0.541667."""


LIKE_RLIABLE = [
    ([2.34, -2.26, 0.72, -0.27, -0.15, 0.08], [-0.18, 0.54, 1.94, -0.27, -0.24]),
    ([-1.72, 0.07, -0.57, 3.62, 0.53, -0.05], [1.0, -0.89, -0.29, 0.88, 0.58]),
    ([0.02, -0.37, -0.76, -0.09, 0.78, 0.06], [0.09, 0.67, -2.83, 1.02, -0.96]),
    ([1.0] * 6, [1.0] * 5),
]
"""Runs by row, of which rliable 1.2.0 (`get_interval_estimates`, 20,000 resamples) says 0.470833
and [0.308333, 0.633333]."""


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


def test_the_interval_over_rows_is_that_of_rliable() -> None:
    rows = [(np.array(ours), np.array(theirs)) for ours, theirs in LIKE_RLIABLE]
    centre, interval = improvement_interval(rows, np.random.default_rng(0))
    assert centre == pytest.approx(0.470833, abs=1e-6)
    assert interval == pytest.approx((0.308333, 0.633333), abs=0.01)


def test_the_chance_of_equals_counts_all_ways_to_deal_out_the_runs() -> None:
    # Three runs, all better than three others: 2 of the 20 ways are as far apart.
    best = np.array([4.0, 5.0, 6.0])
    assert chance_of_equals(best, np.array([1.0, 2.0, 3.0])) == pytest.approx(2 / 20)
    # 3, 3 against 1, 3: the first two are the highest of four in 3 of 6 ways, as are the others.
    assert chance_of_equals(np.array([3.0, 3.0]), np.array([1.0, 3.0])) == pytest.approx(1.0)
    assert chance_of_equals(np.ones(3), np.ones(4)) == 1.0
    # Ten and ten: 2 of 184,756
    apart = np.arange(10.0)
    assert chance_of_equals(apart + 10.0, apart) == pytest.approx(2 / 184_756)


def test_chances_are_corrected_for_their_number() -> None:
    # 0.01 * 4, 0.02 * 3; 0.03 * 2 is no more; 0.4 * 1
    assert holm([0.4, 0.01, 0.03, 0.02]) == pytest.approx([0.4, 0.04, 0.06, 0.06])
    assert holm([0.9, 0.8]) == pytest.approx([1.0, 1.0])


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
    line = "| `ppo/E-v0` | SB3 | same | 2 | 3 | 5.0 | 3.0 | +2.0 [+1.0, +3.0] | 1.00 | 0.200 | - |"
    assert line in text
    assert "the same episodes: **1.00** [1.00, 1.00], 1 rows." in text
    assert text.endswith("corrected for the 1 rows (Holm, 5 %): none.")
    key = ROW.run("sb3", 1).key
    found[key] = replace(found[key], is_comparable=False)
    text = comparison_table([ROW], found)
    assert "| `ppo/E-v0` | SB3 | own |" in text
    assert "the same episodes: none yet." in text


def test_training_is_compared_between_the_steps_that_all_runs_noted() -> None:
    found = records(ROW, [1.0, 2.0, 3.0], [1.0, 2.0])
    assert "while learning: none yet." in comparison_table([ROW], found)
    curves = {
        ("ours", 0): [[2, 9.0], [4, 1.0], [8, 5.0]],  # 3 on average from 4 to 8
        ("ours", 1): [[4, 0.0], [8, 0.0], [10, 90.0]],
        ("ours", 2): [[4, 9.0]],  # no curve
        ("sb3", 0): [[4, 2.0], [8, 2.0]],
        ("sb3", 1): [[4, 5.0], [8, 2.0]],  # 3.5
    }
    for (system, seed), curve in curves.items():
        key = ROW.run(system, seed).key
        found[key] = replace(found[key], curve=np.array(curve, dtype=float))
    text = comparison_table([ROW], found)
    # 3 is above 2 and below 3.5, 0 is below both
    assert "| 0.25 |" in text
    assert "all rows while learning: **0.25**" in text


def test_returns_are_compared_where_rows_are_judged_by_successes() -> None:
    row = replace(ROW, metric="success")
    text = comparison_table([row], records(row, [4.0, 6.0], [3.0, 3.0]))
    assert "+2.0 [+1.0, +3.0]" in text


def test_a_row_is_below_only_where_the_number_of_rows_leaves_it_so() -> None:
    low, high = [float(i) for i in range(5)], [float(i) for i in range(5, 10)]
    row = replace(ROW, seeds=tuple(range(5)))
    found = records(row, low, high)  # p is 2 / 252
    assert comparison_table([row], found).endswith("(Holm, 5 %): `ppo/E-v0`.")
    others = [replace(row, env=f"F-v{i}") for i in range(6)]
    for other in others:
        found |= records(other, [1.0, 1.0], [1.0, 1.0])
    text = comparison_table([row, *others], found)
    assert text.endswith("corrected for the 7 rows (Holm, 5 %): none.")  # the chance is 7 * 2 / 252
    assert "in which not every run is equal: **0.00** [0.00, 0.00], 1 rows." in text


def test_another_peer_is_shown_and_not_pooled() -> None:
    other = replace(OTHER, options={"ours": {}, "sb3": {"library": "sbx"}})
    found = records(ROW, [4.0, 6.0], [3.0, 3.0]) | records(other, [1.0, 1.0], [2.0, 2.0])
    text = comparison_table([ROW, other], found)
    assert "| `ppo/F-v0` | SBX | same |" in text
    assert "all rows: **1.00** [1.00, 1.00], 1 rows." in text


def test_what_cannot_be_compared_is_left_out() -> None:
    found = records(ROW, [4.0, 6.0], [3.0]) | records(OTHER, [1.0, 1.0], [1.0, 1.0])
    alone = replace(OTHER, env="G-v0", options={"ours": {}})
    failing = replace(OTHER, at_most=True)
    assert comparison_table([ROW, alone, failing], found) == "Nothing to compare yet."
    assert "all rows: **0.50** [0.50, 0.50], 1 rows." in comparison_table([ROW, OTHER], found)
