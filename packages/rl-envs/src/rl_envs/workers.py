"""Environments in worker processes, watched so that one that fails or hangs is named."""

import math
import queue
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Process, Queue
from multiprocessing.connection import Connection
from typing import Any

import gymnasium
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from gymnasium.vector.async_vector_env import AsyncState, _async_worker

from rl_core.errors import ConfigError, EnvironmentFaultError, in_brief

_LAST_WORDS_S = 1.0
"""How long to wait for a failed worker's message or exit code."""


class WorkerVectorEnv(AsyncVectorEnv):
    """Gymnasium's asynchronous vector environment, with a watch over its workers.

    If a worker raises, dies or exceeds the timeout, an `EnvironmentFaultError` names it. The others
    are left as they are; the only call that makes sense then is `close`, which kills workers that
    do not end by themselves. Observations come through shared memory without a copy, which
    `GymVecEnv` makes. Workers ignore Ctrl-C, which a terminal sends to every process of a command;
    the process that started them ends them.

    Args:
        env_functions: build the environments, each in its worker; the first is also called here,
            to learn its spaces.
        timeout_s: how long one reset or step of any environment may take; None for no limit.

    Raises:
        ConfigError: if the timeout is not a positive number.
        EnvironmentFaultError: if a worker fails to start.
    """

    def __init__(
        self,
        env_functions: Sequence[Callable[[], gymnasium.Env]],
        *,
        timeout_s: float | None = 60.0,
    ) -> None:
        is_number = isinstance(timeout_s, int | float) and not isinstance(timeout_s, bool)
        if timeout_s is not None and not (is_number and 0.0 < timeout_s < math.inf):
            raise ConfigError(
                f"timeout_s={timeout_s!r}; expected a positive number of seconds, or None"
            )
        self.timeout_s = timeout_s
        self._pipes: list[_WatchedPipe] = []
        super().__init__(
            env_functions,
            shared_memory=True,
            copy=False,
            autoreset_mode=AutoresetMode.SAME_STEP,
            worker=_work,
        )

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """End all workers: ask those that wait for a command, and kill those that do not comply.

        Args:
            timeout: how long to wait for them to close; two seconds if None.
            terminate: kill them without asking.
        """
        deadline = time.monotonic() + (2.0 if timeout is None else timeout)
        if not terminate and self._state is AsyncState.DEFAULT:
            for pipe in self._pipes:
                with suppress(OSError):  # a worker that died hears nothing
                    pipe.pipe.send(("close", None))
            for process in self.processes:
                process.join(max(deadline - time.monotonic(), 0.0))
        for process in self.processes:
            if process.is_alive():
                process.kill()
            process.join()
            process.close()
        for pipe in self._pipes:
            pipe.close()
        self.error_queue.close()
        self.error_queue.join_thread()

    def _check_spaces(self) -> None:
        # The last thing the base class does when it starts, and the first time it reads a pipe.
        rows = zip(range(self.num_envs), self.parent_pipes, self.processes, strict=True)
        self._pipes = [_WatchedPipe(*row, self.error_queue, self.timeout_s) for row in rows]
        self.parent_pipes = self._pipes  # type: ignore[assignment]  # it offers what the base uses
        try:
            super()._check_spaces()  # type: ignore[no-untyped-call]  # Gymnasium's
        except Exception:
            self.close(terminate=True)
            raise


def _work(*arguments: object) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a fork may have taken over a handler
    _async_worker(*arguments)  # type: ignore[arg-type]  # Gymnasium's own, as it gives them


@dataclass
class _WatchedPipe:
    """The end of a pipe to one worker that neither waits for ever nor hides why it failed."""

    index: int
    pipe: Connection
    process: Process
    errors: "Queue[tuple[int, type[Exception], Exception, str]]"
    timeout_s: float | None
    deadline: float = 0.0

    def __post_init__(self) -> None:
        self.poll = _make_poll(self.pipe)
        self.close = self.pipe.close

    @property
    def closed(self) -> bool:
        return self.pipe.closed

    def send(self, command: object) -> None:
        if self.timeout_s is not None:
            self.deadline = time.monotonic() + self.timeout_s
        try:
            self.pipe.send(command)
        except OSError as error:
            raise self._died() from error

    def recv(self) -> tuple[Any, bool]:
        if self.timeout_s is not None and not self.poll(max(self.deadline - time.monotonic(), 0.0)):
            raise EnvironmentFaultError(
                f"environment {self.index}: no response within {self.timeout_s:g} s; it hangs, or "
                "timeout_s is too small for it"
            )
        try:
            returned, is_success = self.pipe.recv()
        except (EOFError, OSError) as error:
            raise self._died() from error
        if not is_success:
            raise self._failed()
        return returned, is_success

    def _died(self) -> EnvironmentFaultError:
        self.process.join(_LAST_WORDS_S)
        code = self.process.exitcode
        how = f"by signal {-code}" if code is not None and code < 0 else f"with exit code {code}"
        return EnvironmentFaultError(f"environment {self.index}: its process ended {how}")

    def _failed(self) -> EnvironmentFaultError:
        try:
            index, _, error, trace = self.errors.get(timeout=_LAST_WORDS_S)
        except queue.Empty:
            return EnvironmentFaultError(f"environment {self.index}: failed without a message")
        is_named = isinstance(error, EnvironmentFaultError)
        message = str(error) if is_named else f"environment {index}: raised {in_brief(error)}"
        fault = EnvironmentFaultError(message)
        fault.add_note(f"In its process:\n{trace}")
        return fault


def _make_poll(pipe: Connection) -> Callable[[float], bool]:
    if sys.platform == "win32":
        return pipe.poll
    # A Connection's own poll builds a selector in every call, which costs more than the step.
    poller = select.poll()
    poller.register(pipe.fileno(), select.POLLIN)
    return lambda seconds: bool(poller.poll(1000.0 * seconds))
