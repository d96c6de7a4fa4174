"""One worker: the process that steps an environment, and the other end of the pipe to it.

A worker steps its environment through a `SyncVecEnv` of its own, so that all checks and resets
happen there, in parallel. Numbers go through shared memory; over the pipe goes an empty message per
step, and infos and faults as they occur.
"""

import math
import multiprocessing
import select
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler  # what pipes themselves send objects with
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector.utils import CloudpickleWrapper

from rl_core.errors import (
    ConfigError,
    EnvironmentFaultError,
    MissingExtraError,
    RLError,
    SpaceError,
    in_brief,
)
from rl_core.spaces import event_shape, leaf_spaces, tensor_dtype
from rl_core.types import ArrayObservation, StateDict
from rl_envs.guard import EnvGuard
from rl_envs.state import get_state, set_state
from rl_envs.vector._arrays import LazyInfo, Rows
from rl_envs.vector.sync import SyncVecEnv

LAST_WORDS_S = 0.5
"""How long to wait for a process that is about to end."""

_SILENT = b""
"""A worker's reply to a step without infos or ends."""

_ERRORS: dict[str, type[RLError]] = {
    error.__name__: error for error in (ConfigError, MissingExtraError, SpaceError)
}
"""Errors of ours that keep their class on their way from a worker."""


class Worker:
    """One process with one environment, and this end of the pipe to it.

    Attributes:
        is_asked: it was sent a command whose reply has not been received.
    """

    def __init__(
        self, index: int, function: Callable[[], gymnasium.Env], check: bool, shared: Any
    ) -> None:
        self.index = index
        self.pipe, theirs = multiprocessing.Pipe()
        # The type of context differs by the method to start processes; all have `Process`.
        self.process: multiprocessing.process.BaseProcess = multiprocessing.Process(
            target=_work,
            args=(theirs, self.pipe, index, CloudpickleWrapper(function), check, shared),
            daemon=True,
        )
        with warnings.catch_warnings():  # of forks beside threads, which Python 3.12 gives
            warnings.simplefilter("ignore", DeprecationWarning)
            self.process.start()
        theirs.close()
        self._poll = make_poll(self.pipe)
        self.is_asked = True  # to report that it has started

    def send(self, command: tuple[object, ...] | None) -> None:
        """Send a command; None is a step whose action is in shared memory."""
        try:
            self.pipe.send_bytes(_SILENT if command is None else ForkingPickler.dumps(command))
        except OSError as error:
            self.is_asked = True
            if command is not None and command[0] == "close":
                raise self._died() from error
            return  # whoever waits for the reply hears how it died
        self.is_asked = True

    def receive(self, deadline: float, timeout_s: float | None) -> Any:
        """Return the reply; None if it is silent."""
        left = -1.0 if deadline == math.inf else max(deadline - time.monotonic(), 0.0)
        if not self._poll(left):
            raise hangs(self.index, timeout_s)
        try:
            reply = self.pipe.recv_bytes()
        except (EOFError, OSError) as error:
            raise self._died() from error
        self.is_asked = False
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

    def _died(self) -> EnvironmentFaultError:
        return how_it_died(self.index, self.process)


def how_it_died(index: int, process: multiprocessing.process.BaseProcess) -> EnvironmentFaultError:
    """Build the error of an environment whose process has ended, or is about to."""
    process.join(LAST_WORDS_S)
    code = process.exitcode
    how = f"by signal {-code}" if code is not None and code < 0 else f"with exit code {code}"
    return EnvironmentFaultError(f"environment {index}: its process ended {how}")


def hangs(index: int, timeout_s: float | None) -> EnvironmentFaultError:
    """Build the error of an environment that takes too long."""
    return EnvironmentFaultError(
        f"environment {index}: no response within {timeout_s:g} s; it hangs, or timeout_s is too "
        "small for it"
    )


class _Row(SyncVecEnv):
    """The environment of one worker, under the number it has among all."""

    def __init__(self, env: gymnasium.Env, index: int, check: bool) -> None:
        self.index = index
        super().__init__([env], check=check)

    def begin(self, seed: int | None, steps: int) -> ArrayObservation:
        """Reset with the environment's own seed, in a step of all environments."""
        self._steps, self._row_seed = steps, seed
        return self.reset()

    def resume(self, state: StateDict, steps: int) -> None:
        """Restore the environment, in a step of all environments."""
        set_state(self.envs[0], map_tree(to_tensor, state))
        self._steps, self._is_ready = steps, True

    def _reset_all(self, seed: int | None) -> ArrayObservation:
        observation: ArrayObservation = self._arrays.empty_observation()
        self._reset_row(observation, 0, self._row_seed)
        return observation

    def _fault(self, message: str, index: int | None = None) -> EnvironmentFaultError:
        return super()._fault(message, None if index is None else self.index)


def _work(
    pipe: Connection,
    other_end: Connection,
    index: int,
    function: Callable[[], gymnasium.Env],
    check: bool,
    shared: tuple[Any, Mapping[str, Any]] | None,
) -> None:
    other_end.close()  # so that the pipe breaks when the process that waits ends
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a fork may have taken over a handler

    def reply(value: object) -> None:
        pipe.send_bytes(ForkingPickler.dumps((False, value)))

    try:
        row = None
        try:
            env = function()
            guard = env if isinstance(env, EnvGuard) else EnvGuard(env, index, check=check)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the process that waits gives the notice
                row = _Row(guard, index, check)
            facts = (guard.observation_space, guard.action_space, row.spec_id)
            reply((*facts, row.max_episode_steps, row.resume_grade == "exact"))
        except (Exception, SystemExit) as error:
            _report(pipe, index, error)
        rows = {} if shared is None else shared_views(*shared)
        while row is not None:
            message = pipe.recv_bytes()
            try:
                command, *arguments = (
                    ("step",) if message == _SILENT else ForkingPickler.loads(message)
                )
                if command == "step":
                    _step(pipe, row, rows)
                elif command == "reset":
                    for name, value in named_arrays(row.begin(*arguments)):
                        rows[f"observation/{name}"][index] = value[0]
                    pipe.send_bytes(_SILENT)
                elif command == "save":
                    reply(map_tree(to_array, get_state(guard.env)))
                elif command == "load":
                    row.resume(*arguments)
                    pipe.send_bytes(_SILENT)
                else:
                    row.close()
                    pipe.send_bytes(_SILENT)
                    return
            except (Exception, SystemExit) as error:
                _report(pipe, index, error)
    except (EOFError, OSError):
        return  # the process that waited is gone


def _step(pipe: Connection, row: _Row, rows: Mapping[str, Rows]) -> None:
    index = row.index
    step: Any = row.step(rows["action"][index : index + 1].copy())
    for name, value in named_arrays(step.observation):
        rows[f"observation/{name}"][index] = value[0]
    rows["reward"][index] = step.reward[0]
    rows["terminated"][index], rows["truncated"][index] = step.terminated[0], step.truncated[0]
    assert isinstance(step.info, LazyInfo)
    infos, ended = step.info.parts()
    if not ended and not infos[0]:
        pipe.send_bytes(_SILENT)
        return
    if ended:
        for name, value in named_arrays(step.final_observation):
            rows[f"final/{name}"][index] = value[0]
    pipe.send_bytes(ForkingPickler.dumps((False, (infos[0], ended.get(0)))))


def _report(pipe: Connection, index: int, error: BaseException) -> None:
    """Send an exception as text, since it may not be possible to pickle it."""
    is_ours = isinstance(error, RLError)
    message = str(error) if is_ours else f"environment {index}: raised {in_brief(error)}"
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
    leaves = leaf_spaces(observation_space)
    for key, leaf in leaves.items() if isinstance(leaves, dict) else [("", leaves)]:
        dtype = np.dtype(str(tensor_dtype(leaf)).removeprefix("torch."))
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


def map_tree(function: Callable[[Any], Any], tree: Any) -> Any:
    """Apply a function to what is in nested mappings and lists."""
    if isinstance(tree, Mapping):
        return {key: map_tree(function, item) for key, item in tree.items()}
    if isinstance(tree, list | tuple):
        return [map_tree(function, item) for item in tree]
    return function(tree)


def to_array(value: Any) -> Any:
    """Turn a tensor into an array, which pipes send by value."""
    return value.numpy(force=True) if isinstance(value, torch.Tensor) else value


def to_tensor(value: Any) -> Any:
    """Turn an array back into a tensor."""
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value


def make_poll(pipe: Connection) -> Callable[[float], bool]:
    """Return a function that waits for a reply, for ever if the seconds are negative."""
    if sys.platform == "win32":
        return lambda seconds: pipe.poll(None if seconds < 0.0 else seconds)
    # A Connection's own poll builds a selector in every call, which costs more than the step.
    poller = select.poll()
    poller.register(pipe.fileno(), select.POLLIN)
    return lambda seconds: bool(poller.poll(1000.0 * seconds if seconds >= 0.0 else None))
