from pathlib import Path

from my_plugin import CsvLogger
from rl_core.logger import Logger
from rl_testing.loggers import LoggerSuite


class TestCsvLogger(LoggerSuite):
    def make_logger(self, directory: Path) -> Logger:
        return CsvLogger(directory / "metrics.csv")


def test_rows_have_the_metrics_of_the_first_one(tmp_path: Path) -> None:
    logger = CsvLogger(tmp_path / "metrics.csv")
    logger.log(10, {"b": 2.0, "a": 1.0})
    logger.log(20, {"a": 3.0, "c": 4.0})
    text = (tmp_path / "metrics.csv").read_text("utf-8")
    assert text.split() == ["step,a,b", "10,1.0,2.0", "20,3.0,"]


def test_a_resumed_run_keeps_the_rows_up_to_its_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    first = CsvLogger(path)
    for step in (10, 20, 30):
        first.log(step, {"a": 1.0})
    resumed = CsvLogger(path, resume_step=20)
    resumed.log(30, {"b": 3.0, "a": 2.0})
    assert path.read_text("utf-8").split() == ["step,a", "10,1.0", "20,1.0", "30,2.0"]
    CsvLogger(path).log(10, {"b": 4.0})
    assert path.read_text("utf-8").split() == ["step,b", "10,4.0"]
