"""The tests that every `Logger` must pass."""

import math
from pathlib import Path

import torch

from rl_core.logger import Logger


class LoggerSuite:
    """Conformance tests of a `Logger`: subclass, supply `make_logger`, inherit the tests."""

    def make_logger(self, directory: Path) -> Logger:
        """Return a new logger; what it writes belongs into an empty directory."""
        raise NotImplementedError

    def test_metrics_of_any_value_are_taken(self, tmp_path: Path) -> None:
        """Metrics come and go between lines, and some are not finite."""
        logger = self.make_logger(tmp_path)
        logger.log(0, {"loss/policy": 0.5, "train/episodes": 3})
        logger.log(10, {"loss/policy": math.nan, "loss/value": math.inf})
        logger.log(10, {"test/mean": -math.inf})
        logger.log(20, {})
        logger.close()

    def test_the_metrics_stay_the_callers(self, tmp_path: Path) -> None:
        """The same mapping goes to several loggers, so none may change it."""
        logger = self.make_logger(tmp_path)
        metrics = {"b": 2.0, "a": 1.0}
        logger.log(5, metrics)
        logger.close()
        assert list(metrics.items()) == [("b", 2.0), ("a", 1.0)]

    def test_histograms_of_any_shape_are_taken_or_ignored(self, tmp_path: Path) -> None:
        """Weights and gradients come as they are: 0-dim, empty, integers, NaN, with a graph."""
        logger = self.make_logger(tmp_path)
        learned = torch.ones(2, 3, requires_grad=True)
        for values in (
            torch.tensor(1.0),
            torch.zeros(0),
            torch.arange(4),
            torch.tensor([math.nan, 1.0]),
            learned * 2.0,
        ):
            logger.histogram(1, "weights/first", values)
        logger.close()

    def test_a_run_that_goes_on_logs_again(self, tmp_path: Path) -> None:
        """Loggers are closed when a session ends, maybe twice, and the next one has the same.

        Its files may grow, and there may be more of them, but what they had begins them still. Of
        binary files, such as TensorBoard's, only whether they are there is known.
        """
        logger = self.make_logger(tmp_path)
        before: dict[Path, bytes] = {}
        for step in (1, 2, 3):
            written = sum(map(len, before.values()))
            logger.log(step, {"a": 1.0})
            before = _checked(tmp_path, before, "log() again after close()")
            logger.close()
            before = _checked(tmp_path, before, "close()")
            assert not before or sum(map(len, before.values())) > written, (
                f"log() and close() wrote nothing of step {step}; write what was logged, at the "
                "latest when closing"
            )
            logger.close()


def _checked(directory: Path, before: dict[Path, bytes], call: str) -> dict[Path, bytes]:
    """Return the bytes of every file after a call, and assert that none lost what it had."""
    now = _contents(directory)
    for path, content in before.items():
        name = path.relative_to(directory)
        assert path in now, f"{name} is gone after {call}; what was logged before must stay"
        is_binary = b"\0" in content
        assert is_binary or now[path].startswith(content), (
            f"{name} lost what was logged before {call}; open the file for appending, and leave "
            "it as it is when closing"
        )
    return now


def _contents(directory: Path) -> dict[Path, bytes]:
    """Return the bytes of every file below a directory."""
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
