"""Vector environments from an id, a function or an object of the user's own."""

import multiprocessing
import os
import statistics
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from inspect import signature
from typing import Annotated, Literal, TypeAlias, TypeGuard, cast

import gymnasium
from gymnasium.vector import VectorEnv

from rl_core import plugins
from rl_core.config import (
    ComponentSpec,
    Count,
    Needs,
    NonNegativeInt,
    Positive,
    check_argument,
    checked_arguments,
    construct,
    decode,
    options_of,
)
from rl_core.env import VecEnv
from rl_core.errors import ConfigError, EnvironmentFaultError
from rl_core.types import Json
from rl_envs.families import ENVPOOL_ATARI
from rl_envs.guard import name_and_limit
from rl_envs.maker import EnvFunction, EnvMaker, EnvWrapper
from rl_envs.tasks.sync import TaskEnv
from rl_envs.vector._envpool import is_envpool, make_envpool
from rl_envs.vector.gymnasium_vector import GymVecEnv
from rl_envs.vector.workers import ProcessVecEnv
from rl_envs.wrappers import WRAPPERS, training_rewards

BuiltEnv: TypeAlias = VecEnv | VectorEnv | gymnasium.Env
"""What can be stepped: the toolbox's own vectors, Gymnasium's, and a single environment."""

EnvSource: TypeAlias = str | EnvFunction | type[VecEnv]
"""An id, a function that builds one environment, or a class of vectors."""

AnyEnv: TypeAlias = EnvSource | BuiltEnv
"""An id, a class or function that builds environments, or what is built already."""

Vectorization: TypeAlias = Literal["auto", "sync", "async", "native", "envpool"]
"""How environments are stepped; see `make_vec`."""

_InProcesses = Needs("vectorization", "async")

_WORKER_S = 1e-4
"""What it costs to have a step done in another process, in seconds."""

_MEASURE_S = 0.05
"""How long to measure the steps of an environment, in seconds."""

_NATIVE_FROM = 6
"""Environments from which a native form is faster than stepping them one by one (CartPole-v1)."""


@checked_arguments()
def make_vec(
    env: EnvSource,
    num_envs: Count = 1,
    seed: NonNegativeInt | None = None,
    *,
    vectorization: Vectorization = "auto",
    env_kwargs: Mapping[str, Json] | None = None,
    wrappers: Sequence[EnvWrapper] = (),
    mask_velocity: bool = False,
    rescale_observation: bool = False,
    stack_size: Count = 1,
    time_feature: bool = False,
    rescale_action: bool = False,
    action_mask: bool = False,
    training_reward_scale: Positive = 1.0,
    training_reward_clip: Positive | None = None,
    check: bool = True,
    num_workers: Annotated[Count | None, _InProcesses] = None,
    timeout_s: Annotated[Positive | None, _InProcesses] = 60.0,
    max_restarts: Annotated[NonNegativeInt, _InProcesses] = 0,
    testing: bool = False,
    preprocess: bool = True,
) -> VecEnv:
    """Make a vector of environments.

    Args:
        env: a registered id (``"CartPole-v1"``), a function that builds one environment, or a class
            of vectors, which steps all of them as one.
        num_envs: number of environments that step together, ``B``.
        seed: used by the first `reset` that is given none.
        vectorization: ``"sync"`` steps them one by one in this process, ``"async"`` in other
            processes, ``"native"`` in the vectorized form that some ids have, ``"envpool"`` in
            EnvPool's threads, by its ids. ``"auto"`` takes the native form from 6 environments on
            if there is one for the arguments. Otherwise it measures a step and takes async or sync,
            whichever is faster; the result's ``vectorization`` says which. Sync and async reset a
            row in the step that ends its episode, native forms usually in a step of its own.
        env_kwargs: arguments for each environment.
        wrappers: applied to each environment in this order, the last one outermost.
        mask_velocity: hide velocities before any other wrapper, a test for recurrent networks.
        rescale_observation: map observations from the bounds of their space to [-1, 1].
        stack_size: number of last observations to stack along a new first axis; 1 stacks none.
        time_feature: add the elapsed fraction of the time limit to the observation.
        rescale_action: let actions be in [-1, 1], and map them to the bounds of their space.
        action_mask: take the actions that are allowed from ``info["action_mask"]``.
        training_reward_scale: factor on rewards in training; evaluations leave them alone.
        training_reward_clip: bound on scaled rewards in training; evaluations leave them alone.
        check: look in every step for NaN, infinity and categories that do not exist, and for
            another shape or kind of dtype than the spaces declare; bounds of a Box are not checked.
        num_workers: maximum number of processes, which share the environments; None starts one for
            each. Async only; ``"auto"`` starts one for each core if environments compute, and one
            for each environment if they wait.
        timeout_s: how long a start, reset, step or close may take before its process counts as
            hung; async only, None for no limit.
        max_restarts: how often failed processes are started again, their episodes truncated; async
            only.
        testing: prepare the environments for evaluations: Atari games are played to their end for
            their own rewards.
        preprocess: give the environments of an id the usual preprocessing, if they have one
            (DeepMind's for Atari). False takes them as they are registered.

    Returns:
        The environments; `close` them, or use them in a ``with`` statement.

    Raises:
        ConfigError: if the id is unknown, or an argument does not fit.
        MissingExtraError: if the simulator is not installed.
        EnvironmentFaultError: if an environment raises while it is built.
        SpaceError: if its observation space is not supported.
    """
    defaults = _defaults()
    named: dict[str, Json] = {
        "mask_velocity": mask_velocity,
        "rescale_observation": rescale_observation,
        "stack_size": stack_size,
        "time_feature": time_feature,
        "rescale_action": rescale_action,
        "action_mask": action_mask,
    }
    all_wrappers = [
        partial(wrapper, stack_size=stack_size) if name == "stack_size" else wrapper
        for name, wrapper in WRAPPERS.items()
        if named[name] != defaults[name]
    ]
    if not testing:
        all_wrappers += training_rewards(training_reward_scale, training_reward_clip)
    all_wrappers += wrappers
    source = registered_env(env)
    if is_vector_class(source):
        is_plain = check and preprocess and not all_wrappers
        if not is_plain or vectorization not in ("auto", "native"):
            raise ConfigError(
                f"{source.__name__} is a vector of its own, which steps as one and checks "
                "itself; leave vectorization, wrappers, check and preprocess out"
            )
        return _build_vectors(source, num_envs, seed, env_kwargs or {})
    if vectorization != "envpool":
        maker = EnvMaker(
            cast("str | EnvFunction", source),
            env_kwargs,
            all_wrappers,
            check,
            testing=testing,
            preprocess=preprocess,
        )
    if vectorization == "auto":
        vectorization, num_workers = _fastest(maker, num_envs)
    component = None
    if isinstance(env, str) and not wrappers:
        is_gymnasiums = vectorization != "envpool" and maker.spec is not None
        component = _component(
            maker.name if is_gymnasiums else env,
            {
                "num_envs": num_envs,
                "vectorization": vectorization,
                "check": check,
                "timeout_s": "none" if timeout_s is None else timeout_s,
            },
            {
                "num_workers": num_workers,
                "max_restarts": max_restarts,
                **named,
                "training_reward_scale": training_reward_scale,
                "training_reward_clip": training_reward_clip,
                "testing": testing,
                "preprocess": preprocess,
                "env_kwargs": dict(env_kwargs) if env_kwargs else None,
            },
        )
    if vectorization == "envpool":
        if not isinstance(env, str) or all_wrappers:
            raise ConfigError(
                "vectorization='envpool' takes one of EnvPool's ids, without wrappers or options "
                "that add some, such as training_reward_scale; use sync for others"
            )
        atari = ENVPOOL_ATARI[testing] if preprocess else {}
        pool = make_envpool(env, num_envs, env_kwargs or {}, seed, atari)
        return GymVecEnv(pool, seed=seed, check=check, component=component)
    if vectorization == "async":
        if multiprocessing.current_process().daemon:
            raise ConfigError(
                "vectorization='async' starts processes, which a daemonic process, such as one of "
                "multiprocessing.Pool, may not; use 'sync' there"
            )
        return ProcessVecEnv(
            maker.numbered(num_envs),
            num_workers=num_workers,
            seed=seed,
            check=check,
            timeout_s=timeout_s,
            max_restarts=max_restarts,
            component=component,
        )
    if vectorization == "native":
        native = maker.native_vector(num_envs)
        return GymVecEnv(native, seed=seed, check=check, component=component)
    return maker.sync(num_envs, seed=seed, component=component)


@cache
def _defaults() -> Mapping[str, object]:
    """Return the defaults of `make_vec`."""
    return {name: one.default for name, one in signature(make_vec).parameters.items()}


def _component(
    name: str, options: Mapping[str, Json], others: Mapping[str, Json]
) -> ComponentSpec | None:
    """Describe environments for a recipe: with options, and with others that differ from defaults.

    Returns:
        None where an argument has no plain form, which no recipe holds.
    """
    changed = {key: value for key, value in others.items() if value != _defaults()[key]}
    with suppress(ConfigError):
        return ComponentSpec("env", name, {**options, **changed})
    return None


def _fastest(
    maker: EnvMaker, num_envs: int
) -> tuple[Literal["sync", "async", "native"], int | None]:
    """Choose how environments step, and in how many processes; None is one for each.

    If there are many they have their native form, else their own time decides.
    """
    if num_envs >= _NATIVE_FROM and maker.has_native_vector:
        return "native", None
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    if num_envs == 1 or cores == 1 or multiprocessing.current_process().daemon:
        return "sync", None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the environments that are stepped give the same notices
        env = maker()
    try:
        if isinstance(env.unwrapped, TaskEnv):  # processes cannot be told tasks
            return "sync", None
        step_s, computing_s = _step_times(env)
    finally:
        env.close()
    waits = step_s > 2.0 * computing_s  # for a simulator or a sleep, which others need not
    workers = num_envs if waits else min(cores, num_envs)
    in_each = -(-num_envs // workers) * step_s
    at_once = max(in_each, num_envs * computing_s / cores) + workers * _WORKER_S
    if at_once >= 0.8 * num_envs * step_s:
        return "sync", None
    return "async", None if workers == num_envs else workers


def _step_times(env: gymnasium.Env) -> tuple[float, float]:
    """Return the median time of an environment's step, and what it computes of it, in seconds.

    Both are 0 if a step fails.
    """
    times: list[float] = []
    computing: list[float] = []
    space = env.action_space
    space.seed(0)
    try:
        env.reset(seed=0)
        while len(times) < 3 or (sum(times) < _MEASURE_S and len(times) < 100):
            action = space.sample()
            start, start_computing = time.perf_counter(), time.process_time()
            _, _, terminated, truncated, _ = env.step(action)
            computing.append(time.process_time() - start_computing)
            times.append(time.perf_counter() - start)
            if terminated or truncated:
                env.reset()
    except EnvironmentFaultError:  # whoever steps it will see what is wrong
        return 0.0, 0.0
    return statistics.median(times), statistics.median(computing)


def make_gym_vec(
    env: EnvSource,
    num_envs: int = 1,
    seed: int | None = None,
    *,
    testing: bool = False,
    **env_kwargs: object,
) -> VecEnv:
    """Make a vector environment in this process, the plain way.

    Ids with a vectorized form of their own (``CartPole-v1``) get it from 6 environments on, unless
    that form does not take the arguments; all others are stepped one by one and reset in the same
    step. `make_vec` also has processes, wrappers and more options.

    Args:
        env: a registered id, a function that builds one environment, or a class of vectors.
        num_envs: ``B``.
        seed: used by the first `reset` that is given none.
        testing: prepare the environments for testing, where their preprocessing differs.
        **env_kwargs: arguments for each environment.

    Returns:
        The environments, checked for faults in every step.

    Raises:
        ConfigError: if the id is unknown, or an argument does not fit.
        MissingExtraError: if the simulator is not installed.
        EnvironmentFaultError: if an environment raises while it is built.
        SpaceError: if its observation space is not supported.
    """
    source = registered_env(env)
    vectorization: Vectorization = "auto" if is_vector_class(source) else "sync"
    if vectorization == "sync" and check_argument("num_envs", num_envs, Count) >= _NATIVE_FROM:
        maker = EnvMaker(cast("str | EnvFunction", source), env_kwargs, testing=testing)
        vectorization = "native" if maker.has_native_vector else "sync"
    return make_vec(
        env,
        num_envs,
        seed,
        vectorization=vectorization,
        env_kwargs=cast("Mapping[str, Json]", env_kwargs),
        testing=testing,
    )


def registered_env(env: AnyEnv) -> AnyEnv:
    """Return the class or function that a plug-in has registered by a name; others unchanged.

    Raises:
        ConfigError: for what is neither an id nor builds environments.
    """
    if not (isinstance(env, str) or callable(env)):
        raise ConfigError(
            f"env is {type(env).__name__}; expected an id such as 'CartPole-v1', or a class or "
            "function that builds one environment; as_vec_env takes those that are built"
        )
    if not isinstance(env, str) or env not in plugins.available("env"):
        return env
    found = plugins.load("env", env)
    return env if found is make_vec else cast("EnvFunction", found)


def is_vector_class(env: object) -> TypeGuard[type[VecEnv]]:
    """Tell whether this is a class of environments that step as one vector."""
    return isinstance(env, type) and issubclass(env, VecEnv)


def _build_vectors(
    vectors: type[VecEnv], num_envs: int, seed: int | None, kwargs: Mapping[str, object]
) -> VecEnv:
    if "num_envs" in kwargs:
        raise ConfigError("env_kwargs has num_envs; give num_envs alone")
    options = decode(options_of(vectors), {"num_envs": num_envs, **kwargs}, "env")
    return construct(vectors, {"seed": seed}, options)


def is_built(env: object) -> TypeGuard[BuiltEnv]:
    """Tell whether environments can be stepped already, and are not an id or a function."""
    return isinstance(env, VecEnv | VectorEnv | gymnasium.Env) or is_envpool(env)


def as_vec_env(envs: AnyEnv, num_envs: int | None = None, *, testing: bool = False) -> VecEnv:
    """Turn any kind of environments into a `VecEnv`.

    Args:
        envs: a `VecEnv`, returned unchanged; a Gymnasium vector environment, adapted; a single
            environment, which becomes a vector of one; or an id, a class or a function, which
            `make_gym_vec` builds. Closing the result closes them.
        num_envs: how many there must be; None takes what is built, and builds one.
        testing: prepare what is built here for testing; see `make_vec`.

    Raises:
        ConfigError: if it is none of these, or what is built has another number of environments.
    """
    if not is_built(envs):
        return make_gym_vec(
            cast("EnvSource", envs), 1 if num_envs is None else num_envs, testing=testing
        )
    if isinstance(envs, gymnasium.Env) and not isinstance(envs, VectorEnv):  # EnvPool's are both
        if num_envs not in (None, 1):
            raise ConfigError(
                f"num_envs={num_envs}, but a built {type(envs).__name__} is one environment; give "
                "its class or a function that builds one, or leave num_envs out"
            )
        maker = EnvMaker(lambda: envs, testing=testing)
        maker.name, _ = name_and_limit(envs.spec, envs)
        return maker.sync(1)
    vector = envs if isinstance(envs, VecEnv) else GymVecEnv(envs)
    if num_envs not in (None, vector.num_envs):
        raise ConfigError(
            f"num_envs={num_envs}, but the given environments are {vector.num_envs}; leave "
            "num_envs out"
        )
    return vector
