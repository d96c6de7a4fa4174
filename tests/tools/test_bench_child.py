import os
import signal
from pathlib import Path

import pytest
from bench.child import (
    ChildError,
    run_child,
    run_children,
    termination_interrupts,
    thread_environment,
)


def test_every_library_gets_the_same_thread_count() -> None:
    pinned = thread_environment({"OMP_NUM_THREADS": "9", "HOME": "x"}, 1)
    assert pinned["HOME"] == "x"
    assert pinned["OMP_NUM_THREADS"] == pinned["MKL_NUM_THREADS"] == pinned["NPROC"] == "1"
    assert pinned["XLA_FLAGS"] == "--xla_cpu_multi_thread_eigen=false"
    more = thread_environment({"XLA_FLAGS": "--kept"}, 2)
    assert more["OMP_NUM_THREADS"] == "2"
    assert more["XLA_FLAGS"] == "--kept"
    assert thread_environment({"XLA_FLAGS": "--kept"}, 1)["XLA_FLAGS"].startswith("--kept ")


def test_a_failing_child_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ChildError, match="no_such:task ended with exit status 1"):
        run_child("no_such:task", {}, 1)
    assert "ModuleNotFoundError" in capfd.readouterr().err


def test_a_request_to_terminate_interrupts() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), termination_interrupts():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == before


def test_children_run_side_by_side_and_fail_alone(capfd: pytest.CaptureFixture[str]) -> None:
    ended = list(run_children("bench.worker:measure_import", [{}, {}], 1, jobs=2))
    assert sorted(number for number, _ in ended) == [0, 1]
    assert all(isinstance(result, dict) and result["torch"] for _, result in ended)
    ((number, result),) = run_children("no_such:task", [{}], 1, jobs=2)
    assert (number, str(result)) == (0, "no_such:task ended with exit status 1")
    assert "ModuleNotFoundError" in capfd.readouterr().err


def test_children_that_are_left_are_stopped() -> None:
    others = _children()
    ended = run_children("bench.worker:measure_import", [{}] * 4, 1, jobs=3)
    next(ended)
    ended.close()  # type: ignore[attr-defined]  # a generator
    assert not _children() - others


def _children() -> set[str]:
    """Return the processes that this one started and has not waited for."""
    return set(Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split())
