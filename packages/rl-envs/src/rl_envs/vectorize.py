"""One call from an environment to a vector of them."""

from collections.abc import Mapping, Sequence
from typing import Literal

from rl_core.config import ComponentSpec
from rl_core.env import VecEnv, checked_seed
from rl_core.errors import ConfigError, nearest
from rl_core.types import Json
from rl_envs.adapter import GymVecEnv
from rl_envs.maker import EnvFunction, EnvMaker, EnvWrapper, checked_num_envs
from rl_envs.workers import WorkerVectorEnv
from rl_envs.wrappers import MaskVelocity

VECTORIZATIONS = ("auto", "sync", "async", "native")

_TIMEOUT_S = 60.0
_MANY = 6
"""Environments from which a native form is faster than stepping them one by one (CartPole-v1)."""


def make_vec(
    env: str | EnvFunction,
    num_envs: int = 1,
    seed: int | None = None,
    *,
    vectorization: Literal["auto", "sync", "async", "native"] = "auto",
    env_kwargs: Mapping[str, Json] | None = None,
    wrappers: Sequence[EnvWrapper] = (),
    mask_velocity: bool = False,
    check: bool = True,
    timeout_s: float | None = _TIMEOUT_S,
) -> VecEnv:
    """Make a vector of environments.

    Args:
        env: a registered id (``"CartPole-v1"``), or a function that builds one environment.
        num_envs: how many step together, ``B``.
        seed: used by the first `reset` that is given none.
        vectorization: ``"sync"`` steps them one by one in this process, ``"async"`` each in a
            process of its own, which pays when a step takes longer than about 0.1 ms. ``"native"``
            is the vectorised form that some ids have, ``"auto"`` native from 6 on where there is
            one that takes the arguments, and sync elsewhere. Sync and async reset a row in the step
            that ends its episode; native forms commonly in the next (see `EnvStep`).
        env_kwargs: what each environment is built with.
        wrappers: applied to each environment in this order, the last one outermost.
        mask_velocity: hide the velocities before any other wrapper; see `MaskVelocity`.
        check: look in every step for NaN, infinity and categories that do not exist, and for
            another shape or kind of dtype than the spaces declare; bounds of a Box are not checked.
        timeout_s: how long one reset or step may take before its process counts as hung; async
            only, None for ever.

    Returns:
        The environments; `close` them, or use them in a ``with`` statement.

    Raises:
        ConfigError: when the id is unknown, or an argument does not fit.
        MissingExtraError: when the simulator is not installed.
        EnvironmentFaultError: when an environment raises while being built.
        SpaceError: when its observation space is not supported.
    """
    _check_arguments(num_envs, seed, vectorization, env_kwargs, wrappers, timeout_s)
    around = (*([MaskVelocity] if mask_velocity else []), *wrappers)
    maker = EnvMaker(env, dict(env_kwargs or {}), around, check)
    component = None
    if isinstance(env, str) and not wrappers:
        options: dict[str, Json] = {
            "num_envs": num_envs,
            "vectorization": vectorization,
            "check": check,
            "timeout_s": "none" if timeout_s is None else timeout_s,
        }
        if mask_velocity:
            options["mask_velocity"] = True
        if env_kwargs:
            options["env_kwargs"] = dict(env_kwargs)
        component = ComponentSpec("env", env, options)
    is_many = num_envs >= _MANY
    if vectorization == "native" or (
        vectorization == "auto" and is_many and maker.has_native_vector
    ):
        native = maker.native_vector(num_envs)
        return GymVecEnv(native, seed=seed, check=check, component=component)
    if vectorization == "async":
        workers = WorkerVectorEnv(maker.numbered(num_envs), timeout_s=timeout_s)
        return GymVecEnv(
            workers,
            seed=seed,
            check=check,
            name=workers.get_attr("spec_id")[0],
            max_episode_steps=workers.get_attr("max_episode_steps")[0],
            component=component,
        )
    return maker.sync(num_envs, seed=seed, component=component)


def _check_arguments(
    num_envs: int,
    seed: int | None,
    vectorization: str,
    env_kwargs: Mapping[str, Json] | None,
    wrappers: Sequence[EnvWrapper],
    timeout_s: float | None,
) -> None:
    if vectorization not in VECTORIZATIONS:
        raise ConfigError(
            f"vectorization={vectorization!r}{nearest(str(vectorization), VECTORIZATIONS)}"
        )
    checked_num_envs(num_envs)
    if seed is not None:
        checked_seed(seed)
    if not isinstance(env_kwargs, Mapping | None):
        raise ConfigError(f"env_kwargs={env_kwargs!r}; expected a mapping of arguments, or None")
    if not isinstance(wrappers, Sequence):
        raise ConfigError(f"wrappers={wrappers!r}; expected a list of functions of environments")
    if vectorization != "async" and timeout_s != _TIMEOUT_S:
        raise ConfigError(
            f"timeout_s={timeout_s!r} has no effect with vectorization={vectorization!r}: only "
            "'async' has processes that could hang; leave it out"
        )
