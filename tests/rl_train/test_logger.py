"""Metrics are written whole, read back, and cut where a resumed run continues."""

import io
import json
import math
import re
import sys
import types
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_core.errors import CheckpointError, ConfigError, DataError, MissingExtraError
from rl_core.logger import Logger
from rl_testing.loggers import LoggerSuite
from rl_train import (
    ConsoleLogger,
    CsvLogger,
    JsonlLogger,
    TensorBoardLogger,
    TextLogger,
    WandbLogger,
)
from rl_train.loggers import read_metrics
from rl_train.trainer.listeners import named_specs


class TestJsonl(LoggerSuite):
    def make_logger(self, directory: Path) -> Logger:
        return JsonlLogger(directory / "metrics.jsonl")


class TestConsole(LoggerSuite):
    def make_logger(self, directory: Path) -> Logger:
        return ConsoleLogger(io.StringIO(), every_seconds=0.0)


class TestTensorBoard(LoggerSuite):
    def make_logger(self, directory: Path) -> Logger:
        pytest.importorskip("tensorboard")
        return TensorBoardLogger(directory)


class TestCsv(LoggerSuite):
    def make_logger(self, directory: Path) -> Logger:
        return CsvLogger(directory)


class TestText(LoggerSuite):
    def make_logger(self, directory: Path) -> Logger:
        return TextLogger(directory)


class FakeWandb(types.ModuleType):
    """Records what W&B would be given."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.calls: list[tuple[object, ...]] = []

    def init(self, **options: object) -> "FakeWandb":
        self.calls.append(("init", options))
        return self

    def log(self, data: object, step: int) -> None:
        self.calls.append(("log", data, step))

    def finish(self) -> None:
        self.calls.append(("finish",))

    def Histogram(self, values: object) -> object:  # noqa: N802  # their name
        return np.asarray(values).tolist()


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> FakeWandb:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


@pytest.mark.usefixtures("wandb")
class TestWandb(LoggerSuite):
    def make_logger(self, directory: Path) -> Logger:
        return WandbLogger(directory)


def write_steps(path: Path, *steps: int) -> None:
    logger = JsonlLogger(path, clock=lambda: 1.5)
    for step in steps:
        logger.log(step, {"loss/policy": step / 2})
    logger.close()


def test_each_line_is_an_object_that_is_there_at_once(tmp_path: Path) -> None:
    path = tmp_path / "new" / "metrics.jsonl"
    logger = JsonlLogger(path, clock=lambda: 1.5)
    logger.log(10, {"loss/policy": 0.25, "time/steps_per_second": 100})
    assert path.read_text() == (
        '{"step": 10, "time": 1.5, "loss/policy": 0.25, "time/steps_per_second": 100.0}\n'
    )
    logger.log(20, {})
    assert [line["step"] for line in read_metrics(path)] == [10, 20]
    logger.close()
    logger.close()


def test_numbers_that_json_lacks_become_null(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    logger = JsonlLogger(path)
    logger.log(1, {"a": math.nan, "b": math.inf, "c": -math.inf, "d": 1e308})
    logger.close()
    (line,) = read_metrics(path)
    assert (line["a"], line["b"], line["c"], line["d"]) == (None, None, None, 1e308)
    assert isinstance(line["time"], float)
    json.loads(path.read_text(), parse_constant=pytest.fail)


def test_reserved_names_are_refused(tmp_path: Path) -> None:
    logger = JsonlLogger(tmp_path / "metrics.jsonl")
    with pytest.raises(ConfigError, match="metric called 'step'"):
        logger.log(1, {"step": 2.0})
    logger.close()
    assert read_metrics(tmp_path / "metrics.jsonl") == []


def test_a_new_file_replaces_and_an_appended_one_continues(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write_steps(path, 1, 2)
    appended = JsonlLogger(path, append=True)
    appended.log(3, {})
    appended.close()
    assert [line["step"] for line in read_metrics(path)] == [1, 2, 3]
    write_steps(path, 9)
    assert [line["step"] for line in read_metrics(path)] == [9]


def test_resuming_equals_never_having_stopped(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole.jsonl", tmp_path / "cut.jsonl"
    write_steps(whole, 10, 20, 30, 40)
    write_steps(cut, 10, 20, 30)
    logger = JsonlLogger(cut, append=True, clock=lambda: 1.5)
    logger.truncate_after(20)
    logger.log(30, {"loss/policy": 15})
    logger.log(40, {"loss/policy": 20})
    logger.close()
    assert cut.read_bytes() == whole.read_bytes()


def test_a_full_disk_after_a_truncation_leaves_the_lines_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(FileIO):
        def write(self, raw: Any) -> int:
            return super().write(raw[:5])

    path = tmp_path / "metrics.jsonl"
    write_steps(path, 10, 20, 30)
    monkeypatch.setattr(JsonlLogger, "_opened", lambda self: Full(path, "ab"))
    logger = JsonlLogger(path, append=True)
    logger.truncate_after(20)
    whole = path.read_bytes()
    with pytest.raises(CheckpointError, match="No space left"):
        logger.log(30, {"loss/policy": 15})
    logger.close()
    assert path.read_bytes() == whole


@pytest.mark.parametrize(("step", "kept"), [(0, []), (19, [10]), (20, [10, 20]), (99, [10, 20])])
def test_truncation_keeps_the_lines_up_to_a_step(
    tmp_path: Path, step: int, kept: list[int]
) -> None:
    path = tmp_path / "metrics.jsonl"
    write_steps(path, 10, 20)
    logger = JsonlLogger(path, append=True)
    logger.truncate_after(step)
    logger.close()
    assert [line["step"] for line in read_metrics(path)] == kept


def test_every_tear_of_the_last_line_is_mended(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write_steps(path, 10, 20)
    raw = path.read_bytes()
    first = raw.index(b"\n") + 1
    for length in range(first, len(raw) + 1):
        path.write_bytes(raw[:length])
        kept = [10, 20] if length >= len(raw) - 1 else [10]
        assert [line["step"] for line in read_metrics(path)] == kept
        logger = JsonlLogger(path, append=True)
        logger.log(30, {})
        logger.close()
        assert [line["step"] for line in read_metrics(path)] == [*kept, 30]


def test_a_last_line_of_zeros_is_mended(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write_steps(path, 10)
    with path.open("ab") as file:
        file.write(b"\0" * 100)
    assert [line["step"] for line in read_metrics(path)] == [10]


@pytest.mark.parametrize(
    "line", [b"{", b"[]", b'{"time": 1}', b'{"step": 1, "a": "x"}', b"\xff", b"[" * 9999]
)
def test_a_damaged_line_in_the_middle_is_named(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "metrics.jsonl"
    write_steps(path, 10, 20)
    raw = path.read_bytes()
    path.write_bytes(raw + line + b"\n" + raw)
    with pytest.raises(DataError, match=r"metrics\.jsonl, line 3"):
        read_metrics(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="none cannot be read: No such file"):
        read_metrics(tmp_path / "none")
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be opened for writing"):
        JsonlLogger(tmp_path / "file" / "metrics.jsonl")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_one_error() -> None:
    logger = JsonlLogger(Path("/dev/full"), append=False)
    with pytest.raises(CheckpointError, match="/dev/full cannot be written: No space left"):
        logger.log(1, {})
    logger.close()


def test_a_line_that_fits_only_in_part_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "metrics.jsonl"
    logger = JsonlLogger(path)
    logger.log(1, {})
    file = logger._file

    class Partial:
        def __getattr__(self, name: str) -> object:
            return getattr(file, name)

        def write(self, raw: bytes) -> int:
            return file.write(raw[:5]) or 0

    with monkeypatch.context() as patch:
        patch.setattr(logger, "_file", Partial())
        with pytest.raises(CheckpointError, match="No space left"):
            logger.log(2, {})
    logger.log(3, {})
    logger.close()
    assert [line["step"] for line in read_metrics(path)] == [1, 3]


def test_the_console_prints_an_aligned_table() -> None:
    stream = io.StringIO()
    logger = ConsoleLogger(stream, every_seconds=5, clock=lambda: 0.0)
    logger.log(20480, {"train/episode_return": 123.456789, "loss/policy": -1.5e-5, "n": 1000})
    assert stream.getvalue() == (
        "step                    20,480\n"
        "loss/policy           -1.5e-05\n"
        "n                        1,000\n"
        "train/episode_return     123.5\n"
        "\n"
    )


def test_the_console_prints_once_in_a_while_and_at_the_end() -> None:
    stream = io.StringIO()
    times = iter([0.0, 4.9, 5.0, 5.1])
    logger = ConsoleLogger(stream, every_seconds=5, clock=lambda: next(times))
    for step in range(1, 5):
        logger.log(step, {"a": step, f"only_{step}": math.nan})
    tables = stream.getvalue().split("\n\n")
    assert [table.split()[1] for table in tables if table] == ["1", "3"]
    assert "only_2" in tables[1]
    logger.close()
    logger.close()
    assert stream.getvalue().endswith("step      4\na         4\nonly_4  nan\n\n")


def test_the_console_uses_the_standard_output_of_the_moment(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ConsoleLogger().log(1, {"a": 2})
    assert capsys.readouterr().out == "step  1\na     2\n\n"


def test_tensorboard_gets_scalars_and_histograms(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    logger = TensorBoardLogger(tmp_path)
    logger.log(10, {"loss/policy": 0.5, "bad": math.nan})
    logger.histogram(10, "weights", torch.tensor([[1.0, math.nan], [3.0, math.inf]]))
    logger.histogram(10, "nothing", torch.tensor([math.nan]))
    logger.close()
    events = accumulator.EventAccumulator(str(tmp_path))
    events.Reload()
    (scalar,) = events.Scalars("loss/policy")
    assert (scalar.step, scalar.value) == (10, 0.5)
    (histogram,) = events.Histograms("weights")
    assert (histogram.histogram_value.num, histogram.histogram_value.sum) == (2, 4)
    assert events.Tags()["histograms"] == ["weights"]


def test_a_csv_with_cells_that_belong_to_no_column_is_refused(tmp_path: Path) -> None:
    logger = CsvLogger(tmp_path)
    logger.log(10, {"a": 2.0, "b\u2028c": 1.0})
    logger.log(20, {"d": 2.0})
    with (tmp_path / "metrics.csv").open("a") as file:
        file.write("30,1,2,3,4,5\n")
    with pytest.raises(DataError, match="a row has more cells than the header"):
        logger.log(40, {"e": 2.0})


def test_csv_has_a_column_for_each_metric_that_appeared(tmp_path: Path) -> None:
    logger = CsvLogger(tmp_path / "new")
    logger.log(10, {"b": 2.0, "a": 0.5})
    logger.log(20, {"a": 1.5, "c": math.nan})
    logger.log(30, {"c": 4})
    path = tmp_path / "new" / "metrics.csv"
    assert path.read_text().split() == ["step,b,a,c", "10,2.0,0.5,", "20,,1.5,nan", "30,,,4"]
    with pytest.raises(ConfigError, match="metric called 'step'"):
        logger.log(40, {"step": 1.0})
    resumed = CsvLogger(tmp_path / "new", resume_step=20)
    resumed.log(25, {"d": 1.0, "b": 3.0})
    expected = ["step,b,a,c,d", "10,2.0,0.5,,", "20,,1.5,nan,", "25,3.0,,,1.0"]
    assert path.read_text().split() == expected
    CsvLogger(tmp_path / "new").log(1, {"z": 0.0})
    assert path.read_text().split() == ["step,z", "1,0.0"]


def test_a_row_that_a_full_disk_cut_off_is_no_row(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    CsvLogger(tmp_path).log(1000, {"a": 2.5})
    with path.open("a") as file:
        file.write("20")  # of 2000,2.5
    CsvLogger(tmp_path, resume_step=1000)
    assert path.read_text().split() == ["step,a", "1000,2.5"]


def test_a_byte_order_mark_is_no_part_of_a_table(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    CsvLogger(tmp_path).log(1000, {"a": 2.5})
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())  # as spreadsheets write it
    CsvLogger(tmp_path, resume_step=1000).log(2000, {"a": 3.5})
    assert path.read_text().split() == ["step,a", "1000,2.5", "2000,3.5"]


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        (CsvLogger, b"step;a\n1000;2.5\n"),
        (CsvLogger, b"step,a\nx,2.5\n"),
        (CsvLogger, b"step,a\n1000,\xff\n"),
        (TextLogger, b"--- step 1,000, \xff ---\n"),
    ],
)
def test_files_that_another_program_changed_are_named(
    tmp_path: Path, kind: type[CsvLogger] | type[TextLogger], content: bytes
) -> None:
    path = tmp_path / ("metrics.csv" if kind is CsvLogger else "metrics.txt")
    path.write_bytes(content)
    with pytest.raises(DataError, match=rf"{path.name} is not as it was written.*move it away"):
        kind(tmp_path, resume_step=1000)
    assert path.read_bytes() == content


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("kind", [CsvLogger, TextLogger])
def test_a_full_disk_is_the_same_error_for_all_files(
    tmp_path: Path, kind: type[CsvLogger] | type[TextLogger]
) -> None:
    logger = kind(tmp_path)
    logger.log(1, {"a": 1.0})
    logger._path = Path("/dev/full")
    with pytest.raises(CheckpointError, match="/dev/full cannot be written: No space left"):
        logger.log(2, {"a": 1.0})


def test_text_has_a_header_above_each_table(tmp_path: Path) -> None:
    def logged(*steps: int, resume_step: int | None = None) -> str:
        logger = TextLogger(tmp_path, resume_step, clock=lambda: 0.0)
        for step in steps:
            logger.log(step, {"train/episode_return": 123.456789, "n": step})
        return (tmp_path / "metrics.txt").read_text()

    header, *rows = logged(2048).splitlines()
    assert re.fullmatch(r"--- step 2,048, 19(69|70)-\d\d-\d\d \d\d:00:00 ---", header)
    assert rows == ["n                     2,048", "train/episode_return  123.5", ""]
    whole = logged(1000, 2048, 3000)
    assert logged(3000, resume_step=2048) == whole
    assert logged(resume_step=500) == ""


@pytest.mark.parametrize("kind", [CsvLogger, TextLogger])
def test_files_that_cannot_be_written_are_one_error(
    tmp_path: Path, kind: type[CsvLogger] | type[TextLogger]
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"file/metrics\.(csv|txt) cannot be written: "):
        kind(tmp_path / "file")


def test_wandb_gets_scalars_and_histograms_offline(tmp_path: Path, wandb: FakeWandb) -> None:
    logger = WandbLogger(tmp_path / "run", project="p")
    assert wandb.calls == []
    logger.log(10, {"loss/policy": 0.5})
    logger.histogram(10, "weights", torch.tensor([[1.0, math.nan], [3.0, math.inf]]))
    logger.close()
    options: dict[str, object] = {"dir": str(tmp_path / "run"), "group": "run", "project": "p"}
    options |= {"name": None, "mode": "offline"}
    assert wandb.calls == [
        ("init", options),
        ("log", {"loss/policy": 0.5}, 10),
        ("log", {"weights": [1.0, 3.0]}, 10),
        ("finish",),
    ]


def test_a_missing_wandb_is_answered_with_the_install_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'packages/rl-train\[wandb\]'"):
        WandbLogger(tmp_path)


def test_a_missing_tensorboard_is_answered_with_the_install_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'packages/rl-train\[tensorboard\]'"):
        TensorBoardLogger(tmp_path)


def test_histograms_are_optional_for_a_logger(tmp_path: Path) -> None:
    class Silent(Logger):
        def log(self, step: int, metrics: object) -> None:
            pass

        def close(self) -> None:
            pass

    Silent().histogram(1, "x", torch.zeros(3))
    with pytest.raises(TypeError, match="abstract"):
        Logger()  # type: ignore[abstract]  # the mistake


def test_paths_may_be_text(tmp_path: Path) -> None:
    path = str(tmp_path / "metrics.jsonl")
    logger = JsonlLogger(path)
    logger.log(1, {"a": 2.0})
    logger.close()
    assert [line["a"] for line in read_metrics(path)] == [2.0]


def test_a_logger_that_is_named_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="names 'csv' twice; leave one out"):
        named_specs("logger", ["csv", "text", "csv"])
