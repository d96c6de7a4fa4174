"""Watches the processes of Gymnasium's own `AsyncVectorEnv`, which waits for them for ever."""

import contextlib
import time
from collections.abc import Iterator
from multiprocessing.connection import wait
from typing import Any, cast

from gymnasium.vector import AsyncVectorEnv
from gymnasium.vector.async_vector_env import AsyncState

from rl_core.errors import EnvironmentFaultError
from rl_envs.vector._worker_process import LAST_WORDS_S, hangs, how_it_died, make_poll


class ProcessWatch:
    """Notices processes that die, hang or fail to close, and leaves none behind.

    Args:
        envs: of Gymnasium; its waits are watched from now on.
        timeout_s: how long a reset, step or close of any environment may take.
    """

    def __init__(self, envs: AsyncVectorEnv, timeout_s: float) -> None:
        self._envs = envs
        self._timeout_s = timeout_s
        self._polls = [make_poll(pipe) for pipe in envs.parent_pipes]
        # What `step_wait` and `reset_wait` ask before they read what the processes sent.
        envs._poll_pipe_envs = self._wait  # type: ignore[method-assign]  # there is no other way in

    def close(self) -> None:
        """Close the environments.

        Raises:
            EnvironmentFaultError: if one raises, dies or hangs while it closes.
        """
        envs = self._envs
        fault = None
        if envs._state is AsyncState.DEFAULT:
            try:
                for _, pipe, _ in self._running():
                    with contextlib.suppress(OSError):  # a dead process hears nothing
                        pipe.send(("close", None))
                self._wait_for_ends()
            except EnvironmentFaultError as error:
                fault = error
        envs._state = AsyncState.DEFAULT  # or closing would wait for a step that nobody finishes
        for process in envs.processes:
            process.kill()
        envs.close(terminate=True)
        if fault is not None:
            raise EnvironmentFaultError(f"{fault} (in close)")

    def find_dead(self) -> EnvironmentFaultError | None:
        """Say which process ended, where a pipe broke."""
        running = {process.sentinel: (index, process) for index, _, process in self._running()}
        for sentinel in wait(list(running), LAST_WORDS_S):
            index, process = running[cast("int", sentinel)]
            return how_it_died(range(index, index + 1), process)
        return None

    def _wait(self, timeout: float | None = None) -> bool:
        """Wait until every process has sent something."""
        deadline = time.monotonic() + self._timeout_s
        for index, _, _ in self._running():
            if not self._polls[index](max(deadline - time.monotonic(), 0.0)):
                raise hangs(range(index, index + 1), self._timeout_s)
        return True

    def _wait_for_ends(self) -> None:
        """Wait until every process has ended; it says that it closes before it does."""
        deadline = time.monotonic() + self._timeout_s
        for index, _, process in self._running():
            process.join(max(deadline - time.monotonic(), 0.0))
            if process.is_alive():
                raise hangs(range(index, index + 1), self._timeout_s)
            if process.exitcode:
                raise how_it_died(range(index, index + 1), process)

    def _running(self) -> Iterator[tuple[int, Any, Any]]:
        """Yield number, pipe and process of each environment that has not raised before."""
        pairs = enumerate(zip(self._envs.parent_pipes, self._envs.processes, strict=True))
        return ((index, pipe, process) for index, (pipe, process) in pairs if pipe is not None)
