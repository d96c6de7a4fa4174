import contextlib
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Literal, cast, get_args

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from rl_core import plugins
from rl_core.env import VecEnv
from rl_core.errors import (
    ConfigError,
    DataError,
    EnvironmentFaultError,
    MissingExtraError,
    SpaceError,
)
from rl_core.types import Array
from rl_envs import (
    EnvMaker,
    GymVecEnv,
    ProcessVecEnv,
    SyncVecEnv,
    as_vec_env,
    families,
    make_gym_vec,
    make_vec,
    vectorize,
)
from rl_envs.wrappers import MaskVelocity
from rl_testing.envs import EnvFunctions, VecEnvSuite
from rl_testing.scripted import CountingEnv, IdentityEnv, MemoryCueEnv, WalkVecEnv
from support.envs import FaultName, FaultyEnv

IN_PROCESS_FAULTS = [
    name
    for name in get_args(FaultName)
    if not name.startswith("hang") and name not in ("exit", "kill")
]


def _by_turns(env_functions: EnvFunctions) -> Callable[[], gymnasium.Env]:
    functions = iter(env_functions)
    return lambda: next(functions)()


def _in_workers(
    env_functions: EnvFunctions, timeout_s: float = 20.0, num_workers: int | None = None
) -> VecEnv:
    makers = [partial(EnvMaker(build), index) for index, build in enumerate(env_functions)]
    return ProcessVecEnv(makers, num_workers=num_workers, timeout_s=timeout_s)


def _in_shared_workers(env_functions: EnvFunctions, timeout_s: float = 20.0) -> VecEnv:
    return _in_workers(env_functions, timeout_s, num_workers=2)


def _in_turn(env_functions: EnvFunctions) -> VecEnv:
    return make_vec(_by_turns(env_functions), len(env_functions), vectorization="sync")


def _in_gymnasium_sync(env_functions: EnvFunctions) -> VecEnv:
    makers = [partial(EnvMaker(build), index) for index, build in enumerate(env_functions)]
    return GymVecEnv(SyncVectorEnv(makers))


def _in_gymnasium_async(env_functions: EnvFunctions, timeout_s: float = 20.0) -> VecEnv:
    makers = [partial(EnvMaker(build), index) for index, build in enumerate(env_functions)]
    return GymVecEnv(AsyncVectorEnv(makers), timeout_s=timeout_s)


def _rows_of_bad(vectorize: object) -> str:
    """Say how the second of three environments is named when its process fails."""
    return "one of environments 1 to 2" if vectorize is _in_shared_workers else "environment 1"


PROCESS_VECTORIZERS = [_in_workers, _in_shared_workers, _in_gymnasium_async]
VECTORIZERS = [
    _in_turn,
    _in_workers,
    _in_shared_workers,
    _in_gymnasium_sync,
    _in_gymnasium_async,
]


class TestSync(VecEnvSuite):
    def make_env(self) -> VecEnv:
        return make_vec("CartPole-v1", 3, vectorization="sync")

    def vectorize(self, env_functions: EnvFunctions) -> VecEnv:
        return _in_turn(env_functions)


class TestAsync(VecEnvSuite):
    num_steps = 60

    def make_env(self) -> VecEnv:
        return make_vec("CartPole-v1", 2, vectorization="async")

    def vectorize(self, env_functions: EnvFunctions) -> VecEnv:
        return _in_workers(env_functions)


class TestSharedProcesses(VecEnvSuite):
    num_steps = 60

    def make_env(self) -> VecEnv:
        return make_vec("CartPole-v1", 3, vectorization="async", num_workers=2)

    def vectorize(self, env_functions: EnvFunctions) -> VecEnv:
        return _in_shared_workers(env_functions)


class TestNative(VecEnvSuite):
    def make_env(self) -> VecEnv:
        return make_vec("CartPole-v1", 3, vectorization="native")


def _trio(fault: FaultName, **kwargs: float) -> EnvFunctions:
    good = partial(CountingEnv, [3])

    def bad() -> gymnasium.Env:
        return FaultyEnv(CountingEnv([3]), fault, at_step=3, **kwargs)

    return [good, bad, good]


def _run_until_fault(envs: VecEnv) -> str:
    def run() -> None:
        with envs:
            envs.reset()
            for _ in range(5):
                envs.step(np.zeros(envs.num_envs, np.int64))

    with pytest.raises(EnvironmentFaultError) as caught:
        run()
    return str(caught.value)


@pytest.mark.filterwarnings("ignore::UserWarning")  # Gymnasium's errors in a worker
@pytest.mark.parametrize("vectorize", VECTORIZERS)
@pytest.mark.parametrize("fault", [name for name in IN_PROCESS_FAULTS if name != "raise_close"])
def test_every_fault_names_the_environment_the_step_and_the_field(
    fault: FaultName, vectorize: Callable[[EnvFunctions], VecEnv]
) -> None:
    message = _run_until_fault(vectorize(_trio(fault)))
    resets_next = vectorize in (_in_gymnasium_sync, _in_gymnasium_async)
    assert f"step {4 if resets_next and fault.endswith('_reset') else 3}" in message
    assert "environment 1" in message
    expected = {
        "wrong_shape": "shape (4,)",
        "wrong_dtype": "dtype <U",
        "complex_observation": "dtype complex64",
        "ragged_observation": "the observation is not an array",
        "four_values": "step() returned 4 values; Gymnasium expects 5 values",
        "raise_step": "scripted step fault",
        "raise_long": "ValueError: scripted scripted",
        "raise_exit": "SystemExit: scripted exit",
        "raise_mute": "_MuteError: its message cannot be shown",
        "raise_unpicklable": "scripted step fault",
        "raise_reset": "scripted reset fault",
        "bare_reset": "reset() returned one ndarray; Gymnasium expects 2 values: observation, info",
    }
    assert "\n" not in message
    assert len(message) < 500
    assert expected.get(fault, fault.partition("_")[2]) in message


@pytest.mark.parametrize("vectorize", VECTORIZERS)
def test_real_numbers_are_no_categories(vectorize: Callable[[EnvFunctions], VecEnv]) -> None:
    with vectorize([partial(CountingEnv, [3])] * 2) as envs:
        envs.reset()
        envs.step(np.array([0, 1], np.int32))
        with pytest.raises(DataError, match=r"dtype float32; expected int64 for Discrete\(2\)"):
            envs.step(np.array([0.0, 0.7], np.float32))
        with pytest.raises(DataError, match=r"dtype complex128; expected int64 for Discrete\(2\)"):
            envs.step(np.array([0j, 0j]))
        with pytest.raises(DataError, match=r"holds 0 to 18446744073709551615; expected int64"):
            envs.step(np.array([0, 2**64 - 1], np.uint64))
        envs.step(np.array([False, True]))  # and nothing is wrong afterwards


@pytest.mark.parametrize("action", [[["a"], ["b"]], [[1j], [0.0]], [[None], [0.0]]])
def test_what_is_no_number_is_no_action(action: Any) -> None:
    with make_vec("Pendulum-v1", 2) as envs:
        envs.reset()
        with pytest.raises(DataError, match=r"the action .*"):
            envs.step(np.array(action))


@pytest.mark.parametrize(
    "name", ["mask_velocity", "time_feature", "action_mask", "check", "testing", "preprocess"]
)
def test_flags_are_true_or_false(name: str) -> None:
    options: Any = {name: "no"}
    with pytest.raises(ConfigError, match=rf"^{name} must be True or False, got 'no'"):
        make_vec("CartPole-v1", **options)


def test_a_recipe_names_the_version_of_an_id() -> None:
    with make_vec("Pendulum", 2) as envs:
        assert envs.component is not None
        assert envs.component.name == "Pendulum-v1"


@pytest.mark.parametrize("vectorize", [_in_turn, _in_workers, _in_shared_workers])
def test_a_failing_close_is_raised_and_not_repeated(
    vectorize: Callable[[EnvFunctions], VecEnv],
) -> None:
    envs = vectorize(_trio("raise_close"))
    envs.reset()
    with pytest.raises(
        EnvironmentFaultError, match=r"environment 1: close\(\) raised RuntimeError"
    ):
        envs.close()
    envs.close()


@pytest.mark.parametrize("vectorize", PROCESS_VECTORIZERS)
@pytest.mark.parametrize(("fault", "how"), [("exit", "exit code 3"), ("kill", "by signal 9")])
def test_a_worker_that_dies_is_named(
    fault: FaultName, how: str, vectorize: Callable[[EnvFunctions], VecEnv]
) -> None:
    before = set(multiprocessing.active_children())
    message = _run_until_fault(vectorize(_trio(fault)))
    rows = _rows_of_bad(vectorize)
    assert f"step 3, {rows}: its process" in message
    assert how in message
    assert set(multiprocessing.active_children()) <= before


@pytest.mark.parametrize("vectorize", PROCESS_VECTORIZERS)
@pytest.mark.parametrize(("fault", "step"), [("hang", 3), ("hang_reset", 3), ("hang_close", 5)])
def test_a_worker_that_hangs_is_named_within_its_timeout_and_close_returns(
    fault: FaultName, step: int, vectorize: Callable[..., VecEnv]
) -> None:
    before = set(multiprocessing.active_children())
    envs = vectorize(_trio(fault), timeout_s=1.5)
    start = time.monotonic()
    message = _run_until_fault(envs)
    assert time.monotonic() - start < 10.0
    if vectorize is _in_gymnasium_async and fault == "hang_reset":
        step += 1  # it resets in a step of its own
    rows = _rows_of_bad(vectorize)
    assert f"step {step}, {rows}: no response within 1.5 s" in message
    assert message.endswith("(in close)") == (fault == "hang_close")
    assert set(multiprocessing.active_children()) <= before


def test_an_environment_that_raises_in_close_ends_gymnasiums_processes_too() -> None:
    before = set(multiprocessing.active_children())
    envs = _in_gymnasium_async(_trio("raise_close"))
    envs.reset()
    with pytest.raises(EnvironmentFaultError, match=r"environment 1: .*ended with exit code 1"):
        envs.close()
    envs.close()
    assert set(multiprocessing.active_children()) <= before


def test_a_process_that_several_environments_share_ends_the_episodes_of_all_of_them() -> None:
    def bad() -> gymnasium.Env:
        return FaultyEnv(CountingEnv([99]), "exit", at_step=3)

    good = partial(CountingEnv, [99])
    with ProcessVecEnv([good, good, bad, good, good], num_workers=2, max_restarts=1) as envs:
        assert len(envs.processes) == 2
        envs.reset()
        zeros = np.zeros(5, np.int64)
        for _ in range(2):
            envs.step(zeros)
        with pytest.warns(RuntimeWarning, match=r"one of environments 2 to 4: its process ended"):
            step = envs.step(zeros)
        assert np.asarray(step.truncated).tolist() == [False, False, True, True, True]
        assert np.asarray(step.reward).tolist() == [3.0, 3.0, 0.0, 0.0, 0.0]
        assert cast("Array", step.observation)[:, 2].tolist() == [3, 3, 0, 0, 0]
        assert cast("Array", step.successor)[:, 2].tolist() == [3, 3, 2, 2, 2]


class _Rubbish:
    """In a cycle, so that only the collector of garbage destroys it; notes by which process."""

    def __init__(self, path: Path) -> None:
        self.path, self.itself = path, self

    def __del__(self) -> None:
        with self.path.open("a") as file:
            file.write(f"{os.getpid()}\n")


def test_processes_do_not_destroy_what_belongs_to_the_one_that_started_them(
    tmp_path: Path,
) -> None:
    def tidy() -> gymnasium.Env:
        gc.collect()
        return CountingEnv([3])

    gc.disable()
    try:
        _Rubbish(tmp_path / "pids")
        with ProcessVecEnv([tidy, tidy]) as envs:
            envs.reset()
    finally:
        gc.enable()
        gc.collect()
    assert (tmp_path / "pids").read_text() == f"{os.getpid()}\n"


def test_environments_in_one_process_share_their_spaces_too() -> None:
    counting = EnvMaker(partial(CountingEnv, [3]))
    other = partial(EnvMaker(partial(IdentityEnv, gymnasium.spaces.Discrete(3))), 2)
    with pytest.raises(SpaceError, match=r"environment 2 is .* like environment 1"):
        ProcessVecEnv([counting, partial(counting, 1), other], num_workers=2)
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("fault", ["exit", "hang", "raise_step", "nan_reward"])
def test_a_failed_worker_may_be_started_again(fault: FaultName) -> None:
    def bad() -> gymnasium.Env:
        return FaultyEnv(CountingEnv([99]), fault, at_step=3)

    good = partial(CountingEnv, [99])
    envs = ProcessVecEnv([good, bad, good], seed=1, timeout_s=1.5, max_restarts=1)
    with envs:
        before = cast("Array", envs.reset())
        zeros = np.zeros(3, np.int64)
        for _ in range(2):
            before = cast("Array", envs.step(zeros).observation)
        with pytest.warns(RuntimeWarning, match=r"environment 1: .* started again"):
            step = envs.step(zeros)
        assert np.asarray(step.truncated).tolist() == [False, True, False]
        assert not np.asarray(step.terminated).any()
        assert np.asarray(step.reward).tolist() == [3.0, 0.0, 3.0]
        np.testing.assert_array_equal(cast("Array", step.successor)[1], before[1])
        assert cast("Array", step.observation)[:, 2].tolist() == [3, 0, 3]
        assert cast("Array", step.successor)[:, 2].tolist() == [3, 2, 3]
        assert len(step.info) >= 0
        for _ in range(2):
            envs.step(zeros)
        with pytest.raises(EnvironmentFaultError, match=r"step 6, environment 1"):
            envs.step(zeros)


class Drawn(gymnasium.Env[Any, Any]):
    """Shows a number that each episode draws."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, **_: Any) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self.shown = self.np_random.random(1)
        return self.shown, {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        return self.shown, 0.0, False, False, {}


def test_a_process_that_is_started_again_begins_other_episodes() -> None:
    def bad() -> gymnasium.Env:
        return FaultyEnv(Drawn(), "raise_step", at_step=3)

    begun = []
    for _ in range(2):
        with ProcessVecEnv([bad], seed=1, max_restarts=1) as envs:
            first = float(cast("Array", envs.reset())[0, 0])
            for _ in range(2):
                envs.step(np.zeros(1, np.int64))
            with pytest.warns(RuntimeWarning, match="started again"):
                step = envs.step(np.zeros(1, np.int64))
            begun.append((first, float(cast("Array", step.observation)[0, 0])))
    assert begun[0] == begun[1]  # by the seed alone
    assert begun[0][0] != begun[0][1]


def test_processes_that_are_started_again_together_begin_different_episodes() -> None:
    def bad() -> gymnasium.Env:
        return FaultyEnv(Drawn(), "raise_step", at_step=1)

    with ProcessVecEnv([bad, bad], seed=1, max_restarts=2) as envs:
        envs.reset()
        with pytest.warns(RuntimeWarning, match="started again"):
            first, second = cast("Array", envs.step(np.zeros(2, np.int64)).observation)[:, 0]
        assert first != second


class Down(CountingEnv):
    """Fails in its third step, and then so many times when it is built, as files count."""

    def __init__(self, folder: Path, failures: int) -> None:
        super().__init__([99])
        self.folder = folder
        built = len(list(folder.iterdir()))
        (folder / str(built)).touch()
        if 2 <= built < 2 + failures:  # after the scout and the first one
            raise ConnectionError(f"attempt {built}")

    def step(self, action: object) -> tuple[Array, Any, bool, bool, dict[str, object]]:
        if self.steps == 2:
            raise RuntimeError("first")
        return super().step(action)


@pytest.mark.parametrize(("failures", "max_restarts"), [(2, 3), (9, 2)])
def test_a_restart_is_repeated_until_the_simulator_is_up_or_none_are_left(
    failures: int, max_restarts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rl_envs.vector.workers._PAUSE_S", 0.01)
    maker = EnvMaker(partial(Down, tmp_path, failures))
    other = EnvMaker(lambda: FaultyEnv(CountingEnv([99]), "raise_step", at_step=4))
    zeros = np.zeros(2, np.int64)
    with ProcessVecEnv([maker, partial(other, 1)], max_restarts=max_restarts) as envs:
        envs.reset()
        for _ in range(2):
            envs.step(zeros)
        message = r"step 3, environment 0: .* first; started again, it failed: .*attempt 3"
        fails = pytest.raises(EnvironmentFaultError, match=message)
        with (
            pytest.warns(RuntimeWarning, match="RuntimeError: first; it is started again"),
            fails if failures > max_restarts else contextlib.nullcontext(),
        ):
            assert np.asarray(envs.step(zeros).truncated).tolist() == [True, False]


def test_a_reset_forgets_what_a_call_that_was_broken_off_left_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with cast("ProcessVecEnv", _in_workers(_trio("raise_step"))) as envs:
        envs.reset()
        for _ in range(2):
            envs.step(np.zeros(3, np.int64))

        def interrupt(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(envs, "_receive", interrupt)
        with pytest.raises(KeyboardInterrupt):
            envs.step(np.zeros(3, np.int64))
        monkeypatch.undo()
        assert cast("Array", envs.reset())[:, 2].tolist() == [0, 0, 0]


def test_what_processes_cannot_do_is_named_with_the_way_out() -> None:
    class Telling(CountingEnv):
        def step(self, action: object) -> tuple[Array, Any, bool, bool, dict[str, object]]:
            *answer, _ = super().step(action)
            return *answer, {"plain": 1, "model": lambda: 1}  # type: ignore[return-value]  # mypy cannot count these

    for ends in (1, 9):  # in the last step of an episode and before
        with _in_workers([partial(Telling, [ends])] * 2) as envs:
            envs.reset()
            with pytest.raises(
                EnvironmentFaultError,
                match=r"step 1, environment 0: its info holds 'model', a function .*'sync'",
            ):
                envs.step(np.zeros(2, np.int64))

    def with_child() -> gymnasium.Env:
        multiprocessing.Process(target=time.sleep, args=(0.0,)).start()
        return CountingEnv([3])

    with pytest.raises(EnvironmentFaultError, match=r"with_child .* use vectorization='sync', whe"):
        make_vec(with_child, 2, vectorization="async")


def test_other_environments_are_fine_after_a_fault() -> None:
    envs = _in_workers(_trio("raise_step"))
    with envs:
        for _ in range(2):
            envs.reset()
            with contextlib.suppress(EnvironmentFaultError):
                for _ in range(3):
                    envs.step(np.zeros(3, np.int64))
        observation = cast("Array", envs.reset(seed=1))
        assert observation[:, 2].tolist() == [0, 0, 0]


def test_errors_of_ours_keep_their_class_on_the_way_from_a_worker() -> None:
    with pytest.raises(ConfigError, match="gravitation"):
        make_vec("Pendulum-v1", 2, vectorization="async", env_kwargs={"gravitation": 3.0})
    with pytest.raises(SpaceError, match="space of environment 1"):
        _in_workers([partial(IdentityEnv, gymnasium.spaces.Discrete(n)) for n in (2, 3)])


def test_nested_actions_reach_their_worker_from_one_array() -> None:
    class Twofold(CountingEnv):
        def __init__(self) -> None:
            super().__init__([9])
            self.action_space = gymnasium.spaces.Tuple([gymnasium.spaces.Discrete(5)] * 2)

        def step(self, action: Any) -> tuple[Array, Any, bool, bool, dict[str, object]]:
            observation, _, *rest = super().step(action)
            return observation, 10.0 * action[0] + action[1], *rest

    with _in_workers([Twofold, Twofold]) as envs:
        envs.reset()
        step = envs.step(np.array([[1, 3], [2, 4]]))
        assert np.asarray(step.reward).tolist() == [13.0, 24.0]


def test_workers_end_when_the_process_they_work_for_is_killed() -> None:
    code = """
import sys, time, gymnasium
from functools import partial
from rl_envs import ProcessVecEnv
envs = ProcessVecEnv([partial(gymnasium.make, "CartPole-v1")] * 2)
envs.reset(seed=1)
print(*(process.pid for process in envs.processes), flush=True)
time.sleep(60)
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        parent.kill()
    assert len(pids) == 2
    deadline = time.monotonic() + 10.0
    while any(_is_running(pid) for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_idle_workers_end_though_another_one_hangs() -> None:
    """A fork that is stuck must not hold the pipes of those before it open."""
    code = """
import time, gymnasium, numpy as np
from rl_envs import ProcessVecEnv
class Stuck(gymnasium.Wrapper):
    def step(self, action):
        time.sleep(60 if action else 0)
        return super().step(action)
def build():
    return Stuck(gymnasium.make("CartPole-v1"))
other = ProcessVecEnv([build])
envs = ProcessVecEnv([build] * 3)
envs.reset(seed=1)
print(*(process.pid for process in other.processes + envs.processes), flush=True)
envs.step(np.array([0, 0, 1]))
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        *idle, stuck = [int(pid) for pid in parent.stdout.readline().split()]
        time.sleep(0.5)
        parent.kill()
    try:
        assert len(idle) == 3
        deadline = time.monotonic() + 10.0
        while any(_is_running(pid) for pid in idle):
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        for pid in (*idle, stuck):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _is_running(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def test_a_worker_killed_between_two_steps_is_named() -> None:
    envs = _in_workers([partial(CountingEnv, [3])] * 2)
    envs.reset()
    workers = cast("ProcessVecEnv", envs)
    os.kill(workers.processes[1].pid or 0, signal.SIGKILL)
    workers.processes[1].join()
    with pytest.raises(EnvironmentFaultError, match="environment 1: its process ended by signal 9"):
        envs.step(np.zeros(2, np.int64))
    envs.close()


def test_workers_leave_an_interrupt_to_the_process_they_work_for() -> None:
    envs = _in_workers([partial(CountingEnv, [3])] * 2)
    envs.reset()
    workers = cast("ProcessVecEnv", envs)
    for process in workers.processes:
        os.kill(process.pid or 0, signal.SIGINT)  # as a terminal does on Ctrl-C
    for _ in range(3):
        envs.step(np.zeros(2, np.int64))
    envs.close()


def test_closing_async_environments_leaves_no_process_behind() -> None:
    envs = _in_workers([partial(CountingEnv, [3])] * 2)
    workers = cast("ProcessVecEnv", envs)
    pids = [process.pid or 0 for process in workers.processes]
    envs.reset()
    envs.close()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_an_environment_that_fails_to_build_in_its_worker_is_named() -> None:
    parent = os.getpid()

    def build() -> gymnasium.Env:
        if os.getpid() != parent:
            os._exit(5)
        return CountingEnv([3])

    with pytest.raises(EnvironmentFaultError, match="environment 0: its process ended with exit"):
        make_vec(build, 2, vectorization="async")


def test_auto_takes_the_native_form_and_falls_back_to_sync() -> None:
    def resets_in_next_step(num_envs: int = 6, **kwargs: object) -> bool:
        with make_vec("CartPole-v1", num_envs, seed=0, **kwargs) as envs:  # type: ignore[arg-type]  # a subset
            envs.reset()
            zeros = np.zeros(num_envs, np.int64)
            return not all(np.asarray(envs.step(zeros).valid).all() for _ in range(30))

    assert resets_in_next_step()
    assert resets_in_next_step(env_kwargs={"sutton_barto_reward": True})
    assert not resets_in_next_step(5)
    assert not resets_in_next_step(wrappers=[MaskVelocity])
    assert not resets_in_next_step(vectorization="sync")


@pytest.mark.parametrize("vectorization", ["sync", "async", "native"])
def test_the_seed_given_at_the_start_is_used_by_the_first_reset_only(vectorization: str) -> None:
    def build(seed: int | None) -> VecEnv:
        return make_vec("CartPole-v1", 2, seed, vectorization=vectorization)  # type: ignore[arg-type]  # one of them

    with build(5) as envs, build(None) as other:
        first = cast("Array", envs.reset())
        np.testing.assert_array_equal(first, cast("Array", other.reset(seed=5)))
        second = cast("Array", envs.reset())
        assert not np.array_equal(first, second)
        np.testing.assert_array_equal(second, cast("Array", other.reset()))


@pytest.mark.parametrize("vectorization", ["sync", "async", "native"])
def test_name_and_time_limit_are_known(vectorization: str) -> None:
    with make_vec(
        "CartPole-v1",
        vectorization=vectorization,  # type: ignore[arg-type]  # one of them
        env_kwargs={"max_episode_steps": 7},
    ) as envs:
        assert envs.spec_id == "CartPole-v1"
        assert envs.max_episode_steps == 7


def test_sync_and_async_live_through_the_same_episodes() -> None:
    with (
        make_vec("CartPole-v1", 2, 3, vectorization="sync") as here,
        make_vec("CartPole-v1", 2, 3, vectorization="async") as there,
    ):
        np.testing.assert_array_equal(cast("Array", here.reset()), cast("Array", there.reset()))
        for _ in range(30):
            ours, theirs = here.step(np.ones(2, np.int64)), there.step(np.ones(2, np.int64))
            np.testing.assert_array_equal(
                cast("Array", ours.successor), cast("Array", theirs.successor)
            )


def test_a_function_with_arguments_and_wrappers_builds_each_row() -> None:
    with make_vec(
        MemoryCueEnv,
        2,
        env_kwargs={"delay": 2, "num_cues": 3},
        wrappers=[partial(gymnasium.wrappers.TimeLimit, max_episode_steps=2)],
    ) as envs:
        assert envs.spec_id == "MemoryCueEnv"
        assert cast("Array", envs.reset()).shape == (2, 4)
        envs.step(np.zeros(2, np.int64))
        assert np.asarray(envs.step(np.zeros(2, np.int64)).truncated).all()


def test_wrong_arguments_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="did you mean 'async'"):
        make_vec("CartPole-v1", vectorization="asynch")  # type: ignore[arg-type]  # what is tested
    with pytest.raises(ConfigError, match="num_envs must be a whole number of at least 1, got 0"):
        make_vec("CartPole-v1", 0)
    with pytest.raises(ConfigError, match="no vectorized form"):
        make_vec("Pendulum-v1", vectorization="native")
    with pytest.raises(ConfigError, match="gravitation"):
        make_vec("Pendulum-v1", env_kwargs={"gravitation": 3.0})
    with pytest.raises(
        ConfigError, match="timeout_s must be a finite number above 0, or None, got 0"
    ):
        make_vec("Pendulum-v1", vectorization="async", timeout_s=0)
    with pytest.raises(ConfigError, match=r"timeout_s has no effect with vectorization='auto'"):
        make_vec("Pendulum-v1", timeout_s=5.0)
    with pytest.raises(SpaceError):
        make_vec(lambda: gymnasium.make("Blackjack-v1"), wrappers=[MaskVelocity])


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("env", 5, "env must be text or a function .*, got 5"),
        ("env", None, "env must be text or a function .*, got None"),
        ("num_envs", 1.5, "num_envs must be a whole number of at least 1, got 1.5"),
        ("num_envs", "2", "num_envs must be a whole number of at least 1, got '2'"),
        ("num_envs", None, "num_envs must be a whole number of at least 1, got None"),
        ("num_envs", True, "num_envs must be a whole number of at least 1, got True"),
        ("seed", "a", "seed must be a whole number of at least 0, or None, got 'a'"),
        ("seed", 1.5, "seed must be a whole number of at least 0, or None, got 1.5"),
        ("seed", True, "seed must be a whole number of at least 0, or None, got True"),
        ("vectorization", None, "vectorization must be 'auto' or .*, got None"),
        ("env_kwargs", 5, "env_kwargs must be a mapping, or None, got 5"),
        ("wrappers", 5, "wrappers must be a list, got 5"),
        ("wrappers", [5], "wrappers.0. must be a function, got 5"),
        ("timeout_s", "x", "timeout_s must be a finite number above 0, or None, got 'x'"),
        ("max_restarts", 1.5, "max_restarts"),
        ("max_restarts", -1, "max_restarts"),
        ("timeout_s", float("nan"), "timeout_s must be a finite number above 0, or None, got nan"),
    ],
)
def test_arguments_of_another_kind_are_refused(name: str, value: object, message: str) -> None:
    arguments = {"env": "CartPole-v1", "vectorization": "async", name: value}
    with pytest.raises(ConfigError, match=message):
        make_vec(**arguments)  # type: ignore[arg-type]  # what is tested


def _not_there(name: str) -> None:
    raise ModuleNotFoundError(f"No module named '{name}'")


def test_an_id_whose_package_is_missing_is_refused_with_the_pip_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(gymnasium.registry, "ALE/Pong-v5", raising=False)
    monkeypatch.setattr("rl_envs.families.find_module", lambda name: None)
    line = r'ALE/Pong-v5 needs Atari.*pip install "packages/rl-envs\[atari\]"'
    with pytest.raises(MissingExtraError, match=line):
        make_vec("ALE/Pong-v5")


def test_a_robot_whose_package_is_missing_is_refused_with_the_pip_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "gymnasium_robotics", raising=False)
    monkeypatch.delitem(gymnasium.registry, "FetchReach-v4", raising=False)
    monkeypatch.setattr(families, "find_module", lambda name: True)
    monkeypatch.setattr("importlib.import_module", _not_there)
    monkeypatch.setattr(families, "version", lambda name: "1.0")
    with pytest.raises(
        MissingExtraError, match=r'FetchReach-v4.*pip install "packages/rl-envs\[robotics\]"'
    ):
        make_vec("FetchReach-v4")
    monkeypatch.setattr(families, "version", lambda name: "3.17.0")
    with pytest.raises(
        MissingExtraError, match=r"does not work with mujoco 3.17.0: pip install 'm"
    ):
        make_vec("FetchReach-v4")


def test_a_version_that_nothing_can_build_any_more_names_the_newest() -> None:
    with pytest.raises(MissingExtraError, match="Ant-v3 cannot be built any more; use 'Ant-v5'"):
        make_vec("Ant-v3")


def test_an_environment_that_ends_the_program_while_it_is_built_is_reported() -> None:
    def build() -> gymnasium.Env:
        raise SystemExit("no licence")

    with pytest.raises(EnvironmentFaultError, match="could not be built: SystemExit: no licence"):
        make_vec(build)


def test_check_false_lets_nan_through() -> None:
    with make_vec(
        lambda: FaultyEnv(CountingEnv([9]), "nan_reward", at_step=1), check=False
    ) as envs:
        envs.reset()
        assert np.isnan(np.asarray(envs.step(np.zeros(1, np.int64)).reward)).all()


def test_an_identity_task_pays_its_known_optimum() -> None:
    env = IdentityEnv(gymnasium.spaces.Discrete(3), episode_length=4)
    with make_vec(lambda: env) as envs:
        observation = envs.reset(seed=0)
        earned = 0.0
        for _ in range(4):
            step = envs.step(cast("Array", observation))
            observation = step.observation
            earned += float(np.asarray(step.reward)[0])
    assert earned == env.optimal_return
    assert np.asarray(step.terminated).all()


def test_a_missing_module_is_named_without_guessing_its_package() -> None:
    def build() -> gymnasium.Env:
        raise ModuleNotFoundError("No module named 'roombasim'", name="roombasim")

    with pytest.raises(MissingExtraError, match="'roombasim'; install the package that has it"):
        make_vec(build)


def test_make_vec_is_registered_as_a_plug_in() -> None:
    found = {entry.name: entry.value for entry in entry_points(group="rl_core.envs")}
    if not found:
        pytest.skip("installed before the entry point was there")
    assert found["gymnasium"] == "rl_envs:make_vec"


class Busy(CountingEnv):
    """Computes in every step for two milliseconds."""

    def __init__(self) -> None:
        super().__init__([4, 2, 5])

    def step(self, action: Any) -> tuple[Array, Any, bool, bool, dict[str, object]]:
        end = time.process_time() + 0.002
        while time.process_time() < end:
            pass
        return super().step(action)


class Slow(CountingEnv):
    """Sleeps in every step, as if it waited for a simulator."""

    def __init__(self, step_s: float = 0.002) -> None:
        super().__init__([4, 2, 5])
        self.step_s = step_s

    def step(self, action: Any) -> tuple[Array, Any, bool, bool, dict[str, object]]:
        if self.step_s:  # a sleep of no time lets others run, for as long as they like
            time.sleep(self.step_s)
        return super().step(action)


@pytest.mark.parametrize(
    ("env", "num_envs", "cores", "expected"),
    [
        (Slow, 4, 4, "async-4"),
        (Slow, 6, 2, "async-6"),
        (Slow, 4, 1, "sync"),
        (Slow, 1, 4, "sync"),
        (lambda: Slow(0.0), 4, 4, "sync"),
        ("CartPole-v1", 4, 4, "sync"),
        ("CartPole-v1", 8, 4, "native"),
    ],
)
def test_auto_measures_the_step_and_picks(
    env: Any, num_envs: int, cores: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)), raising=False)
    with make_vec(env, num_envs) as envs:
        vectorization, _, num_workers = expected.partition("-")
        assert cast("SyncVecEnv", envs).vectorization == vectorization
        if isinstance(envs, ProcessVecEnv):
            assert len(envs.processes) == int(num_workers)
        if isinstance(env, str):
            assert envs.component is not None
            assert envs.component.kwargs["vectorization"] == expected


def test_auto_takes_a_process_per_core_where_environments_compute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, computing_s = vectorize._step_times(Busy())
    assert computing_s >= 0.002
    _, computing_s = vectorize._step_times(Slow())
    assert computing_s < 0.001
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    monkeypatch.setattr(vectorize, "_step_times", lambda _: (0.002, 0.0015))
    with make_vec("CartPole-v1", 5) as envs:
        assert len(cast("ProcessVecEnv", envs).processes) == 2
        assert envs.component is not None
        assert envs.component.kwargs["num_workers"] == 2


def test_auto_leaves_it_to_the_first_step_to_report_a_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Broken(CountingEnv):
        def step(self, action: object) -> Any:
            raise ValueError("no such track")

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    with make_vec(lambda: Broken([9]), 2) as envs:
        envs.reset()
        with pytest.raises(EnvironmentFaultError, match="no such track"):
            envs.step(np.zeros(2, np.int64))


def test_what_auto_picks_makes_no_difference_but_speed() -> None:
    def steps(vectorization: Literal["sync", "async"]) -> list[Any]:
        with make_vec("CartPole-v1", 3, 5, vectorization=vectorization) as envs:
            seen: list[Any] = [envs.reset()]
            for _ in range(40):
                step = envs.step(np.array([0, 1, 0]))
                seen.append((step.observation, step.reward, step.terminated))
        return seen

    np.testing.assert_equal(steps("sync"), steps("async"))


class _MuteError(TypeError):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize("vectorization", ["auto", "sync", "async"])
def test_an_error_without_words_does_not_escape_while_an_environment_is_built(
    vectorization: Any,
) -> None:
    def build() -> gymnasium.Env:
        raise _MuteError

    with pytest.raises(EnvironmentFaultError, match="_MuteError: its message cannot be shown"):
        make_vec(build, 2, vectorization=vectorization)


class _Typed(gymnasium.Env[Any, Any]):
    """Observes whether actions have the dtype of their space."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float64)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.array([action.dtype == np.float64], np.float32), 0.0, False, False, {}


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_actions_have_the_dtype_of_their_space_however_environments_step(
    vectorization: Literal["sync", "async"],
) -> None:
    with make_vec(_Typed, 2, vectorization=vectorization) as envs:
        envs.reset(seed=0)
        for dtype in (np.float32, np.float64, np.float32):
            step = envs.step(np.zeros((2, 1), dtype))
            assert np.asarray(step.observation).tolist() == [[1.0], [1.0]]


def test_a_class_of_vectors_is_built_as_one() -> None:
    with make_vec(WalkVecEnv, num_envs=3, seed=1) as envs:
        assert isinstance(envs, WalkVecEnv)
        assert envs.num_envs == 3
    assert make_gym_vec(WalkVecEnv, 2).num_envs == as_vec_env(WalkVecEnv, 2).num_envs == 2
    assert as_vec_env(WalkVecEnv).num_envs == 1
    with pytest.raises(ConfigError, match="WalkVecEnv is a vector of its own"):
        make_vec(WalkVecEnv, check=False)
    with pytest.raises(ConfigError, match=r"built a WalkVecEnv.*give the class itself"):
        make_vec(lambda: WalkVecEnv(2))  # type: ignore[arg-type, return-value]  # the mistake


def test_a_registered_function_is_found_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "available", lambda kind: {"cues": None})
    monkeypatch.setattr(plugins, "load", lambda kind, name: MemoryCueEnv)
    with make_vec("cues", 2) as envs, make_gym_vec("cues", 3) as more:
        assert (envs.num_envs, more.num_envs) == (2, 3)
        assert envs.single_action_space == MemoryCueEnv().action_space


def test_a_daemonic_process_steps_its_environments_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Daemon:
        daemon = True

    class Slow(gymnasium.Wrapper[Any, Any, Any, Any]):
        def step(self, action: Any) -> Any:
            time.sleep(0.002)
            return super().step(action)

    monkeypatch.setattr(multiprocessing, "current_process", Daemon)
    with make_vec(lambda: Slow(gymnasium.make("CartPole-v1")), 4) as envs:
        assert isinstance(envs, SyncVecEnv)
    with pytest.raises(ConfigError, match=r"a daemonic process.*use 'sync' there"):
        make_vec("CartPole-v1", 2, vectorization="async")
