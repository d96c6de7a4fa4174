"""What all vectors of environments of Gymnasium's kind share."""

import warnings
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Literal, cast

import numpy as np
import torch

from rl_core.config import ComponentSpec
from rl_core.env import VecEnv, action_error, action_shape, keeps_integers
from rl_core.errors import CheckpointError, DataError, EnvironmentFaultError, in_brief
from rl_core.seeding import checked_seed, resumed_seed
from rl_core.spaces import Space
from rl_core.stateful import StateReader
from rl_core.types import ArrayLike, ArrayObservation, StateDict, StateValue
from rl_envs.guard import warn_of_texts
from rl_envs.vector._arrays import Arrays, NumpyArrays, Rows


class BaseGymVecEnv(VecEnv):
    """A `VecEnv` over environments of Gymnasium's kind.

    A subclass steps, resets and closes the environments; see `_reset_all` and `_close_all`.

    Args:
        num_envs: ``B``.
        spaces: observation space and action space of one environment.
        name: what to call the environments in messages and as `spec_id`.
        max_episode_steps: after which an episode is truncated; None if unknown.
        seed: used by the first `reset` that is given none.
        check: look for NaN, infinity and categories that do not exist in every step.
        component: how a recipe names these environments, if it can.
        is_fresh: the environments keep no reference to the arrays they return.

    Raises:
        SpaceError: if the observation space is not supported.
        ConfigError: if the seed is negative.

    Attributes:
        vectorization: the option of `make_vec` that makes it.
    """

    vectorization: ClassVar[str]
    _arrays: Arrays
    _can_save = False
    """Whether running episodes can be saved; then `_save_episodes` and `_load_episodes` do it."""

    _can_call = True
    """Whether methods of single environments can be called; then `_call_each` does it."""

    _left_out = False  # by the last `state_dict`

    def __init__(
        self,
        num_envs: int,
        spaces: tuple[Any, Any],
        name: str,
        max_episode_steps: int | None,
        *,
        seed: int | None,
        check: bool,
        component: ComponentSpec | None,
        is_fresh: bool = True,
    ) -> None:
        self._num_envs = num_envs
        self._observation_space, self._action_space = cast("tuple[Space, Space]", spaces)
        self._name = name
        warn_of_texts(name, self._observation_space)
        self._max_episode_steps = max_episode_steps
        self._check = check
        self._component = component
        self._arrays = NumpyArrays(
            self._observation_space, num_envs, self._fault, is_fresh=is_fresh
        )
        self._action_shape = action_shape(self._action_space, num_envs)
        self._usual_action_dtype: object = None  # of the last step whose actions were right
        self._seed = self._next_seed = None if seed is None else checked_seed(seed)
        self._steps = 0
        self._is_ready = False  # for a step: reset, open, and without a fault since then
        self._is_closed = False

    @property
    def num_envs(self) -> int:
        """The number of environments that step together, ``B``."""
        return self._num_envs

    @property
    def single_observation_space(self) -> Space:
        """The observation space of one environment, as it declares it."""
        return self._observation_space

    @property
    def single_action_space(self) -> Space:
        """The action space of one environment."""
        return self._action_space

    @property
    def array_type(self) -> Literal["numpy", "torch"]:
        """The kind of arrays that `reset` and `step` return; known after the first `reset`."""
        return self._arrays.array_type

    @property
    def spec_id(self) -> str:
        """The registered id, or the class name of the environment."""
        return self._name

    @property
    def component(self) -> ComponentSpec | None:
        """How a recipe names these environments."""
        return self._component

    @property
    def max_episode_steps(self) -> int | None:
        """The number of steps after which an episode is truncated, if known."""
        return self._max_episode_steps

    def reset(self, seed: int | None = None) -> ArrayObservation:
        """Begin a new episode in every environment; see `VecEnv.reset`."""
        if self._is_closed:
            raise self._not_ready("reset")
        if seed is not None:
            self._seed = self._next_seed = checked_seed(seed)
        seed, self._next_seed = self._next_seed, None
        self._is_ready = False
        self._arrays.raise_deferred()
        observation = self._reset_all(seed)
        self._arrays.check_space(observation)
        if self._check:
            self._arrays.check_observation(observation, self._steps)
        self._is_ready = True
        return observation

    def close(self) -> None:
        """Close all environments; calling it again does nothing.

        Raises:
            EnvironmentFaultError: if an environment raises while it closes, or if a check that
                waited for the device has found something.
        """
        if self._is_closed:
            return
        self._is_closed, self._is_ready = True, False
        self._close_all()
        self._arrays.raise_deferred()

    def call(self, name: str, *arguments: object) -> tuple[object, ...]:
        """Call a method of each environment; see `VecEnv.call`."""
        if not self._can_call:
            return super().call(name, *arguments)
        if self._is_closed:
            raise self._not_ready(name)
        with self._locating(name):
            return tuple(self._call_each(name, arguments))

    @property
    def resume_grade(self) -> Literal["exact", "episode"]:
        """Exact where all environments can be saved; see `rl_envs.state`.

        Not where the last `state_dict` had to leave the running episodes out.
        """
        return "exact" if self._can_save and not self._left_out else "episode"

    def state_dict(self) -> StateDict:
        """Return the seed, the number of steps, and the running episodes if they can be saved.

        They are left out with a warning if an environment fails, as when its process has died: the
        next step raises that, or starts it again.
        """
        state: dict[str, StateValue] = {"seed": self._seed, "steps": self._steps}
        self._left_out = False
        if self._can_save and self._is_ready:
            try:
                state["episodes"] = self._save_episodes()
            except EnvironmentFaultError as fault:
                self._left_out = True
                warnings.warn(
                    f"{fault}; the running episodes are not saved", RuntimeWarning, stacklevel=2
                )
        return state

    def load_state_dict(self, state: StateDict) -> None:
        """Restore the step count and the saved episodes.

        Without episodes, derive the seed of the next `reset` from seed and count. So a resumed run
        is reproducible, and does not repeat the episodes that it began with.

        Raises:
            CheckpointError: if the state does not fit.
        """
        saved = StateReader(state, self._name)
        steps = saved.count("steps")
        seed = None if saved.plain("seed") is None else saved.count("seed")
        self._seed, self._steps = seed, steps
        self._next_seed = seed if seed is None or steps == 0 else resumed_seed(seed, steps)
        self._is_ready = False
        if "episodes" in state and not self._is_closed:
            self._load_episodes(saved.reader("episodes"))
            self._next_seed, self._is_ready = None, True

    @abstractmethod
    def _reset_all(self, seed: int | None) -> ArrayObservation:
        """Reset all environments."""

    @abstractmethod
    def _close_all(self) -> None:
        """Close all environments, and then raise what one of them raised."""

    def _call_each(self, name: str, arguments: Sequence[object]) -> Iterable[object]:
        """Call a method of each environment, or read an attribute."""
        raise NotImplementedError

    def _save_episodes(self) -> StateDict:
        """Return the state of the running episodes."""
        raise NotImplementedError

    def _load_episodes(self, saved: StateReader) -> None:
        """Restore what `_save_episodes` returned."""
        raise CheckpointError(f"{self._name}: these environments cannot restore saved episodes")

    def _actions(self, action: ArrayLike) -> Rows:
        """Return a step's actions as an array of the environments' kind and dtype.

        Raises:
            DataError: for another shape, for what is not a number, and, where categories are asked
                for, for real numbers and those that do not fit.
        """
        actions: Rows = action
        if (
            actions.__class__ is np.ndarray
            and actions.dtype is self._usual_action_dtype
            and actions.shape == self._action_shape
        ):
            return actions
        try:
            actions = self._arrays.convert(action)
        except (RuntimeError, TypeError, ValueError) as error:
            raise DataError(f"the action is not an array: {in_brief(error)}") from error
        if actions.shape != self._action_shape and self._action_shape is not None:
            raise action_error(tuple(actions.shape), self._action_space, self._num_envs)
        if actions.dtype is not self._usual_action_dtype:
            wanted = self._action_space.dtype
            if wanted is not None and (problem := _action_problem(actions, wanted)):
                raise DataError(f"the action {problem}; expected {wanted} for {self._action_space}")
            if isinstance(actions, np.ndarray) and wanted is not None and actions.dtype != wanted:
                return actions.astype(wanted)
            self._usual_action_dtype = actions.dtype
        return actions

    def _not_ready(self, call: str) -> EnvironmentFaultError:
        if self._is_closed:
            return EnvironmentFaultError(f"{self._name}: {call}() was called after close()")
        return EnvironmentFaultError(f"{self._name} was not reset; call reset() first")

    def _fault(self, message: str, index: int | None = None) -> EnvironmentFaultError:
        """Build an error that names the step, and the environment at fault if it is one."""
        where = "" if index is None else f", environment {index}"
        return EnvironmentFaultError(f"{self._name}, step {self._steps}{where}: {message}")

    def _located(self, call: str, error: BaseException) -> EnvironmentFaultError:
        """Build an error that says where another one was raised."""
        if isinstance(error, EnvironmentFaultError):  # it names the environment already
            return EnvironmentFaultError(f"{self._name}, step {self._steps}, {error}")
        return self._fault(f"{call}() raised {in_brief(error)}")

    @contextmanager
    def _locating(self, call: str) -> Iterator[None]:
        try:
            yield
        except (Exception, SystemExit) as error:
            raise self._located(call, error) from (error.__cause__ or error)


def _action_problem(actions: Rows, wanted: np.dtype[Any]) -> str | None:
    """Say what would be lost if actions were converted to a dtype; None if nothing."""
    is_real = np.issubdtype(wanted, np.floating)
    if isinstance(actions, torch.Tensor):
        is_fitting = is_real or not actions.is_floating_point()
    else:
        is_fitting = actions.dtype.kind in ("biuf" if is_real else "biu")
        if is_fitting and not keeps_integers(actions, wanted):
            return f"holds {actions.min()} to {actions.max()}"
    return None if is_fitting else f"has dtype {actions.dtype}"


def spread_seed(seed: int, num_envs: int) -> list[int]:
    """Derive one seed per environment.

    Neighboring seeds give unrelated lists, unlike ``seed + i``, where the second environment of
    seed 0 is the first of seed 1. The first ``k`` seeds do not depend on ``num_envs``.

    Args:
        seed: at least 0.
        num_envs: the number of seeds.

    Returns:
        Different numbers below 2^31, which every simulator's own seed can hold.

    Raises:
        ConfigError: if the seed is negative.
    """
    seeds: dict[int, None] = {}  # in order, without duplicates
    for child in np.random.SeedSequence(checked_seed(seed)).spawn(num_envs):
        candidate = int(child.generate_state(1)[0]) >> 1
        while candidate in seeds:
            candidate = (candidate + 1) % 2**31
        seeds[candidate] = None
    return list(seeds)
