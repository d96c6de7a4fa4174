"""Builds environments from an id or a function, and says plainly what fails."""

import importlib
import inspect
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec as find_module
from typing import Any, TypeAlias

import gymnasium
from gymnasium.envs.registration import get_env_id, load_env_creator
from gymnasium.vector import VectorEnv
from gymnasium.wrappers import NormalizeObservation, NormalizeReward

from rl_core.config import ComponentSpec, Count, check_argument
from rl_core.env import VecEnv
from rl_core.errors import (
    ConfigError,
    EnvironmentFaultError,
    MissingExtraError,
    RLError,
    in_brief,
)
from rl_envs.families import family_of_spec
from rl_envs.guard import EnvGuard
from rl_envs.registry import find_spec
from rl_envs.tasks.sync import SyncTaskVecEnv, TaskEnv
from rl_envs.vector.sync import SyncVecEnv

EnvFunction: TypeAlias = Callable[..., gymnasium.Env]
"""Builds one environment."""

EnvWrapper: TypeAlias = Callable[[gymnasium.Env], gymnasium.Env]
"""Wraps one environment."""


class EnvMaker:
    """Builds one environment, or a vector of them.

    Args:
        env: a registered id, or a function that builds the environment.
        kwargs: arguments for the environment.
        wrappers: applied in this order, the last one outermost.
        check: whether `EnvGuard` checks each environment.
        testing: preprocess for testing, not for training.
        preprocess: apply the usual preprocessing of the id's family, if it has one, see
            `rl_envs.families`.

    Attributes:
        name: the id, with its version, or the name of the function.

    Raises:
        ConfigError: if the id is unknown, or an argument has the wrong type or contradicts the
            preprocessing.
        MissingExtraError: if the id's package is known and not installed.
    """

    def __init__(
        self,
        env: str | EnvFunction,
        kwargs: Mapping[str, object] | None = None,
        wrappers: Sequence[EnvWrapper] = (),
        check: bool = True,
        *,
        testing: bool = False,
        preprocess: bool = True,
    ) -> None:
        self.env = env
        self.spec = find_spec(env) if isinstance(env, str) else None
        self.kwargs: dict[str, Any] = dict(kwargs or {})
        self.wrappers = wrappers
        self.check = check
        self.testing = testing
        self.family = family_of_spec(self.spec)
        self.preprocessing = self.family if preprocess else None
        if self.spec is None and not callable(env):
            raise ConfigError(
                f"env is {type(env).__name__}; expected an id such as 'CartPole-v1', or a "
                "function that builds one environment"
            )
        excluded = {} if self.preprocessing is None else self.preprocessing.excluded
        for name in excluded.keys() & self.kwargs.keys():
            raise ConfigError(
                f"env_kwargs.{name} does not go with the preprocessing of {env}: {excluded[name]}; "
                "or set preprocess to False, to take the environment as it is registered"
            )
        for wrapper in wrappers:
            if not callable(wrapper):
                raise ConfigError(f"wrappers holds {wrapper!r}; expected functions of environments")
        function_name = getattr(env, "__name__", type(env).__name__)
        self.name = function_name if self.spec is None else self.spec.id

    def __call__(self, index: int = 0) -> gymnasium.Env:
        """Build one environment, guarded.

        Args:
            index: its row, named in its faults.

        Raises:
            ConfigError: if the arguments do not fit, or the function returns something else.
            MissingExtraError: if its simulator is not installed.
            EnvironmentFaultError: if it raises while it is built.
        """
        with self._building():
            if self.spec is not None:
                kwargs = {} if self.preprocessing is None else self.preprocessing.kwargs
                options = {"disable_env_checker": True, **kwargs, **self.kwargs}
                env = gymnasium.make(self.spec, **options)
                if self.preprocessing is not None and self.preprocessing.prepare is not None:
                    env = self.preprocessing.prepare(env, self.testing)
            elif callable(self.env):
                env = self.env(**self.kwargs)
            for wrapper in self.wrappers:
                env = wrapper(env)
            if self.testing and index == 0:
                self._warn_of_statistics(env)
        if not isinstance(env, gymnasium.Env):
            hint = (
                "; give the class itself, or the vector environment"
                if isinstance(env, VecEnv | VectorEnv)
                else ""
            )
            raise ConfigError(
                f"{self.name} built a {type(env).__name__}; expected a gymnasium.Env{hint}"
            )
        return EnvGuard(env, index, check=self.check)

    @property
    def has_native_vector(self) -> bool:
        """Whether a vectorized form is registered that takes these arguments and no wrappers."""
        spec = self.spec
        if spec is None or spec.vector_entry_point is None:
            return False
        if self.wrappers or spec.additional_wrappers:
            return False
        if self.family is not None and self.family.not_native:
            return False
        creator: Any = spec.vector_entry_point
        with self._building():
            creator = load_env_creator(creator) if isinstance(creator, str) else creator
        try:
            inspect.signature(creator).bind(num_envs=1, **{**spec.kwargs, **self.kwargs})
        except TypeError:
            return False
        return True

    def numbered(self, num_envs: int) -> list[Callable[[], gymnasium.Env]]:
        """Return one function per row, each of which builds that row's environment."""
        count = check_argument("num_envs", num_envs, Count)
        return [partial(self, index) for index in range(count)]

    def native_vector(self, num_envs: int) -> VectorEnv:
        """Build the registered vectorized form.

        Raises:
            ConfigError: if there is none for these arguments and wrappers.
            MissingExtraError: if its simulator is not installed.
            EnvironmentFaultError: if it raises while it is built.
        """
        if self.spec is None or not self.has_native_vector:
            if self.family is not None and self.family.not_native:
                raise ConfigError(
                    f"the vectorized form of {self.name} is not taken, because "
                    f"{self.family.not_native}; use the vectorization auto, sync, async or envpool"
                )
            raise ConfigError(
                f"{self.name} has no vectorized form of its own that takes the arguments "
                f"{sorted(self.kwargs)} and {len(self.wrappers)} wrappers; use the vectorization "
                "auto, sync or async"
            )
        with self._building():
            envs: VectorEnv = gymnasium.make_vec(
                self.spec,
                **{**self.kwargs, "num_envs": check_argument("num_envs", num_envs, Count)},
                vectorization_mode="vector_entry_point",
            )
        return envs

    def sync(
        self, num_envs: int, *, seed: int | None = None, component: ComponentSpec | None = None
    ) -> SyncVecEnv:
        """Build the environments one after the other; they are stepped one after the other too.

        Args:
            num_envs: ``B``.
            seed: used by the first `reset` that is given none.
            component: how a recipe names these environments.

        Raises:
            RLError: as when one is built, or if their spaces differ.
        """
        with self._building():
            envs = [build() for build in self.numbered(num_envs)]
            has_tasks = isinstance(envs[0].unwrapped, TaskEnv)
            vector = SyncTaskVecEnv if has_tasks else SyncVecEnv
            return vector(envs, seed=seed, check=self.check, component=component)

    def _warn_of_statistics(self, env: gymnasium.Env) -> None:
        """Give notice of running statistics that begin anew in an evaluation."""
        layer = env
        while isinstance(layer, gymnasium.Wrapper):
            if isinstance(layer, NormalizeObservation | NormalizeReward):
                instead = (
                    "the actor's normalize_observations"
                    if isinstance(layer, NormalizeObservation)
                    else "the trainer's scale_rewards"
                )
                warnings.warn(
                    f"{self.name}: {type(layer).__name__} of a test environment has statistics of "
                    f"its own, not those of training; use {instead}, which evaluations leave alone",
                    RuntimeWarning,
                    stacklevel=3,
                )
            layer = layer.env

    @contextmanager
    def _building(self) -> Iterator[None]:
        """Turn what may go wrong while an environment is built into the project's errors."""
        try:
            with _without_deprecations(self.family is not None and self.family.extra == "mujoco"):
                yield
        except RLError:
            raise
        except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
            raise MissingExtraError(self._missing(error)) from error
        except gymnasium.error.Error as error:
            raise ConfigError(f"{self.name} could not be built: {in_brief(error)}") from error
        except (Exception, SystemExit) as error:
            if isinstance(error, TypeError) and "argument" in in_brief(error):
                message = f"{self.name} does not take these arguments: {in_brief(error)}"
                raise ConfigError(message) from error
            message = f"{self.name} could not be built: {in_brief(error)}"
            if self.family is not None:
                message += self.family.known_conflict() or ""
            raise EnvironmentFaultError(message) from error

    def _missing(self, error: Exception) -> str:
        family, brief = self.family, in_brief(error)
        is_installed = family is None or find_module(family.module) is not None
        if is_installed and self.spec is not None:
            newest = find_spec(get_env_id(self.spec.namespace, self.spec.name, None)).id
            if newest != self.name:
                return f"{self.name} cannot be built any more; use '{newest}' ({brief})"
        if family is not None and family.extra is not None:
            return f"{self.name} needs {family.name}: {family.install_line} ({brief})"
        return f"{self.name} cannot be built: {brief}; install the package that has it"


@contextmanager
def _without_deprecations(in_mujoco: bool) -> Iterator[None]:
    """Keep MuJoCo from printing what is deprecated in a model file, for each environment anew."""
    mujoco = importlib.import_module("mujoco") if in_mujoco else None
    if mujoco is None or mujoco.get_mju_user_warning() is not None:  # somebody listens
        yield
        return

    def tell(message: str) -> None:
        if "deprecated" not in message:
            print(f"WARNING: {message}", file=sys.stderr)

    mujoco.set_mju_user_warning(tell)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(None)
