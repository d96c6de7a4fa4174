"""Vector environments from an id, a function or an object of the user's own."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import gymnasium
from gymnasium.envs.registration import load_env_creator
from gymnasium.vector import VectorEnv

from rl_core.config import ComponentSpec
from rl_core.env import VecEnv
from rl_core.errors import (
    ConfigError,
    EnvironmentFaultError,
    MissingExtraError,
    RLError,
    in_brief,
)
from rl_envs.adapter import GymVecEnv
from rl_envs.guard import EnvGuard
from rl_envs.registry import find_spec
from rl_envs.sync import SyncVecEnv

EnvFunction: TypeAlias = Callable[..., gymnasium.Env]
"""Builds one environment."""

EnvWrapper: TypeAlias = Callable[[gymnasium.Env], gymnasium.Env]
"""Wraps one environment."""

_EXTRAS = {"gymnasium.envs.mujoco": "rl-envs[mujoco]", "gymnasium.envs.box2d": "rl-envs[box2d]"}


@dataclass(frozen=True, slots=True)
class EnvMaker:
    """Builds one environment, or a vector of them, and says in the project's words what fails.

    Attributes:
        env: a registered id, or a function that builds the environment.
        kwargs: what it is built with.
        wrappers: applied in this order, the last one outermost.
        check: whether each environment is checked by `EnvGuard`.

    Raises:
        ConfigError: when the id is unknown, or an argument is of another kind.
        MissingExtraError: when the id's package is known and not installed.
    """

    env: str | EnvFunction
    kwargs: Mapping[str, object] = field(default_factory=dict)
    wrappers: tuple[EnvWrapper, ...] = ()
    check: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.env, str):
            find_spec(self.env)
        elif not callable(self.env):
            raise ConfigError(
                f"env is {type(self.env).__name__}; expected an id such as 'CartPole-v1', or a "
                "function that builds one environment"
            )
        for wrapper in self.wrappers:
            if not callable(wrapper):
                raise ConfigError(f"wrappers holds {wrapper!r}; expected functions of environments")

    def __call__(self, index: int = 0) -> gymnasium.Env:
        """Build one environment, guarded.

        Args:
            index: its row, named in its faults.

        Raises:
            ConfigError: when the arguments do not fit, or the function answers something else.
            MissingExtraError: when its simulator is not installed.
            EnvironmentFaultError: when it raises while being built.
        """
        with _build_errors(self.name, self._entry_point()):
            if isinstance(self.env, str):
                kwargs: dict[str, Any] = {"disable_env_checker": True, **self.kwargs}
                env = gymnasium.make(find_spec(self.env), **kwargs)
            else:
                env = self.env(**self.kwargs)
            for wrapper in self.wrappers:
                env = wrapper(env)
        if not isinstance(env, gymnasium.Env):
            raise ConfigError(f"{self.name} built a {type(env).__name__}; expected a gymnasium.Env")
        return EnvGuard(env, index, check=self.check)

    @property
    def name(self) -> str:
        """The id, with its version, or the name of the function."""
        if isinstance(self.env, str):
            return find_spec(self.env).id
        return getattr(self.env, "__name__", type(self.env).__name__)

    @property
    def has_native_vector(self) -> bool:
        """Whether a vectorised form is registered that takes these arguments and no wrappers."""
        if not isinstance(self.env, str) or self.wrappers:
            return False
        spec = find_spec(self.env)
        if spec.vector_entry_point is None or spec.additional_wrappers:
            return False
        with _build_errors(spec.id, str(spec.vector_entry_point)):
            creator = (
                load_env_creator(spec.vector_entry_point)
                if isinstance(spec.vector_entry_point, str)
                else spec.vector_entry_point
            )
        try:
            inspect.signature(creator).bind(num_envs=1, **{**spec.kwargs, **self.kwargs})
        except TypeError:
            return False
        return True

    def numbered(self, num_envs: int) -> list[Callable[[], gymnasium.Env]]:
        """Return one function per row, each of which builds that row's environment."""
        return [partial(self, index) for index in range(checked_num_envs(num_envs))]

    def native_vector(self, num_envs: int) -> VectorEnv:
        """Build the registered vectorised form.

        Raises:
            ConfigError: when there is none for these arguments and wrappers.
            MissingExtraError: when its simulator is not installed.
            EnvironmentFaultError: when it raises while being built.
        """
        if not isinstance(self.env, str) or not self.has_native_vector:
            raise ConfigError(
                f"{self.name} has no vectorised form of its own that takes the arguments "
                f"{sorted(self.kwargs)} and {len(self.wrappers)} wrappers; use sync or async"
            )
        with _build_errors(self.name, self._entry_point()):
            kwargs: dict[str, Any] = {**self.kwargs, "num_envs": checked_num_envs(num_envs)}
            mode = "vector_entry_point"
            envs: VectorEnv = gymnasium.make_vec(
                find_spec(self.env), vectorization_mode=mode, **kwargs
            )
        return envs

    def sync(
        self, num_envs: int, *, seed: int | None = None, component: ComponentSpec | None = None
    ) -> SyncVecEnv:
        """Build the environments one after the other, to be stepped so.

        Args:
            num_envs: ``B``.
            seed: used by the first `reset` that is given none.
            component: how a recipe names these environments.

        Raises:
            RLError: as when building one, or when their spaces differ.
        """
        with _build_errors(self.name, self._entry_point()):
            envs = [build() for build in self.numbered(num_envs)]
            return SyncVecEnv(envs, seed=seed, check=self.check, component=component)

    def _entry_point(self) -> str:
        return str(find_spec(self.env).entry_point) if isinstance(self.env, str) else ""


def make_gym_vec(
    env: str | EnvFunction, num_envs: int = 1, seed: int | None = None, **env_kwargs: object
) -> VecEnv:
    """Make a vector environment in this process, the plain way.

    An id that has a vectorised form of its own (``CartPole-v1``) gets it, unless it does not take
    the arguments; everything else is stepped one by one and reset in the same step.

    Args:
        env: a registered id, or a function that builds one environment.
        num_envs: ``B``.
        seed: used by the first `reset` that is given none.
        **env_kwargs: what each environment is built with.

    Returns:
        The environments, checked for faults in every step.

    Raises:
        ConfigError: when the id is unknown, or an argument does not fit.
        MissingExtraError: when the simulator is not installed.
        EnvironmentFaultError: when an environment raises while being built.
        SpaceError: when its observation space is not supported.
    """
    maker = EnvMaker(env, env_kwargs)
    component = None
    if isinstance(env, str) and not env_kwargs:
        component = ComponentSpec("env", env, {"num_envs": num_envs})
    if maker.has_native_vector:
        return GymVecEnv(maker.native_vector(num_envs), seed=seed, component=component)
    return maker.sync(num_envs, seed=seed, component=component)


AnyEnv: TypeAlias = VecEnv | VectorEnv | gymnasium.Env
"""What can be stepped: the toolbox's own vectors, Gymnasium's, and a single environment."""


def as_vec_env(envs: AnyEnv) -> VecEnv:
    """Take a user's own environments as they are.

    Args:
        envs: a `VecEnv`, returned unchanged; a Gymnasium vector environment, adapted; or a single
            environment, which becomes a vector of one. Closing the result closes it.

    Raises:
        ConfigError: when it is none of these.
    """
    if isinstance(envs, VecEnv):
        return envs
    if isinstance(envs, VectorEnv):
        return GymVecEnv(envs)
    if isinstance(envs, gymnasium.Env):
        return EnvMaker(lambda: envs).sync(1)
    raise ConfigError(
        f"got a {type(envs).__name__}; expected a VecEnv, a gymnasium.vector.VectorEnv or a "
        "gymnasium.Env (for an id, call make_gym_vec or rl_envs.make_vec first)"
    )


def checked_num_envs(num_envs: int) -> int:
    """Return a number of environments.

    Raises:
        ConfigError: when it is no whole number, or less than one.
    """
    if isinstance(num_envs, bool) or not isinstance(num_envs, int) or num_envs < 1:
        raise ConfigError(f"num_envs={num_envs!r}; expected a whole number of at least 1")
    return num_envs


@contextmanager
def _build_errors(name: str, entry_point: str) -> Iterator[None]:
    """Turn what may go wrong while an environment is built into the project's errors."""
    try:
        yield
    except RLError:
        raise
    except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
        raise MissingExtraError(_missing(name, entry_point, error)) from error
    except gymnasium.error.Error as error:
        raise ConfigError(f"{name} could not be built: {in_brief(error)}") from error
    except (Exception, SystemExit) as error:
        if isinstance(error, TypeError) and "argument" in str(error):
            raise ConfigError(f"{name} does not take these arguments: {in_brief(error)}") from error
        raise EnvironmentFaultError(f"{name} could not be built: {in_brief(error)}") from error


def _missing(name: str, entry_point: str, error: Exception) -> str:
    for module, extra in _EXTRAS.items():
        if entry_point.startswith(module):
            return f"{name} needs its simulator: pip install '{extra}' ({error})"
    if "pip install" in str(error):
        return f"{name} cannot be built: {error}"
    return f"{name} cannot be built: {error}: pip install {getattr(error, 'name', None) or name}"
