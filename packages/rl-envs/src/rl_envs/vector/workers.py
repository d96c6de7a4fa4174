"""Environments in processes of their own, which write into shared memory and are watched."""

import contextlib
import math
import multiprocessing
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from multiprocessing.sharedctypes import RawArray
from typing import Any, NoReturn

import gymnasium

from rl_core.config import ComponentSpec, Count, NonNegativeInt, Positive, check_argument
from rl_core.env import EnvStep, GoalFunctions
from rl_core.errors import EnvironmentFaultError, RLError
from rl_core.seeding import resumed_seed
from rl_core.stateful import StateReader
from rl_core.types import ArrayLike, ArrayObservation, StateDict
from rl_envs.guard import check_shared
from rl_envs.vector._arrays import Rows
from rl_envs.vector._worker_process import (
    LAST_WORDS_S,
    Worker,
    named_arrays,
    shared_fields,
    shared_size,
    shared_views,
    with_arrays,
    with_tensors,
)
from rl_envs.vector.base import BaseGymVecEnv, spread_seed
from rl_envs.vector.sync import Last, LazyInfo

_PAUSE_S = 0.5
"""How long to wait before an environment whose restart failed is started once more, at first."""

_LONGEST_PAUSE_S = 30.0


class ProcessVecEnv(BaseGymVecEnv):
    """Environments in other processes, reset in the step that ends an episode.

    If an environment raises, dies or hangs, an `EnvironmentFaultError` names it, the step and the
    cause; where several share a process that died or hangs, it names these. After that, call
    `reset`, or if that fails too, `close`. Workers ignore Ctrl-C, which a terminal sends to every
    process of a command; the process that started them ends them.

    Args:
        env_functions: build the environments, each in its worker; the first one is also called in
            a process that only reports its spaces.
        num_workers: at most so many processes, over which the environments are spread evenly; None
            gives each a process of its own. Environments that compute need no more processes than
            there are cores, and those that wait step at once only in processes of their own.
        seed: used by the first `reset` that is given none.
        check: as in `SyncVecEnv`.
        timeout_s: how long a start, reset, step or close may take in any of the processes; None for
            no limit.
        max_restarts: how often environments that failed in a step are started again, all together.
            The episode then counts as truncated at its last observation, with a reward of 0 and a
            warning; so do those of the other environments in its process. Restarts that fail are
            repeated after pauses of 0.5 s, 1 s and so on.
        component: how a recipe names these environments, if it can.

    Raises:
        ConfigError: if a number is out of range.
        EnvironmentFaultError: if a worker fails to start.
        SpaceError: if the observation space is not supported, or the spaces differ.
    """

    vectorization = "async"

    def __init__(
        self,
        env_functions: Sequence[Callable[[], gymnasium.Env]],
        *,
        num_workers: int | None = None,
        seed: int | None = None,
        check: bool = True,
        timeout_s: float | None = 60.0,
        max_restarts: int = 0,
        component: ComponentSpec | None = None,
    ) -> None:
        self.timeout_s = check_argument("timeout_s", timeout_s, Positive | None)
        self.restarts_left = check_argument("max_restarts", max_restarts, NonNegativeInt)
        self._functions = list(env_functions)
        self._workers: list[Worker] = []
        count = len(self._functions)
        workers = min(check_argument("num_workers", num_workers, Count | None) or count, count)
        (spaces,), name, limit, self._can_save = self._probe(check)
        super().__init__(
            count,
            spaces,
            name,
            limit,
            seed=seed,
            check=check,
            component=component,
        )
        fields = shared_fields(self._observation_space, self._action_space, count)
        size = sum(shared_size(shape, dtype) for shape, dtype in fields.values())
        self._shared = RawArray("b", size), fields
        self._rows = shared_views(*self._shared)
        self._last: ArrayObservation | None = None
        try:
            for k in range(workers):
                rows = range(k * count // workers, (k + 1) * count // workers)
                self._workers.append(self._start(rows))
            self._await_starts(self._workers)
        except BaseException:
            self._kill_all()
            raise

    @property
    def processes(self) -> list[multiprocessing.process.BaseProcess]:
        """The processes, one for each worker, in the order of their environments."""
        return [worker.process for worker in self._workers]

    def step(self, action: ArrayLike) -> EnvStep:
        """Step every environment once; see `VecEnv.step`."""
        if not self._is_ready:
            raise self._not_ready("step")
        self._rows["action"][...] = self._actions(action)
        self._is_ready = False
        self._steps += 1
        for worker in self._workers:
            worker.send(None)
        replies = self._receive(self._workers, "step", may_restart=True)
        reports = {index: row for reply in replies for index, row in reply.items()}
        rows = self._rows
        reward = rows["reward"].copy()
        terminated, truncated = rows["terminated"].copy(), rows["truncated"].copy()
        observation = self._observation("observation")
        ended: dict[int, Last] = {}
        infos: list[dict[str, object]] = [{}] * self._num_envs
        for index, (info, last) in reports.items():
            infos[index] = info
            if last is not None:
                ended[index] = last
        final = self._final_observation(observation, ended) if ended else None
        self._last = observation
        self._is_ready = True
        valid = self._arrays.every_row()
        info = LazyInfo(infos, ended)
        return EnvStep(observation, reward, terminated, truncated, final, valid, info)

    def goal_functions(self) -> GoalFunctions | None:
        """Return how goals are rewarded; None if there are none. Builds an environment to ask."""
        with self._locating("goal_functions"):
            env = self._functions[0]()
            functions = GoalFunctions.of_env(env)
            if functions is None:
                env.close()
            return functions

    def _reset_all(self, seed: int | None) -> ArrayObservation:
        seeds = [None] * self._num_envs if seed is None else spread_seed(seed, self._num_envs)
        deadline = math.inf if self.timeout_s is None else time.monotonic() + self.timeout_s
        for worker in self._workers:
            if worker.owes_reply:  # in a call that was broken off, whose replies no longer matter
                try:
                    worker.receive(deadline, self.timeout_s)
                except RLError as fault:
                    if worker.owes_reply:  # it did not reply, because it hangs or has died
                        self._raise(fault, "reset")
        for worker in self._workers:
            worker.send(("reset", [seeds[row] for row in worker.rows], self._steps))
        self._receive(self._workers, "reset")
        self._last = self._observation("observation")
        return self._last

    def _call_each(self, name: str, arguments: Sequence[object]) -> Iterable[object]:
        for worker in self._workers:
            worker.send(("call", name, *arguments))
        return chain.from_iterable(self._receive(self._workers, name))

    def _save_episodes(self) -> StateDict:
        for worker in self._workers:
            worker.send(("save",))
        try:
            replies = self._receive(self._workers, "save")
        except EnvironmentFaultError:
            for worker in self._workers:
                if worker.owes_reply:  # a reply that comes later would be taken for a step's
                    worker.process.kill()
            raise
        rows = {number: state for reply in replies for number, state in reply.items()}
        # None after the state of a `SyncVecEnv` was loaded, which has no observation.
        last = {} if self._last is None else dict(named_arrays(self._last))
        return {"rows": with_tensors(rows), "observation": with_tensors(last)}

    def _load_episodes(self, saved: StateReader) -> None:
        rows, observation = saved.reader("rows"), saved.tensors("observation")
        rows.expect(map(str, range(self._num_envs)))
        for worker in self._workers:
            states = [with_arrays(rows.tree(str(row))) for row in worker.rows]
            worker.send(("load", states, self._steps))
        self._receive(self._workers, "load")
        arrays = {name: value.numpy(force=True).copy() for name, value in observation.items()}
        self._last = arrays.get("", arrays) if arrays else None

    def _close_all(self) -> None:
        asked = [worker for worker in self._workers if not worker.owes_reply]
        try:
            for worker in asked:
                with contextlib.suppress(EnvironmentFaultError):  # a dead worker hears nothing
                    worker.send(("close",))
            self._receive([worker for worker in asked if worker.owes_reply], "close")
        finally:
            self._kill_all(LAST_WORDS_S)

    def _kill_all(self, patience: float = 0.0) -> None:
        for worker in self._workers:
            worker.kill(0.0 if worker.owes_reply else patience)

    def _probe(self, check: bool) -> tuple[Any, ...]:
        """Return spaces, name and time limit of the first environment, built in a process."""
        scout = Worker(range(1), self._functions[:1], check, None)
        try:
            facts: tuple[Any, ...] = self._receive([scout], "start")[0]
            with contextlib.suppress(EnvironmentFaultError):
                scout.send(("close",))
                scout.receive(time.monotonic() + LAST_WORDS_S, LAST_WORDS_S)
        finally:
            scout.kill()
        return facts

    def _start(self, rows: range) -> Worker:
        functions = self._functions[rows.start : rows.stop]
        return Worker(rows, functions, self._check, self._shared)

    def _await_starts(self, workers: Sequence[Worker]) -> None:
        """Wait until workers have started, and compare the spaces of their environments."""
        for worker, (found, *_) in zip(workers, self._receive(workers, "start"), strict=True):
            for index, spaces in zip(worker.rows, found, strict=True):
                check_shared(spaces, index, (self._observation_space, self._action_space), 0)

    def _observation(self, kind: str) -> ArrayObservation:
        """Copy the shared observations."""
        if self._arrays.leaf is not None:
            single: ArrayObservation = self._rows[f"{kind}/"].copy()
            return single
        return {key: self._rows[f"{kind}/{key}"].copy() for key in self._arrays.leaf_specs}

    def _final_observation(self, observation: ArrayObservation, ended: Rows) -> ArrayObservation:
        rows = list(ended)
        final = dict(named_arrays(self._observation("final")))
        for name, value in named_arrays(observation):
            kept = final[name][rows]
            final[name][...] = value
            final[name][rows] = kept
        return final if self._arrays.leaf is None else final[""]

    def _receive(
        self,
        workers: Sequence[Worker],
        call: str,
        *,
        may_restart: bool = False,
    ) -> list[Any]:
        """Wait for the replies of workers, and return those that are not silent.

        All are heard before the first fault is raised, so that none is left with a reply to give.
        `Worker.receive` notices that a worker died or hangs.
        """
        deadline = math.inf if self.timeout_s is None else time.monotonic() + self.timeout_s
        replies: list[Any] = []
        faults: list[RLError] = []
        for worker in workers:
            try:
                reply = worker.receive(deadline, self.timeout_s)
            except RLError as fault:
                if not (may_restart and self.restarts_left > 0 and self._last is not None):
                    faults.append(fault)
                    continue
                try:
                    replies.append(self._restart(worker, fault))
                except RLError as last_fault:
                    faults.append(last_fault)
            else:
                if reply is not None:
                    replies.append(reply)
        if faults:
            self._raise(faults[0], call)
        return replies

    def _raise(self, fault: RLError, call: str) -> NoReturn:
        if not isinstance(fault, EnvironmentFaultError) or not hasattr(self, "_name"):
            raise fault  # which says enough, or the name is not known yet
        text = str(fault)
        if not text.startswith(f"{self._name}, step"):
            text = f"{self._name}, step {self._steps}, {text}"
            if call == "close":
                text += " (in close)"
        error = EnvironmentFaultError(text)
        for note in getattr(fault, "__notes__", ()):
            error.add_note(note)
        raise error from fault

    def _restart(self, worker: Worker, fault: RLError) -> dict[int, tuple[dict[str, object], Last]]:
        """Replace a failed worker; by row, return an info and the end of the episode."""
        numbers = worker.rows
        warnings.warn(
            f"{fault}; it is started again, and its episode counts as truncated",
            RuntimeWarning,
            stacklevel=4,
        )
        place, pause = self._workers.index(worker), _PAUSE_S
        while True:
            self.restarts_left -= 1
            self._workers[place].kill()
            self._workers[place] = self._start(numbers)
            try:
                self._begin_again(self._workers[place])
                break
            except EnvironmentFaultError as error:
                if self.restarts_left == 0:
                    self._workers[place].owes_reply = True  # so that nobody asks it to close
                    again = str(error).removeprefix(f"{self._name}, step {self._steps}, ")
                    message = f"{fault}; started again, it failed: {again}"
                    raise EnvironmentFaultError(message) from error
            time.sleep(pause)
            pause = min(2.0 * pause, _LONGEST_PAUSE_S)
        own = slice(numbers.start, numbers.stop)
        for name, value in named_arrays(self._last):
            self._rows[f"final/{name}"][own] = value[own]
        self._rows["reward"][own] = 0.0
        self._rows["terminated"][own], self._rows["truncated"][own] = False, True
        return {index: ({}, (None, {})) for index in numbers}

    def _begin_again(self, worker: Worker) -> None:
        """Reset the environments of a new worker, with seeds that were not used before."""
        self._await_starts([worker])
        seed = resumed_seed(0 if self._seed is None else self._seed, self._steps)
        seeds = spread_seed(seed, worker.rows.stop)[worker.rows.start :]
        worker.send(("reset", seeds, self._steps))
        self._receive([worker], "reset")
