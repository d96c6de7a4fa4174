"""Loggers of metrics: a file of JSON lines, the terminal, TensorBoard.

Metrics are scalars by path, such as ``loss/policy``. The JSON lines are the record of a run: each
line is flushed when it is written, and a resumed run removes the lines after its checkpoint.
"""

import contextlib
import errno
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from io import FileIO
from pathlib import Path
from typing import Protocol, TextIO, cast, final

import torch
from torch import Tensor

from rl_core.errors import CheckpointError, ConfigError, DataError, MissingExtraError
from rl_core.logger import Logger

_RESERVED = ("step", "time")


@final
class JsonlLogger(Logger):
    """Writes one JSON object per line, with ``step``, ``time`` and the metrics.

    Args:
        path: the file; its directory is created if it is missing.
        append: continue the file, whose last line may be incomplete; otherwise start a new one.
        clock: returns the time in seconds since the epoch.

    Raises:
        ConfigError: when the file cannot be opened for writing.
    """

    def __init__(
        self, path: str | Path, append: bool = False, clock: Callable[[], float] = time.time
    ) -> None:
        self._path = path = Path(path)
        self._clock = clock
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if append and path.exists():
                _mend_last_line(path)
            elif not append:
                path.write_bytes(b"")
            self._file = self._opened()
        except OSError as error:
            raise ConfigError(
                f"{path} cannot be opened for writing: {error.strerror}; choose another directory"
            ) from error

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append a line and flush it; numbers that are not finite become null.

        Raises:
            ConfigError: when a metric is called ``step`` or ``time``.
            CheckpointError: when writing fails; earlier lines stay complete.
        """
        for name in _RESERVED:
            if name in metrics:
                raise ConfigError(f"got a metric called {name!r}, which every line has; rename it")
        line: dict[str, float | None] = {"step": int(step), "time": self._clock()}
        line |= {name: _finite_or_none(value) for name, value in metrics.items()}
        raw = json.dumps(line, allow_nan=False).encode() + b"\n"
        if self._file.closed:
            self._file = self._opened()
        start = self._file.tell()
        try:
            if self._file.write(raw) != len(raw):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            with contextlib.suppress(OSError):
                self._file.truncate(start)
            raise CheckpointError(
                f"{self._path} cannot be written: {error.strerror}; free space and resume the run"
            ) from error

    def truncate_after(self, step: int) -> None:
        """Remove all lines from the first whose step is later.

        Args:
            step: step of the checkpoint that the run resumes from.

        Raises:
            DataError: when an earlier line is damaged.
        """
        for start, line in _lines(self._path):
            if line is None or cast("int", line["step"]) > step:
                self._file.truncate(start)
                return

    def close(self) -> None:
        """Close the file; `log` opens it again."""
        self._file.close()

    def _opened(self) -> FileIO:
        # Unbuffered: a line is written at once, or not at all.
        return self._path.open("ab", buffering=0)


@final
class ConsoleLogger(Logger):
    """Prints the newest metrics as an aligned table.

    Args:
        stream: where to print; None takes standard output.
        every_seconds: shortest time between two tables.
        clock: returns a time in seconds.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        every_seconds: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream
        self._every_seconds = every_seconds
        self._clock = clock
        self._next_time = -math.inf
        self._step = 0
        self._pending: dict[str, float] = {}

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Keep the newest value of each metric, and print the table when it is time."""
        self._step = step
        self._pending.update(metrics)
        now = self._clock()
        if now >= self._next_time:
            self._next_time = now + self._every_seconds
            self._print()

    def close(self) -> None:
        """Print the metrics that were not printed yet; the stream stays open."""
        self._print()

    def _print(self) -> None:
        if not self._pending:
            return
        rows = [("step", f"{self._step:,}")]
        rows += [(name, _readable(self._pending[name])) for name in sorted(self._pending)]
        left = max(len(name) for name, _ in rows)
        right = max(len(value) for _, value in rows)
        table = "".join(f"{name:<{left}}  {value:>{right}}\n" for name, value in rows)
        stream = sys.stdout if self._stream is None else self._stream
        stream.write(f"{table}\n")
        stream.flush()
        self._pending.clear()


class _SummaryWriter(Protocol):
    """The used part of `torch.utils.tensorboard.SummaryWriter`, which has no types."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None: ...
    def add_histogram(self, tag: str, values: Tensor, global_step: int) -> None: ...
    def close(self) -> None: ...


@final
class TensorBoardLogger(Logger):
    """Writes event files for TensorBoard.

    Args:
        log_dir: directory of the event files.
        purge_step: hides entries of an earlier run from this step on; for resuming.

    Raises:
        MissingExtraError: when TensorBoard is not installed.
    """

    def __init__(self, log_dir: str | Path, purge_step: int | None = None) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise MissingExtraError(
                "TensorBoardLogger needs TensorBoard: pip install 'rl-train[tensorboard]'"
            ) from error
        self._writer: _SummaryWriter = SummaryWriter(str(log_dir), purge_step=purge_step)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write each metric as a scalar."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, float(value), step)

    def histogram(self, step: int, name: str, values: Tensor) -> None:
        """Write the distribution of the finite values, if there are any."""
        flat = values.detach().cpu().flatten().to(torch.float64)
        finite = flat[flat.isfinite()]
        if finite.numel():
            self._writer.add_histogram(name, finite, step)

    def close(self) -> None:
        """Flush and close the event file."""
        self._writer.close()


def read_metrics(path: str | Path) -> list[dict[str, float | None]]:
    """Read what `JsonlLogger` wrote; an incomplete last line is left out.

    Args:
        path: the file.

    Returns:
        One dict per line, with ``step``, ``time`` and the metrics; None where one was not finite.

    Raises:
        DataError: when the file cannot be read, or a line before the last is damaged.
    """
    try:
        return [line for _, line in _lines(Path(path)) if line is not None]
    except OSError as error:
        raise DataError(
            f"{path} cannot be read: {error.strerror}; expected the metrics of a run"
        ) from error


def _lines(path: Path) -> Iterator[tuple[int, dict[str, float | None] | None]]:
    """Yield start and contents of each line; the contents of an incomplete last line are None."""
    with path.open("rb") as file:
        start = 0
        for number, raw in enumerate(file, start=1):
            line = _parsed(raw)
            if line is None and raw.endswith(b"\n"):
                raise DataError(
                    f"{path}, line {number} is not a line of metrics: {raw[:60]!r}; remove it"
                )
            yield start, line
            start += len(raw)


def _parsed(raw: bytes) -> dict[str, float | None] | None:
    try:
        line = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    if not isinstance(line, dict) or not isinstance(line.get("step"), int):
        return None
    if not all(value is None or isinstance(value, int | float) for value in line.values()):
        return None
    return line


def _mend_last_line(path: Path) -> None:
    """Remove an incomplete last line, or end a complete one that lacks its newline."""
    with path.open("r+b") as file:
        raw = file.read()
        start = raw.rfind(b"\n") + 1
        if _parsed(raw[start:]) is None:
            file.truncate(start)
        else:
            file.write(b"\n")


def _finite_or_none(value: float) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None


def _readable(value: float) -> str:
    number = float(value)
    if math.isfinite(number) and number == int(number) and abs(number) < 1e12:
        return f"{int(number):,}"
    return f"{number:.4g}"
