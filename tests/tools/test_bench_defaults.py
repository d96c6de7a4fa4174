from pathlib import Path

import numpy as np
from bench.defaults import ROWS, defaults_table, main
from bench.plan import PlanRow
from bench.results import Record

from rl_core import plugins

ROW = PlanRow(
    algorithm="dqn", env="E-v0", steps=50_000, seeds=(1, 2, 3), target=475.0, options={"ours": {}}
)


def test_the_table_counts_the_seeds_that_reach_the_target() -> None:
    found = [
        Record(run=ROW.run("ours", seed), returns=np.array(r), steps_per_second=1.0, machine="m")
        for seed, r in ((1, [500.0, 450.0]), (2, [133.0]), (3, [474.9]))
    ]
    text = defaults_table([ROW], {record.run.key: record for record in found})
    assert "| DQN | `E-v0` | 50k | 475 | 1 of 3 | 133, 475, 475 |" in text
    assert "Measured on m." in text
    assert defaults_table([ROW], {}) == "Nothing was run yet."


def test_the_rows_name_installed_algorithms_and_take_no_options() -> None:
    assert {row.algorithm for row in ROWS} <= set(plugins.available("algorithm"))
    assert all(row.options == {"ours": {}} for row in ROWS)
    assert len({row.label for row in ROWS}) == len(ROWS)


def test_a_pattern_of_no_row_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- defaults:begin -->\n<!-- defaults:end -->\n", encoding="utf-8")
    where = ["--page", str(page), "--results", str(tmp_path / "none.jsonl")]
    assert main(["--only", "dqn/Pendulum-v1", *where]) == 2
    assert main(["--table", *where]) == 0
    assert "Nothing was run yet." in page.read_text(encoding="utf-8")
