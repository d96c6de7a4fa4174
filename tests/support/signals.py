"""Processes that are sent a signal, and Ctrl-C where the tests' own process ignores it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path


def kill_itself(words: Sequence[str], title: str) -> int:
    """Stand in for a command that is killed, as when memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


@contextmanager
def usual_interrupts() -> Iterator[None]:
    """Handle Ctrl-C as Python does by default, here and in processes started within the block.

    A shell starts what it runs in the background with this signal ignored, and so do tests there.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def interrupted(
    words: Sequence[str],
    number: signal.Signals,
    is_ready: Callable[[], bool],
    *,
    cwd: Path,
    env: Mapping[str, str],
) -> subprocess.CompletedProcess[str]:
    """Run the command ``rl``, send it a signal as soon as it is ready, and wait for its end.

    Args:
        words: after ``rl``.
        number: the signal.
        is_ready: asked again and again, for a minute at most.
        cwd: directory of the process.
        env: its environment variables.
    """
    command = [sys.executable, "-m", "rl_command", *words]
    pipe = subprocess.PIPE
    with usual_interrupts():
        process = subprocess.Popen(command, cwd=cwd, env=env, stdout=pipe, stderr=pipe, text=True)
    with process:
        deadline = time.monotonic() + 60.0
        while process.poll() is None and time.monotonic() < deadline and not is_ready():
            time.sleep(0.05)
        process.send_signal(number)
        try:
            out, err = process.communicate(timeout=30.0)
        finally:
            process.kill()
    return subprocess.CompletedProcess(command, process.returncode, out, err)
