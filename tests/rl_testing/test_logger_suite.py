"""What the suite of loggers catches."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from rl_core.logger import Logger
from rl_testing.loggers import LoggerSuite


class Lines(Logger):
    """Writes one line per step."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "lines.txt"

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{step} {sorted(metrics.items())}\n")


class TestLines(LoggerSuite):
    def make_logger(self, directory: Path) -> Logger:
        return Lines(directory)


class StartingAnew(Lines):
    """Empties its file when it is closed."""

    def close(self) -> None:
        self.path.write_text("", encoding="utf-8")


class KeepingTheNewest(Lines):
    """Replaces its file in each step."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.path.write_text(f"{step}\n", encoding="utf-8")


class LosingTheLast(Lines):
    """Writes each line when the next one comes."""

    line = ""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(self.line)
        self.line = f"{step}\n"


class MovingOn(Lines):
    """Writes each step to another file, and removes the one before."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.path.unlink(missing_ok=True)
        self.path = self.path.with_name(f"{step}.bin")
        self.path.write_bytes(b"\0")


@pytest.mark.parametrize(
    ("logger", "message"),
    [
        (StartingAnew, r"lines.txt lost what was logged before close\(\); open.*for appending"),
        (KeepingTheNewest, r"lines.txt lost what was logged before log\(\) again after close"),
        (LosingTheLast, r"wrote nothing of step 1"),
        (MovingOn, r"1.bin is gone after log\(\) again after close\(\)"),
    ],
)
def test_the_suite_catches(logger: type[Lines], message: str, tmp_path: Path) -> None:
    class Suite(LoggerSuite):
        def make_logger(self, directory: Path) -> Logger:
            return logger(directory)

    with pytest.raises(AssertionError, match=message):
        Suite().test_a_run_that_goes_on_logs_again(tmp_path)
