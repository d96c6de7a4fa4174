from dataclasses import replace

import numpy as np
import pytest
from bench.learning_table import learning_table, summarize
from bench.measurement import Measurement
from bench.plan import Key, PlanRow
from bench.results import Record
from bench.speed_table import import_line, speed_overview, speed_table

ROW = PlanRow(
    algorithm="ppo",
    env="CartPole-v1",
    steps=100_000,
    seeds=(0, 1, 2),
    target=475.0,
    options={"ours": {}, "sb3": {}},
)


def record(system: str, seed: int, returns: list[float], rate: float = 10.0) -> Record:
    return Record(
        run=ROW.run(system, seed),
        returns=np.array(returns),
        steps_per_second=rate,
        machine="a machine",
        is_timed=True,
    )


def by_key(*records: Record) -> dict[Key, Record]:
    return {one.run.key: one for one in records}


def cells(table: str, row: int = 0) -> list[str]:
    lines = [line for line in table.splitlines() if line.startswith("|")]
    return [cell.strip() for cell in lines[2 + row].strip("|").split("|")]


def test_seeds_count_alike_however_many_episodes_they_have() -> None:
    summary = summarize(
        [record("ours", 0, [400.0, 500.0], 10.0), record("ours", 1, [500.0] * 6, 30.0)]
    )
    assert summary.num_seeds == 2
    assert summary.mean == (450.0 + 500.0) / 2
    assert summary.centre == 475.0
    assert summary.steps_per_second == 20.0
    low, high = summary.interval
    assert 450.0 <= low <= summary.centre <= high <= 500.0


def test_the_best_and_the_worst_of_five_seeds_are_left_out() -> None:
    returns = [-1000.0, 10.0, 20.0, 30.0, 1000.0]
    summary = summarize([record("ours", seed, [value]) for seed, value in enumerate(returns)])
    assert summary.mean == 12.0
    assert summary.centre == 20.0


def test_the_interval_is_over_seeds() -> None:
    one = summarize([record("ours", 0, [0.0] * 10), record("ours", 1, [100.0] * 10)])
    assert one.interval == (0.0, 100.0)  # a quarter of the draws takes one seed twice
    alike = summarize([record("ours", seed, [0.0, 100.0]) for seed in range(5)])
    assert alike.interval == (50.0, 50.0)


@pytest.mark.parametrize(
    ("ours", "verdict"), [((6.0, 5.0), "reached"), ((3.0, 7.0), "reached"), ((1.0, 2.0), "missed")]
)
def test_a_target_may_be_what_the_peer_reaches(ours: tuple[float, float], verdict: str) -> None:
    row = replace(ROW, target="sb3")
    own = [record("ours", seed, [value]) for seed, value in enumerate(ours)]
    peer = [record("sb3", seed, [value]) for seed, value in enumerate((3.0, 4.0))]
    assert cells(learning_table([row], by_key(*own, *peer)))[7] == f"not below SB3: {verdict}"
    assert cells(learning_table([row], by_key(*own)))[7] == "not below SB3"
    other = replace(row, options={"ours": {}, "sb3": {"library": "sbx"}})
    assert cells(learning_table([other], by_key(*own)))[7:9] == ["not below SBX", "SBX"]


def test_a_row_may_be_judged_by_successes() -> None:
    row = replace(ROW, metric="success", target=90.0, note="HER")
    records = [
        replace(record("ours", seed, [-3.0] * 10), success_rate=rate)
        for seed, rate in enumerate((0.8, 0.9, 1.0))
    ]
    theirs = replace(record("sb3", 0, [-3.0] * 4), success_rate=1.0)
    silent = record("sb3", 1, [-3.0] * 4)  # nothing told how many of its episodes succeeded
    line = cells(learning_table([row], by_key(*records, theirs, silent)))
    assert line[1] == "`CartPole-v1`, HER"
    assert line[3] == "`hatch run bench:learning --only 'ppo/CartPole-v1 HER'`"
    assert line[5] == "90.0 %"
    assert line[6].startswith("90.0 % [")
    assert line[7] == "90 % success: reached"
    assert line[8:12] == ["SB3", "1 of 3", "100.0 %", "100.0 % [100.0, 100.0]"]
    failing = replace(row, at_most=True)
    assert cells(learning_table([failing], by_key(*records)))[7] == "at most 90 % success: reached"


def test_a_system_that_a_row_does_not_run_has_no_seeds() -> None:
    row = replace(ROW, options={"ours": {}})
    line = cells(learning_table([row], by_key(record("ours", 0, [1.0]))))
    assert line[8:12] == ["-", "-", "-", "-"]


def test_a_row_says_whether_its_target_is_reached() -> None:
    ours = [record("ours", seed, [480.0] * 4) for seed in ROW.seeds]
    sb3 = record("sb3", 1, [470.0] * 4, 4.0)
    assert cells(learning_table([ROW], by_key(*ours, sb3))) == [
        "PPO",
        "`CartPole-v1`",
        "100k",
        "`hatch run bench:learning --only ppo/CartPole-v1`",
        "3",
        "480.0",
        "480.0 [480.0, 480.0]",
        "475: reached",
        "SB3",
        "1 of 3",
        "470.0",
        "470.0 [470.0, 470.0]",
        "10",
        "4",
    ]
    missed = cells(learning_table([ROW], by_key(record("ours", 0, [474.0]))))
    assert missed[4] == "1 of 3"
    assert missed[7] == "475: missed"
    assert missed[10] == "-"


@pytest.mark.parametrize(
    ("returns", "verdict"),
    [([475.0], "reached"), ([0.0, 500.0, 500.0, 500.0], "missed"), ([475.0, 474.0], "missed")],
)
def test_the_target_is_for_the_mean(returns: list[float], verdict: str) -> None:
    table = learning_table([ROW], by_key(record("ours", 0, returns)))
    assert cells(table)[7] == f"475: {verdict}"


def test_what_is_only_there_to_compare_reaches_nothing() -> None:
    row = replace(ROW, target=None)
    assert cells(learning_table([row], by_key(record("ours", 0, [480.0]))))[7] == "-"


@pytest.mark.parametrize(("returns", "verdict"), [([475.0], "reached"), ([475.5], "missed")])
def test_some_must_not_reach_more(returns: list[float], verdict: str) -> None:
    row = replace(ROW, at_most=True)
    table = learning_table([row], by_key(record("ours", 0, returns)))
    assert cells(table)[7] == f"at most 475: {verdict}"


def test_runs_that_no_row_asks_for_are_left_out() -> None:
    other = PlanRow(
        algorithm="a2c", env="E-v0", steps=5, seeds=(0,), target=1.0, options={"ours": {}}
    )
    assert learning_table([other], by_key(record("ours", 0, [1.0]))) == "Nothing was run yet."


def figures(rate: float) -> dict[str, float]:
    return {"rate": rate, "warm_up_seconds": 2.0, "peak_memory_mb": 100.4}


def test_ratios_are_taken_within_rounds() -> None:
    rounds = [
        {"ours": figures(100.0), "sb3": figures(50.0)},
        {"ours": figures(90.0), "sb3": figures(30.0), "sbx": figures(60.0)},
        {"ours": figures(10.0), "sb3": figures(10.0)},
    ]
    measurement = Measurement(rounds, 5.0, "a machine; threads 2")
    assert measurement.ratios("ours", "sb3") == [2.0, 3.0, 1.0]
    assert Measurement.from_dict(measurement.as_dict()) == measurement
    text = speed_table({"ppo-cartpole": measurement})
    assert cells(text, 0) == [
        "`ppo-cartpole`",
        "ours, compiled",
        "90 steps/s",
        "**2.00** (2.00, 3.00, 1.00)",
        "**1.50** (1.50)",
        "2.0 s",
        "100 MB",
    ]
    assert cells(text, 1)[2:] == ["failed", "-", "-", "-", "-"]
    assert cells(text, 2)[1:5] == ["Stable-Baselines3", "30 steps/s", "", ""]
    assert "- `ppo-cartpole`: medians of 3 rounds of 5 s, 2 threads.\n\nMeasured on a mac" in text
    overview = speed_overview({"one": {}, "other": {"ppo-cartpole": measurement}})
    assert "| `ppo-cartpole` | - | 2.00 (1.50) |\n\n- `ppo-cartpole`: PPO" in overview


def test_nothing_measured_is_said() -> None:
    assert speed_table({}) == "Nothing was measured yet."


def test_import_times_are_medians() -> None:
    line = import_line({"torch": [1.0, 9.0, 2.0], "rl_core": [0.1, 0.2, 0.9]})
    assert line == "`import rl_core` adds 0.20 s to the 2.00 s of `import torch` (medians of 3)."


@pytest.mark.parametrize(
    ("steps", "text"),
    [(1_000_000, "1M"), (1_500_000, "1.5M"), (2_048, "2048"), (300_000, "300k"), (500, "500")],
)
def test_steps_are_written_short(steps: int, text: str) -> None:
    row = PlanRow(
        algorithm="ppo", env="E-v0", steps=steps, seeds=(0,), target=1.0, options={"ours": {}}
    )
    found = Record(
        run=row.run("ours", 0), returns=np.array([1.0]), steps_per_second=1.0, machine="m"
    )
    assert cells(learning_table([row], by_key(found)))[2] == text
