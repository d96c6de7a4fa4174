"""One worker: the process that steps environments, and the other end of the pipe to it.

A worker steps its environments through a `SyncVecEnv` of its own, so that all checks and resets
happen there, in parallel. Numbers go through shared memory; over the pipe goes an empty message per
step, and infos and faults as they occur.
"""

import gc
import math
import multiprocessing
import select
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler  # what pipes themselves send objects with
from typing import Any
from weakref import WeakSet

import gymnasium
import numpy as np
import torch
from gymnasium.vector.utils import CloudpickleWrapper
from torch import Tensor
from torch.utils._pytree import tree_map_only

from rl_core.errors import (
    CheckpointError,
    ConfigError,
    EnvironmentFaultError,
    MissingExtraError,
    RLError,
    SpaceError,
    in_brief,
)
from rl_core.spaces import event_shape, named_leaves, tensor_dtype
from rl_core.types import ArrayObservation, StateDict, numpy_dtype
from rl_envs.guard import EnvGuard
from rl_envs.state import get_state, set_state
from rl_envs.vector._arrays import Rows
from rl_envs.vector.sync import LazyInfo, SyncVecEnv

LAST_WORDS_S = 0.5
"""How long to wait for a process that is about to end."""

_OUR_ENDS: "WeakSet[Connection]" = WeakSet()
"""The ends by which this process talks to its workers.

A forked worker inherits those of the others, and closes them: they must break when this ends.
"""

_SILENT = b""
"""A worker's reply to a step without infos or ends."""

_ERRORS: dict[str, type[RLError]] = {
    error.__name__: error for error in (CheckpointError, ConfigError, MissingExtraError, SpaceError)
}
"""Errors of ours that keep their class on their way from a worker."""


class Worker:
    """One process with some environments, and this end of the pipe to it.

    Args:
        rows: the numbers of its environments, consecutive.
        functions: build them.
        check: as in `SyncVecEnv`.
        shared: the memory that all workers write into, and what is where.

    Attributes:
        owes_reply: it was sent a command whose reply has not been received.
    """

    def __init__(
        self,
        rows: range,
        functions: Sequence[Callable[[], gymnasium.Env]],
        check: bool,
        shared: Any,
    ) -> None:
        self.rows = rows
        self.pipe, theirs = multiprocessing.Pipe()
        _OUR_ENDS.add(self.pipe)
        # The type of context differs by the method to start processes; all have `Process`.
        self.process: multiprocessing.process.BaseProcess = multiprocessing.Process(
            target=_work,
            args=(theirs, rows, list(map(CloudpickleWrapper, functions)), check, shared),
            daemon=True,
        )
        gc.freeze()  # what this process has to destroy, such as another's threads, a fork must not
        try:
            with warnings.catch_warnings():  # of forks beside threads, which Python 3.12 gives
                warnings.simplefilter("ignore", DeprecationWarning)
                self.process.start()
        finally:
            gc.unfreeze()
        theirs.close()
        self._poll = make_poll(self.pipe)
        self.owes_reply = True  # to report that it has started

    def send(self, command: tuple[object, ...] | None) -> None:
        """Send a command; None is a step whose action is in shared memory."""
        try:
            self.pipe.send_bytes(_SILENT if command is None else ForkingPickler.dumps(command))
        except OSError as error:
            self.owes_reply = True
            if command is not None and command[0] == "close":
                raise how_it_died(self.rows, self.process) from error
            return  # whoever waits for the reply hears how it died
        self.owes_reply = True

    def receive(self, deadline: float, timeout_s: float | None) -> Any:
        """Return the reply; None if it is silent."""
        left = -1.0 if deadline == math.inf else max(deadline - time.monotonic(), 0.0)
        if not self._poll(left):
            raise hangs(self.rows, timeout_s)
        try:
            reply = self.pipe.recv_bytes()
        except (EOFError, OSError) as error:
            raise how_it_died(self.rows, self.process) from error
        self.owes_reply = False
        if reply == _SILENT:
            return None
        is_fault, value = ForkingPickler.loads(reply)
        if is_fault:
            kind, message, trace = value
            fault: RLError = _ERRORS.get(kind, EnvironmentFaultError)(message)
            fault.add_note(f"In its process:\n{trace}")
            raise fault
        return value

    def kill(self, patience: float = 0.0) -> None:
        """End the process, whatever it does, unless it ends within some seconds by itself."""
        if self.pipe.closed:
            return
        self.pipe.close()
        self.process.join(patience)
        if self.process.is_alive():
            self.process.kill()
        self.process.join()
        self.process.close()


def how_it_died(rows: range, process: multiprocessing.process.BaseProcess) -> EnvironmentFaultError:
    """Build the error of environments whose process has ended, or is about to."""
    process.join(LAST_WORDS_S)
    code = process.exitcode
    how = f"by signal {-code}" if code is not None and code < 0 else f"with exit code {code}"
    return EnvironmentFaultError(f"{_named(rows)}: its process ended {how}")


def hangs(rows: range, timeout_s: float | None) -> EnvironmentFaultError:
    """Build the error of environments that take too long."""
    return EnvironmentFaultError(
        f"{_named(rows)}: no response within {timeout_s:g} s; it hangs, or timeout_s is too "
        "small for it"
    )


def _named(rows: range) -> str:
    first, last = rows[0], rows[-1]
    return f"environment {first}" if first == last else f"one of environments {first} to {last}"


class _WorkerEnvs(SyncVecEnv):
    """The environments of one worker, under the numbers that they have among all."""

    def __init__(self, envs: Sequence[gymnasium.Env], numbers: range, check: bool) -> None:
        self._numbers = numbers
        super().__init__(envs, check=check)

    def begin(self, seeds: Sequence[int | None], steps: int) -> ArrayObservation:
        """Reset with the environments' own seeds, in a step of all environments."""
        self._steps, self._row_seeds = steps, seeds
        return self.reset()

    def save(self) -> StateDict:
        """Return the state of each environment, by its number among all."""
        states = map(get_state, self.envs)
        return {str(number): state for number, state in zip(self._numbers, states, strict=True)}

    def resume(self, states: Sequence[StateDict], steps: int) -> None:
        """Restore the environments, in a step of all environments."""
        for env, state in zip(self.envs, states, strict=True):
            set_state(env, with_tensors(state))
        self._steps, self._is_ready = steps, True

    def _reset_all(self, seed: int | None) -> ArrayObservation:
        observation: ArrayObservation = self._arrays.empty_observation()
        for index, row_seed in enumerate(self._row_seeds):
            self._reset_row(observation, index, row_seed)
        return observation

    def _fault(self, message: str, index: int | None = None) -> EnvironmentFaultError:
        return super()._fault(message, None if index is None else self._numbers[index])


def _work(
    pipe: Connection,
    numbers: range,
    functions: Sequence[Callable[[], gymnasium.Env]],
    check: bool,
    shared: tuple[Any, Mapping[str, Any]] | None,
) -> None:
    for end in list(_OUR_ENDS):
        end.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a fork may have taken over a handler

    def reply(value: object) -> None:
        pipe.send_bytes(ForkingPickler.dumps((False, value)))

    number = numbers[0]  # of the environment that is being built
    try:
        envs = None
        try:
            guards = []
            for number, function in zip(numbers, functions, strict=True):
                env = function()
                guards.append(
                    env if isinstance(env, EnvGuard) else EnvGuard(env, number, check=check)
                )
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the process that waits gives the notice
                envs = _WorkerEnvs(guards, numbers, check)
            facts = [(guard.observation_space, guard.action_space) for guard in guards]
            can_save = envs.resume_grade == "exact"
            reply((facts, envs.spec_id, envs.max_episode_steps, can_save))
        except (Exception, SystemExit) as error:
            _report(pipe, range(number, number + 1), error)
        arrays = {} if shared is None else shared_views(*shared)
        own = slice(numbers.start, numbers.stop)
        while envs is not None:
            message = pipe.recv_bytes()
            try:
                command, *arguments = (
                    ("step",) if message == _SILENT else ForkingPickler.loads(message)
                )
                if command == "step":
                    _step(pipe, envs, arrays, own)
                elif command == "reset":
                    for name, value in named_arrays(envs.begin(*arguments)):
                        arrays[f"observation/{name}"][own] = value
                    pipe.send_bytes(_SILENT)
                elif command == "call":
                    reply(envs.call(*arguments))
                elif command == "save":
                    reply(with_arrays(envs.save()))
                elif command == "load":
                    envs.resume(*arguments)
                    pipe.send_bytes(_SILENT)
                else:
                    envs.close()
                    pipe.send_bytes(_SILENT)
                    return
            except (Exception, SystemExit) as error:
                _report(pipe, numbers, error)
    except (EOFError, OSError):
        return  # the process that waited is gone


def _step(pipe: Connection, envs: _WorkerEnvs, arrays: Mapping[str, Rows], own: slice) -> None:
    """Step the environments whose rows are ``own``, and reply what shared memory does not hold."""
    step: Any = envs.step(arrays["action"][own].copy())
    for name, value in named_arrays(step.observation):
        arrays[f"observation/{name}"][own] = value
    arrays["reward"][own] = step.reward
    arrays["terminated"][own], arrays["truncated"][own] = (
        step.terminated,
        step.truncated,
    )
    assert isinstance(step.info, LazyInfo)
    infos, ended = step.info.parts()
    if ended:
        for name, value in named_arrays(step.final_observation):
            arrays[f"final/{name}"][own] = value
    reports = {
        own.start + index: (info, ended.get(index))
        for index, info in enumerate(infos)
        if info or index in ended
    }
    try:
        reply = ForkingPickler.dumps((False, reports)) if reports else _SILENT
    except Exception as error:  # of whatever kind the objects raise
        raise _unsendable(reports, error) from error
    pipe.send_bytes(reply)


def _unsendable(reports: Mapping[int, Any], error: Exception) -> EnvironmentFaultError:
    """Name the environment and the key of an info that cannot be pickled."""
    for number, (info, last) in reports.items():
        for key, value in [*info.items(), *(last[1].items() if last else ())]:
            try:
                ForkingPickler.dumps(value)
            except Exception:
                return EnvironmentFaultError(
                    f"environment {number}: its info holds {key!r}, a {type(value).__name__} that "
                    f"cannot be sent between processes ({in_brief(error)}); leave it out, or use "
                    "vectorization='sync'"
                )
    return EnvironmentFaultError(f"an info cannot be sent between processes: {in_brief(error)}")


def _report(pipe: Connection, rows: range, error: BaseException) -> None:
    """Send an exception as text, since it may not be possible to pickle it."""
    is_ours = isinstance(error, RLError)
    message = str(error) if is_ours else f"{_named(rows)}: raised {in_brief(error)}"
    if "daemonic processes are not allowed" in message:
        message += "; use vectorization='sync', where an environment may start processes"
    try:
        trace = traceback.format_exc()
    except Exception:  # of an exception whose message raises
        trace = message
    pipe.send_bytes(ForkingPickler.dumps((True, (type(error).__name__, message, trace))))


def shared_fields(
    observation_space: Any, action_space: Any, num_envs: int
) -> dict[str, tuple[tuple[int, ...], "np.dtype[Any]"]]:
    """Return shape and dtype of each array in shared memory, by name."""
    fields: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {
        "reward": ((num_envs,), np.dtype(np.float32)),
        "terminated": ((num_envs,), np.dtype(np.bool_)),
        "truncated": ((num_envs,), np.dtype(np.bool_)),
    }
    for key, leaf in named_leaves(observation_space).items():
        dtype = numpy_dtype(tensor_dtype(leaf))
        for kind in ("observation", "final"):
            fields[f"{kind}/{key}"] = ((num_envs, *event_shape(leaf)), dtype)
    fields["action"] = ((num_envs, *action_space.shape), np.dtype(action_space.dtype))
    return fields


def shared_size(shape: tuple[int, ...], dtype: "np.dtype[Any]") -> int:
    """Return the bytes of an array, rounded up so that the next one begins at a cache line."""
    return -(-math.prod(shape) * dtype.itemsize // 64) * 64


def shared_views(memory: Any, fields: Mapping[str, Any]) -> dict[str, Rows]:
    """Return the arrays in shared memory."""
    everything = np.frombuffer(memory, np.uint8)
    views, start = {}, 0
    for name, (shape, dtype) in fields.items():
        size = math.prod(shape) * dtype.itemsize
        views[name] = everything[start : start + size].view(dtype).reshape(shape)
        start += shared_size(shape, dtype)
    return views


def named_arrays(observation: Any) -> list[tuple[str, Rows]]:
    """Return the arrays of an observation with the names they have in shared memory."""
    return list(observation.items()) if isinstance(observation, dict) else [("", observation)]


def with_arrays(state: StateDict) -> StateDict:
    """Turn the tensors of a state into arrays, which pipes send by value."""
    arrays: StateDict = tree_map_only(Tensor, partial(Tensor.numpy, force=True), state)
    return arrays


def with_tensors(state: StateDict) -> StateDict:
    """Turn the arrays of a state back into tensors."""
    tensors: StateDict = tree_map_only(np.ndarray, torch.from_numpy, state)
    return tensors


def make_poll(pipe: Connection) -> Callable[[float], bool]:
    """Return a function that waits for a reply, for ever if the seconds are negative."""
    if sys.platform == "win32":
        return lambda seconds: pipe.poll(None if seconds < 0.0 else seconds)
    # A Connection's own poll builds a selector in every call, which costs more than the step.
    poller = select.poll()
    poller.register(pipe.fileno(), select.POLLIN)
    return lambda seconds: bool(poller.poll(1000.0 * seconds if seconds >= 0.0 else None))
