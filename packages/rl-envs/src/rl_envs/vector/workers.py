"""Environments in processes of their own, which write into shared memory and are watched."""

import contextlib
import math
import multiprocessing
import time
import warnings
from collections.abc import Callable, Sequence
from multiprocessing.sharedctypes import RawArray
from typing import Any, NoReturn

import gymnasium

from rl_core.config import ComponentSpec
from rl_core.env import EnvStep, GoalFunctions, action_error
from rl_core.errors import ConfigError, EnvironmentFaultError, RLError, SpaceError
from rl_core.seeding import resumed_seed
from rl_core.stateful import StateReader
from rl_core.types import ArrayLike, ArrayObservation, StateDict
from rl_envs.vector._arrays import Last, LazyInfo, Rows
from rl_envs.vector._worker_process import (
    LAST_WORDS_S,
    Worker,
    map_tree,
    named_arrays,
    shared_fields,
    shared_size,
    shared_views,
    to_array,
    to_tensor,
)
from rl_envs.vector.base import BaseGymVecEnv, spread_seed


class ProcessVecEnv(BaseGymVecEnv):
    """Environments that each run in a process of their own, reset in the step that ends an episode.

    If an environment raises, dies or hangs, an `EnvironmentFaultError` names it, the step and the
    cause. After that, call `reset`, or if that fails too, `close`. Workers ignore Ctrl-C, which a
    terminal sends to every process of a command; the process that started them ends them.

    Args:
        env_functions: build the environments, each in its worker; the first one is also called in
            a process that only reports its spaces.
        seed: used by the first `reset` that is given none.
        check: as in `SyncVecEnv`.
        timeout_s: how long a start, reset, step or close of any environment may take; None for no
            limit.
        max_restarts: how often environments that failed in a step are started again, all together.
            The episode then counts as truncated at its last observation, with a reward of 0 and a
            warning.
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
        seed: int | None = None,
        check: bool = True,
        timeout_s: float | None = 60.0,
        max_restarts: int = 0,
        component: ComponentSpec | None = None,
    ) -> None:
        is_number = isinstance(timeout_s, int | float) and not isinstance(timeout_s, bool)
        if timeout_s is not None and not (is_number and 0.0 < timeout_s < math.inf):
            raise ConfigError(
                f"timeout_s={timeout_s!r}; expected a positive number of seconds, or None"
            )
        self.timeout_s = timeout_s
        self.restarts_left = max_restarts
        self._functions = list(env_functions)
        self._workers: list[Worker] = []
        observation_space, action_space, name, limit, self._can_save = self._scout(check)
        super().__init__(
            len(self._functions),
            (observation_space, action_space),
            name,
            limit,
            seed=seed,
            check=check,
            component=component,
        )
        fields = shared_fields(observation_space, action_space, self._num_envs)
        size = sum(shared_size(shape, dtype) for shape, dtype in fields.values())
        self._shared = RawArray("b", size), fields
        self._rows = shared_views(*self._shared)
        self._last: ArrayObservation | None = None
        try:
            for index in range(self._num_envs):
                self._workers.append(self._start(index))
            for index, found in self._receive(self._workers, "start").items():
                self._check_spaces(index, found)
        except BaseException:
            self._kill_all()
            raise

    @property
    def processes(self) -> "list[multiprocessing.process.BaseProcess]":
        """The processes of the environments, in their order."""
        return [worker.process for worker in self._workers]

    def step(self, action: ArrayLike) -> EnvStep:
        """Step every environment once; see `VecEnv.step`."""
        if not self._is_ready:
            raise self._not_ready("step")
        actions = self._arrays.convert(action)
        if actions.shape != self._action_shape:
            raise action_error(tuple(actions.shape), self._action_space, self._num_envs)
        self._rows["action"][...] = actions
        self._is_ready = False
        self._steps += 1
        for worker in self._workers:
            worker.send(None)
        told = self._receive(self._workers, "step", may_restart=True)
        rows = self._rows
        reward = rows["reward"].copy()
        terminated, truncated = rows["terminated"].copy(), rows["truncated"].copy()
        observation = self._observation("observation")
        ended: dict[int, Last] = {}
        infos: list[dict[str, object]] = [{}] * self._num_envs
        for index, (info, last) in told.items():
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
            return GoalFunctions.of_env(self._functions[0]())

    def _reset_all(self, seed: int | None) -> ArrayObservation:
        seeds = [None] * self._num_envs if seed is None else spread_seed(seed, self._num_envs)
        self._receive([worker for worker in self._workers if worker.is_asked], "reset")
        for worker, row_seed in zip(self._workers, seeds, strict=True):
            worker.send(("reset", row_seed, self._steps))
        self._receive(self._workers, "reset")
        self._last = self._observation("observation")
        return self._last

    def _save_episodes(self) -> StateDict:
        for worker in self._workers:
            worker.send(("save",))
        told = {str(index): row for index, row in self._receive(self._workers, "save").items()}
        last = dict(named_arrays(self._last))
        return {"rows": map_tree(to_tensor, told), "observation": map_tree(to_tensor, last)}

    def _load_episodes(self, saved: StateReader) -> None:
        rows, observation = saved.reader("rows"), saved.tensors("observation")
        rows.expect(map(str, range(self._num_envs)))
        for index, worker in enumerate(self._workers):
            worker.send(("load", map_tree(to_array, rows.tree(str(index))), self._steps))
        self._receive(self._workers, "load")
        arrays = {name: value.numpy(force=True).copy() for name, value in observation.items()}
        # A `SyncVecEnv`, whose state this may be, saves no observation.
        self._last = arrays.get("", arrays) if arrays else None

    def _close_all(self) -> None:
        asked = [worker for worker in self._workers if not worker.is_asked]
        try:
            for worker in asked:
                with contextlib.suppress(EnvironmentFaultError):  # a dead worker hears nothing
                    worker.send(("close",))
            self._receive([worker for worker in asked if worker.is_asked], "close")
        finally:
            self._kill_all(LAST_WORDS_S)

    def _kill_all(self, patience: float = 0.0) -> None:
        for worker in self._workers:
            worker.kill(0.0 if worker.is_asked else patience)

    def _scout(self, check: bool) -> tuple[Any, ...]:
        """Return spaces, name and time limit of the first environment, built in a process."""
        scout = Worker(0, self._functions[0], check, None)
        try:
            facts: tuple[Any, ...] = self._receive([scout], "start")[0]
            with contextlib.suppress(EnvironmentFaultError):
                scout.send(("close",))
                scout.receive(time.monotonic() + LAST_WORDS_S, LAST_WORDS_S)
        finally:
            scout.kill()
        return facts

    def _start(self, index: int) -> "Worker":
        return Worker(index, self._functions[index], self._check, self._shared)

    def _check_spaces(self, index: int, found: tuple[Any, ...]) -> None:
        wanted = self._observation_space, self._action_space
        for kind, space, expected in zip(("observation", "action"), found, wanted, strict=False):
            if space != expected:
                raise SpaceError(
                    f"the {kind} space of environment {index} is {space}; expected {expected} like "
                    "environment 0: environments that step together share their spaces"
                )

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
        workers: Sequence["Worker"],
        call: str,
        *,
        may_restart: bool = False,
    ) -> dict[int, Any]:
        """Wait for the replies of workers, and return those that are not silent, by row.

        All are heard before the first fault is raised, so that none is left with a reply to give.
        `Worker.receive` notices that a worker died or hangs.
        """
        deadline = math.inf if self.timeout_s is None else time.monotonic() + self.timeout_s
        told: dict[int, Any] = {}
        faults: list[RLError] = []
        for worker in workers:
            try:
                reply = worker.receive(deadline, self.timeout_s)
            except RLError as fault:
                if may_restart and self.restarts_left > 0 and self._last is not None:
                    told[worker.index] = self._restart(worker, fault)
                else:
                    faults.append(fault)
            else:
                if reply is not None:
                    told[worker.index] = reply
        if faults:
            self._raise(faults[0], call)
        return told

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

    def _restart(self, worker: "Worker", fault: RLError) -> tuple[dict[str, object], Last]:
        """Replace a failed worker; return an info, and the end of the episode as its last one."""
        index = worker.index
        self.restarts_left -= 1
        warnings.warn(
            f"{fault}; it is started again, and its episode counts as truncated",
            RuntimeWarning,
            stacklevel=4,
        )
        worker.kill()
        self._workers[index] = again = self._start(index)
        self._receive([again], "start")
        seed = 0 if self._seed is None else self._seed
        again.send(
            ("reset", spread_seed(resumed_seed(seed, self._steps), index + 1)[-1], self._steps)
        )
        self._receive([again], "reset")
        for name, value in named_arrays(self._last):
            self._rows[f"final/{name}"][index] = value[index]
        self._rows["reward"][index] = 0.0
        self._rows["terminated"][index], self._rows["truncated"][index] = False, True
        return {}, (None, {})
