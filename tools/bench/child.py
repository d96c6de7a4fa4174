"""One measurement in a process of its own."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import TypeAlias, cast

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

_WORKER = Path(__file__).resolve().with_name("worker.py")
_GRACE_SECONDS = 10.0


class ChildError(Exception):
    """A measurement failed; its own output says why."""


def run_child(task: str, payload: Mapping[str, Json], threads: int) -> dict[str, Json]:
    """Carry out one task of `worker.py` and return its result.

    Args:
        task: name of the task.
        payload: its arguments.
        threads: how many every library may use.

    Raises:
        ChildError: when it fails.
    """
    with tempfile.TemporaryDirectory() as directory:
        answer = Path(directory) / "result.json"
        command = [sys.executable, str(_WORKER), task, json.dumps(payload), str(answer)]
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,  # held open: its end tells the worker that this process is gone
            env=thread_environment(os.environ, threads),
            cwd=directory,  # simulators leave log files where they run
        )
        with process:
            try:
                code = process.wait()
            except BaseException:
                _end(process)
                raise
        if code != 0 or not answer.exists():
            raise ChildError(f"{task} ended with exit status {code}")
        return cast("dict[str, Json]", json.loads(answer.read_text(encoding="utf-8")))


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
