"""One measurement in a process of its own."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TypeAlias, cast

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

_WORKER = Path(__file__).resolve().with_name("worker.py")
_GRACE_SECONDS = 10.0
_POLL_SECONDS = 0.02


class ChildError(Exception):
    """A measurement failed; its own output says why."""


def run_child(task: str, payload: Mapping[str, Json], threads: int) -> dict[str, Json]:
    """Call a function in a process of its own and return its result.

    Args:
        task: the function, such as ``bench.replay_run:measure``; it returns plain data.
        payload: its arguments by name.
        threads: how many every library may use.

    Raises:
        ChildError: when it fails.
    """
    ((_, result),) = run_children(task, [payload], threads)
    if isinstance(result, ChildError):
        raise result
    return result


def run_children(
    task: str, payloads: Sequence[Mapping[str, Json]], threads: int, jobs: int = 1
) -> Iterator[tuple[int, "dict[str, Json] | ChildError"]]:
    """Call a function once for each payload, each time in a process of its own; see `run_child`.

    Args:
        task: the function.
        payloads: its arguments by name.
        threads: how many every library may use.
        jobs: processes that run side by side.

    Yields:
        The index of a payload, and its result or why there is none, as soon as it ends.
    """
    waiting = list(enumerate(payloads))
    running: dict[int, _Child] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                number, payload = waiting.pop(0)
                running[number] = _Child(task, payload, threads)
            for number in [number for number, child in running.items() if child.has_ended]:
                yield number, running.pop(number).result()
            if running:
                time.sleep(_POLL_SECONDS)
    finally:
        for child in running.values():
            child.stop()


class _Child:
    def __init__(self, task: str, payload: Mapping[str, Json], threads: int) -> None:
        self._task = task
        self._directory = tempfile.TemporaryDirectory()
        self._answer = Path(self._directory.name) / "result.json"
        command = [sys.executable, str(_WORKER), task, json.dumps(payload), str(self._answer)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,  # held open: its end tells the worker that this process is gone
            env=thread_environment(os.environ, threads),
            cwd=self._directory.name,  # simulators leave log files where they run
        )

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def result(self) -> "dict[str, Json] | ChildError":
        """Return the result of a child that has ended."""
        with self._directory, self._process:
            code = self._process.returncode
            if code != 0 or not self._answer.exists():
                return ChildError(f"{self._task} ended with exit status {code}")
            return cast("dict[str, Json]", json.loads(self._answer.read_text(encoding="utf-8")))

    def stop(self) -> None:
        with self._directory, self._process:
            _end(self._process)


def thread_environment(environment: Mapping[str, str], threads: int) -> dict[str, str]:
    """Return the environment variables that hold every library to one thread count.

    Args:
        environment: to start from.
        threads: how many.
    """
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NPROC")
    pinned = {**environment, **dict.fromkeys(names, str(threads)), "JAX_PLATFORMS": "cpu"}
    if threads == 1:
        flags = f"{environment.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false"
        pinned["XLA_FLAGS"] = flags.strip()
    return pinned


@contextlib.contextmanager
def termination_interrupts() -> Iterator[None]:
    """Treat a request to terminate like Ctrl-C, so that no child is left behind."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End a child; one that was interrupted with its parent may already be on its way."""
    process.terminate()
    try:
        process.wait(_GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
