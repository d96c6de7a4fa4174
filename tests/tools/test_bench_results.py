from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from bench.child import Json
from bench.plan import Run
from bench.results import append_record, read_records


def run(seed: int = 0, **options: Json) -> Run:
    return Run(system="ours", algorithm="ppo", env="E-v0", steps=10, seed=seed, options=options)


def result(*returns: float) -> dict[str, Json]:
    return {"returns": list(returns), "steps_per_second": 5.0, "machine": "one"}


def test_no_file_holds_no_record(tmp_path: Path) -> None:
    assert read_records(tmp_path / "none.jsonl") == {}


def test_records_come_back_by_their_key(tmp_path: Path) -> None:
    path = tmp_path / "new" / "results.jsonl"
    append_record(path, run(0), result(1.0, 2.0))
    append_record(path, run(1), result(3.0))
    append_record(path, run(1, gamma=0.9), result(4.0))
    records = read_records(path)
    assert list(records) == [run(0).key, run(1).key, run(1, gamma=0.9).key]
    assert np.array_equal(records[run(0).key].returns, [1.0, 2.0])
    assert records[run(1).key].steps_per_second == 5.0
    assert records[run(1).key].machine == "one"


def test_the_later_record_of_a_run_counts(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    append_record(path, run(), result(1.0))
    append_record(path, run(), result(2.0))
    assert read_records(path)[run().key].returns.tolist() == [2.0]


def test_a_torn_last_line_is_left_out_and_mended(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    append_record(path, run(0), result(1.0))
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"system": "ou')
    assert list(read_records(path)) == [run(0).key]
    append_record(path, run(1), result(2.0))
    assert path.read_bytes().startswith(whole)
    assert list(read_records(path)) == [run(0).key, run(1).key]


def test_a_damaged_line_is_told(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    append_record(path, run(0), result(1.0))
    path.write_bytes(b"{}\n" + path.read_bytes())
    with pytest.raises(ValueError, match=r"results\.jsonl, line 1 is no record"):
        read_records(path)


def test_each_success_comes_back_as_a_hundred_percent(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    append_record(path, run(0), {**result(-3.0, -5.0, -1.0, -2.0), "success_rate": 0.75})
    append_record(path, run(1), result(-3.0, -5.0))
    told, silent = read_records(path).values()
    assert told.values("success").tolist() == [100.0, 100.0, 100.0, 0.0]
    assert told.values("return").tolist() == [-3.0, -5.0, -1.0, -2.0]
    assert silent.values("success").shape == (0,)


def test_a_note_is_recorded_but_makes_no_other_run(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    noted = replace(run(0), note="double")
    append_record(path, noted, result(1.0))
    assert read_records(path)[run(0).key].run.note == "double"
    append_record(path, run(0), result(2.0))
    assert len(read_records(path)) == 1


def test_a_curve_comes_back_and_may_be_missing(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    append_record(path, run(0), result(1.0))
    append_record(path, run(1), {**result(1.0), "curve": [[10, 0.5], [20, 1.5]]})
    records = read_records(path)
    assert records[run(0).key].curve.shape == (0, 2)
    assert records[run(1).key].curve.tolist() == [[10.0, 0.5], [20.0, 1.5]]
