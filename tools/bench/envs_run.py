"""One measurement of the benchmark of environments, in a process of its own."""

import importlib
import itertools
import os
import time
from collections.abc import Callable
from typing import Any, cast

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import batch_space

from bench.envs import ADDED_TO, ENVS
from bench.products import calls_per_second
from rl_envs import EnvMaker, make_vec

_WARM_UP = 20
_ACTIONS = 64
_FEWEST_TURNS = 5


class Millisecond(gymnasium.Env[Any, Any]):
    """Sleeps for 1 ms in each step, as if it waited for another program."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (8,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin again."""
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(8, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Sleep."""
        time.sleep(0.001)
        self.steps += 1
        return np.zeros(8, np.float32), 1.0, self.steps == 200, False, {}


def measure(env: str, count: int, system: str, seconds: float) -> dict[str, float]:
    """Measure how many steps of single environments a system makes per second.

    Args:
        env: one of `ENVS`.
        count: environments that step together.
        system: steps them.
        seconds: shortest length of the measured span.

    Returns:
        ``rate``: steps per second, those that only reset included.
    """
    single = _build(env)
    space = batch_space(single.action_space, count)
    single.close()
    space.seed(0)
    actions = itertools.cycle([cast("Any", space.sample()) for _ in range(_ACTIONS)])
    envs, step = _make(env, count, system)
    rate = calls_per_second(lambda: step(next(actions)), seconds, _WARM_UP)
    envs.close()
    return {"rate": rate * count}


def measure_added(count: int, system: str, seconds: float) -> dict[str, float]:
    """Measure what one of our vectorizers adds to a step of the one that it wraps or replaces.

    Both step CartPole by turns, so that a machine that becomes slower slows both.

    Args:
        count: environments that step together.
        system: ours, of `ADDED_TO`.
        seconds: shortest length of the measured span.

    Returns:
        ``bare_us`` and ``added_us``: microseconds of a step.
    """
    bare, ours = (_make("cartpole", count, each) for each in (ADDED_TO[system], system))
    actions = np.random.default_rng(0).integers(2, size=(_ACTIONS, count))
    found: list[tuple[float, float]] = []
    start = time.perf_counter()
    while time.perf_counter() - start < seconds or len(found) < _FEWEST_TURNS:
        times = []
        for _, step in (bare, ours):
            before = time.perf_counter()
            for action in actions:
                step(action)
            times.append((time.perf_counter() - before) / _ACTIONS * 1e6)
        found.append((times[0], times[1] - times[0]))
    for envs, _ in (bare, ours):
        envs.close()
    bare_us, added_us = np.median(found[1:], axis=0).tolist()
    return {"bare_us": bare_us, "added_us": added_us}


def _build(env: str) -> gymnasium.Env:
    """Build one environment as all systems get it: preprocessed, without our guard."""
    env_id = ENVS[env]
    return Millisecond() if env_id is None else cast("Any", EnvMaker(env_id)()).env


def _make(env: str, count: int, system: str) -> tuple[Any, Callable[[Any], object]]:
    """Return environments that have begun, and the function that steps them."""
    library, _, kind = system.partition("-")
    functions = [lambda: _build(env)] * count
    envs: Any
    if library == "ours":
        options: dict[str, Any] = {"vectorization": kind}
        if kind == "cores":
            options = {"vectorization": "async", "num_workers": os.cpu_count()}
        envs = make_vec(ENVS[env] or Millisecond, count, seed=1, **options)
    elif library == "sb3":
        module = importlib.import_module("stable_baselines3.common.vec_env")
        envs = getattr(module, {"dummy": "DummyVecEnv", "subproc": "SubprocVecEnv"}[kind])(
            functions
        )
    elif system == "gymnasium-async":
        envs = AsyncVectorEnv(functions, autoreset_mode=AutoresetMode.SAME_STEP)
    elif system == "gymnasium-sync":
        envs = SyncVectorEnv(functions, autoreset_mode=AutoresetMode.SAME_STEP)
    else:  # what ours wraps, bare
        wrapped: Any = make_vec(
            cast("str", ENVS[env]),
            count,
            seed=1,
            vectorization="native" if kind == "native" else "envpool",
        )
        envs = wrapped._envs if kind == "native" else wrapped._envs._pool
    envs.reset()
    return envs, envs.step
