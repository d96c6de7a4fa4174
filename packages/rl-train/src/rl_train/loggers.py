"""Loggers of metrics: JSON lines, CSV, text, the terminal, TensorBoard, Weights & Biases.

Metrics are scalars by path, such as ``loss/policy``. The JSON lines are the record of a run: each
line is flushed when it is written, and a resumed run removes the lines after its checkpoint.
"""

import contextlib
import csv
import errno
import importlib
import io
import json
import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import FileIO
from pathlib import Path
from typing import Literal, Protocol, TextIO, cast, final

import torch
from torch import Tensor

from rl_core.errors import CheckpointError, ConfigError, DataError, MissingExtraError, in_brief
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
        _check_names(metrics)
        line: dict[str, float | None] = {"step": int(step), "time": self._clock()}
        line |= {name: _finite_or_none(value) for name, value in metrics.items()}
        raw = json.dumps(line, allow_nan=False).encode() + b"\n"
        if self._file.closed:
            self._file = self._opened()
        _append(self._file, raw)

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
class CsvLogger(Logger):
    """Writes ``metrics.csv``: a header, then one row with ``step`` and the metrics for each entry.

    A metric that appears later gets a new column at the end. Cells without a value are empty.

    Args:
        run_dir: directory of the file.
        resume_step: step of the checkpoint that the run resumes from, after which rows are
            removed; None starts a new file.

    Raises:
        ConfigError: when the file cannot be written.
        DataError: when what is there is not what this logger wrote.
    """

    def __init__(self, run_dir: Path, resume_step: int | None = None) -> None:
        self._path = Path(run_dir) / "metrics.csv"
        self._columns = ["step"]
        with _as_config_error(self._path):
            rows: list[dict[str, str]] = []
            if resume_step is not None and self._path.exists():
                self._columns, rows = self._read()
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with _as_data_error(self._path):
                kept = [row for row in rows if int(row["step"]) <= cast("int", resume_step)]
            self._replace(kept)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append a row.

        Raises:
            ConfigError: when a metric is called ``step`` or ``time``, or the file cannot be opened.
            CheckpointError: when writing fails; earlier rows stay complete.
        """
        _check_names(metrics)
        row = io.StringIO(newline="")
        with _as_config_error(self._path):
            if new := [name for name in metrics if name not in self._columns]:
                _, rows = self._read()
                self._columns += new
                self._replace(rows)
            csv.DictWriter(row, self._columns).writerow({"step": int(step), **metrics})
            with self._path.open("ab", buffering=0) as file:
                _append(file, row.getvalue().encode())

    def _read(self) -> tuple[list[str], list[dict[str, str]]]:
        """Read columns and rows; an incomplete last row is left out."""
        with _as_data_error(self._path):
            complete = self._path.read_bytes().rpartition(b"\n")[0].decode("utf-8-sig")
            reader = csv.DictReader(io.StringIO(complete, newline=""))
            columns, rows = list(reader.fieldnames or ("step",)), list(reader)
            if any(None in row for row in rows):
                raise ValueError("a row has more cells than the header")
            return columns, rows

    def _replace(self, rows: Sequence[dict[str, str]]) -> None:
        """Write the whole file anew, with short rows filled up."""
        temporary = self._path.with_suffix(".csv.tmp")
        with temporary.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, self._columns)
            writer.writeheader()
            writer.writerows(rows)
        temporary.replace(self._path)


@final
class TextLogger(Logger):
    """Writes ``metrics.txt``: the metrics of each entry as aligned text below a header.

    The header tells the step and the time of day.

    Args:
        run_dir: directory of the file.
        resume_step: step of the checkpoint that the run resumes from, after which entries are
            removed; None starts a new file.
        clock: returns the time in seconds since the epoch.

    Raises:
        ConfigError: when the file cannot be written.
        DataError: when what is there is not what this logger wrote.
    """

    def __init__(
        self,
        run_dir: Path,
        resume_step: int | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._path = Path(run_dir) / "metrics.txt"
        self._clock = clock
        kept = ""
        with _as_config_error(self._path):
            if resume_step is not None and self._path.exists():
                with _as_data_error(self._path):
                    text = self._path.read_text(encoding="utf-8")
                headers = re.finditer(r"^--- step ([\d,]+)", text, re.MULTILINE)
                later = (h.start() for h in headers if int(h[1].replace(",", "")) > resume_step)
                kept = text[: next(later, None)]
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_text(kept, encoding="utf-8")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append a header and the metrics.

        Raises:
            ConfigError: when the file cannot be opened.
            CheckpointError: when writing fails; earlier entries stay complete.
        """
        now = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self._clock()))
        text = f"--- step {int(step):,}, {now} ---\n{_aligned(_readable_rows(metrics))}\n"
        with _as_config_error(self._path), self._path.open("ab", buffering=0) as file:
            _append(file, text.encode())


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
        rows = [("step", f"{self._step:,}"), *_readable_rows(self._pending)]
        stream = sys.stdout if self._stream is None else self._stream
        stream.write(f"{_aligned(rows)}\n")
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
        run_dir: directory of the event files.
        resume_step: step of the checkpoint that the run resumes from; TensorBoard hides what an
            earlier session logged after it.

    Raises:
        MissingExtraError: when TensorBoard is not installed.
    """

    def __init__(self, run_dir: Path, resume_step: int | None = None) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise MissingExtraError(
                "TensorBoardLogger needs TensorBoard: pip install 'packages/rl-train[tensorboard]' "
                "(in a clone of the toolbox)"
            ) from error
        purge_step = None if resume_step is None else resume_step + 1
        self._writer: _SummaryWriter = SummaryWriter(str(run_dir), purge_step=purge_step)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write each metric as a scalar."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, float(value), step)

    def histogram(self, step: int, name: str, values: Tensor) -> None:
        """Write the distribution of the finite values, if there are any."""
        finite = _finite(values)
        if finite.numel():
            self._writer.add_histogram(name, finite, step)

    def close(self) -> None:
        """Flush and close the event file."""
        self._writer.close()


class _WandbRun(Protocol):
    """The used part of `wandb.Run`."""

    def log(self, data: Mapping[str, object], step: int) -> None: ...
    def finish(self) -> None: ...


@final
class WandbLogger(Logger):
    """Logs to Weights & Biases; ``wandb sync`` uploads what was logged offline.

    Each session of a run is a run of theirs; the group of these is called like the run directory.

    Args:
        run_dir: directory of its files, which go into ``wandb``.
        project: name of the project.
        run_name: name of the run; None lets W&B choose one.
        mode: ``"online"`` uploads at once, for which W&B asks to log in.

    Raises:
        MissingExtraError: when wandb is not installed.
    """

    def __init__(
        self,
        run_dir: Path,
        project: str = "rl-toolbox",
        run_name: str | None = None,
        mode: Literal["offline", "online"] = "offline",
    ) -> None:
        try:
            self._wandb = importlib.import_module("wandb")
        except ImportError as error:
            raise MissingExtraError(
                "WandbLogger needs wandb: pip install 'packages/rl-train[wandb]' "
                "(in a clone of the toolbox)"
            ) from error
        Path(run_dir).mkdir(parents=True, exist_ok=True)
        self._options: dict[str, str | None] = {"dir": str(run_dir), "group": Path(run_dir).name}
        self._options |= {"project": project, "name": run_name, "mode": mode}
        self._run: _WandbRun | None = None

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log the metrics."""
        self._begun().log({name: float(value) for name, value in metrics.items()}, step=step)

    def histogram(self, step: int, name: str, values: Tensor) -> None:
        """Log the distribution of the finite values, if there are any."""
        finite = _finite(values)
        if finite.numel():
            self._begun().log({name: self._wandb.Histogram(finite.numpy())}, step=step)

    def close(self) -> None:
        """Finish the run of W&B."""
        if self._run is not None:
            self._run.finish()
            self._run = None

    def _begun(self) -> _WandbRun:
        if self._run is None:
            self._run = cast("_WandbRun", self._wandb.init(**self._options))
        return self._run


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


def _check_names(metrics: Mapping[str, float]) -> None:
    for name in _RESERVED:
        if name in metrics:
            raise ConfigError(f"got a metric called {name!r}, which every line has; rename it")


def _append(file: FileIO, raw: bytes) -> None:
    """Write all of it or nothing.

    Raises:
        CheckpointError: when the disk refuses.
    """
    start = file.seek(0, os.SEEK_END)
    try:
        if file.write(raw) != len(raw):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError as error:
        with contextlib.suppress(OSError):
            file.truncate(start)
        raise CheckpointError(
            f"{file.name} cannot be written: {error.strerror}; free space and resume the run"
        ) from error


@contextlib.contextmanager
def _as_config_error(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error


@contextlib.contextmanager
def _as_data_error(path: Path) -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError, ValueError, csv.Error) as error:
        raise DataError(
            f"{path} is not as it was written: {in_brief(error)}; restore it, or move it away to "
            "begin a new one"
        ) from error


def _finite_or_none(value: float) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None


def _finite(values: Tensor) -> Tensor:
    flat = values.detach().cpu().flatten().to(torch.float64)
    return flat[flat.isfinite()]


def _readable_rows(metrics: Mapping[str, float]) -> list[tuple[str, str]]:
    return [(name, _readable(metrics[name])) for name in sorted(metrics)]


def _readable(value: float) -> str:
    number = float(value)
    if math.isfinite(number) and number == int(number) and abs(number) < 1e12:
        return f"{int(number):,}"
    return f"{number:.4g}"


def _aligned(rows: Sequence[tuple[str, str]]) -> str:
    """Return names at the left and values at the right of a column each."""
    left = max((len(name) for name, _ in rows), default=0)
    right = max((len(value) for _, value in rows), default=0)
    return "".join(f"{name:<{left}}  {value:>{right}}\n" for name, value in rows)
