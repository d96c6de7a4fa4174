"""Environments stepped one after the other in this process, and what all vectors share."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, ClassVar, Literal, cast

import gymnasium
import numpy as np

from rl_core.config import ComponentSpec
from rl_core.env import EnvStep, GoalFunctions, VecEnv, action_error, action_shape
from rl_core.errors import CheckpointError, ConfigError, EnvironmentFaultError, in_brief
from rl_core.seeding import checked_seed, resumed_seed, spread_seed
from rl_core.spaces import Space
from rl_core.stateful import StateReader
from rl_core.types import ArrayLike, ArrayObservation, StateDict, StateValue
from rl_envs._arrays import Arrays, Info, Last, LazyInfo, NumpyArrays, Rows
from rl_envs.guard import STEP_FIELDS, EnvGuard, return_problem, shared_spaces, warn_of_texts
from rl_envs.state import can_save, get_state, set_state

_USUAL_NUMBERS = frozenset({float, np.float64, np.float32})
_USUAL_FLAGS = frozenset({bool, np.bool_})


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
        self._seed = self._next_seed = None if seed is None else checked_seed(seed)
        self._steps = 0
        self._is_ready = False  # for a step: reset, open, and without a fault since then
        self._is_closed = False
        self._is_first_step = True

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

    @property
    def resume_grade(self) -> Literal["exact", "episode"]:
        """Exact where all environments can be saved; see `rl_envs.state`."""
        return "exact" if self._can_save else "episode"

    def state_dict(self) -> StateDict:
        """Return the seed, the number of steps, and the running episodes if they can be saved."""
        state: dict[str, StateValue] = {"seed": self._seed, "steps": self._steps}
        if self._can_save and self._is_ready:
            state["episodes"] = self._save_episodes()
        return state

    def load_state_dict(self, state: StateDict) -> None:
        """Restore the step count and the saved episodes.

        Without episodes, derive the seed of the next `reset` from seed and count. So a resumed run
        is reproducible, and does not repeat the episodes that it began with.

        Raises:
            CheckpointError: if the state does not fit.
        """
        seed, steps = state.get("seed"), state.get("steps")
        if not isinstance(steps, int) or not isinstance(seed, int | None):
            raise CheckpointError(
                f"the state of {self._name} is {dict(state)}; expected the numbers seed and steps"
            )
        self._seed, self._steps = seed, steps
        self._next_seed = None if seed is None else resumed_seed(seed, steps)
        self._is_ready = False
        if "episodes" in state and not self._is_closed:
            self._load_episodes(StateReader(state, self._name).reader("episodes"))
            self._next_seed, self._is_ready = None, True

    @abstractmethod
    def _reset_all(self, seed: int | None) -> ArrayObservation:
        """Reset all environments."""

    @abstractmethod
    def _close_all(self) -> None:
        """Close all environments, and then raise what one of them raised."""

    def _save_episodes(self) -> StateDict:
        """Return the state of the running episodes."""
        raise NotImplementedError

    def _load_episodes(self, saved: StateReader) -> None:
        """Restore what `_save_episodes` returned."""
        raise CheckpointError(f"{self._name}: these environments cannot restore saved episodes")

    def _check_step(
        self,
        observation: ArrayObservation,
        reward: Rows,
        final_observation: ArrayObservation | None,
    ) -> None:
        arrays = self._arrays
        if self._is_first_step:
            arrays.check_space(observation)
            self._is_first_step = False
        if self._check:
            arrays.check_values(arrays.reward, reward, self._steps)
            arrays.check_observation(observation, self._steps)
            if final_observation is not None:
                arrays.check_observation(final_observation, self._steps)

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


class SyncVecEnv(BaseGymVecEnv):
    """A list of Gymnasium environments, each reset in the step that ends its episode.

    A vector step costs little more than the steps of its environments: observations are written
    straight into the rows of new arrays, values of the usual types pass without a further look,
    and ``info`` is joined only when somebody reads it. Read it before the next step if an
    environment overwrites arrays in its info.

    After an `EnvironmentFaultError`, call `reset`, or if that fails too, `close`.

    Args:
        envs: the environments; closed by `close`. They are wrapped in an `EnvGuard` if needed.
        seed: used by the first `reset` that is given none.
        check: look at every reward and observation for NaN, infinity and categories that do not
            exist, and for another shape or kind of dtype than its space declares. Bounds of a Box
            are not checked: many environments step over their own.
        component: how a recipe names these environments, if it can.

    Raises:
        ConfigError: if there are no environments, or the seed is negative.
        SpaceError: if the observation space is not supported, or the spaces differ.
    """

    _arrays: NumpyArrays
    vectorization = "sync"

    def __init__(
        self,
        envs: Sequence[gymnasium.Env],
        *,
        seed: int | None = None,
        check: bool = True,
        component: ComponentSpec | None = None,
    ) -> None:
        if not envs:
            raise ConfigError("got no environments; expected at least one")
        self._guards = [
            env if isinstance(env, EnvGuard) else EnvGuard(env, index, check=check)
            for index, env in enumerate(envs)
        ]
        # Steps bypass the guards, which are asked only about resets and values of unusual types.
        self._row_steps = [(index, guard.env.step) for index, guard in enumerate(self._guards)]
        first = self._guards[0]
        super().__init__(
            len(envs),
            shared_spaces(self._guards),
            first.spec_id,
            first.max_episode_steps,
            seed=seed,
            check=check,
            component=component,
        )
        self._can_save = all(can_save(guard.env) for guard in self._guards)
        leaf = self._arrays.leaf
        # A single observation of this shape and dtype is usual; the dtype is learned from the
        # first one that was accepted.
        self._usual_shape = None if leaf is None else leaf.shape[1:]
        self._usual_dtype: object = None

    @property
    def envs(self) -> tuple[gymnasium.Env, ...]:
        """The environments, to render or inspect; do not step or reset them."""
        return tuple(guard.env for guard in self._guards)

    def step(self, action: ArrayLike) -> EnvStep:
        """Step every environment once; see `VecEnv.step`."""
        if not self._is_ready:
            raise self._not_ready("step")
        actions = self._single_actions(action)
        self._is_ready = False
        self._steps += 1
        arrays = self._arrays
        observation = arrays.empty_observation()
        reward = np.empty(self._num_envs, np.float32)
        terminated = np.zeros(self._num_envs, np.bool_)
        truncated = np.zeros(self._num_envs, np.bool_)
        infos, ended = self._step_each(actions, observation, reward, terminated, truncated)

        final_observation: ArrayObservation | None = None
        if ended:
            last_rows = {index: single for index, (single, _) in ended.items()}
            final_observation = arrays.replace_rows(observation, last_rows)
        self._check_step(observation, reward, final_observation)
        self._is_ready = True
        return EnvStep(
            observation,
            reward,
            terminated,
            truncated,
            final_observation,
            arrays.every_row(),
            LazyInfo(infos, ended),
        )

    def goal_functions(self) -> GoalFunctions | None:
        """Return how the first environment rewards goals; None if it has none."""
        return GoalFunctions.of_env(self._guards[0])

    def _save_episodes(self) -> StateDict:
        return {str(index): get_state(guard.env) for index, guard in enumerate(self._guards)}

    def _load_episodes(self, saved: StateReader) -> None:
        saved.expect(map(str, range(self._num_envs)))
        for index, guard in enumerate(self._guards):
            set_state(guard.env, saved.tree(str(index)))

    def _reset_all(self, seed: int | None) -> ArrayObservation:
        seeds = [None] * self._num_envs if seed is None else spread_seed(seed, self._num_envs)
        observation: ArrayObservation = self._arrays.empty_observation()
        for index, row_seed in enumerate(seeds):
            self._reset_row(observation, index, row_seed)
        return observation

    def _close_all(self) -> None:
        faults: list[EnvironmentFaultError] = []
        for guard in self._guards:
            try:
                guard.close()
            except EnvironmentFaultError as fault:
                faults.append(fault)
        if faults:
            raise self._located("close", faults[0]) from faults[0].__cause__

    def _step_each(
        self, actions: Rows, observation: Rows, reward: Rows, terminated: Rows, truncated: Rows
    ) -> tuple[list[Info], dict[int, Last]]:
        """Step the environments one by one and write what they return into the rows."""
        usual_shape, usual_dtype = self._usual_shape, self._usual_dtype
        infos: list[Info] = []
        ended: dict[int, Last] = {}
        for index, step in self._row_steps:
            try:
                returned = step(actions[index])
            except (Exception, SystemExit) as error:
                raise self._fault(f"step() raised {in_brief(error)}", index) from error
            try:
                single, number, ends, is_cut, info = returned
            except (TypeError, ValueError) as error:
                problem = return_problem("step()", returned, STEP_FIELDS)
                raise self._fault(str(problem), index) from error
            is_usual = (
                single.__class__ is np.ndarray
                and single.dtype is usual_dtype
                and single.shape == usual_shape
            )
            if (
                is_usual
                and number.__class__ in _USUAL_NUMBERS
                and ends.__class__ in _USUAL_FLAGS
                and is_cut.__class__ in _USUAL_FLAGS
                and info.__class__ is dict
            ):
                reward[index] = number
            else:
                self._check_unusual(index, reward, returned)
            if ends or is_cut:
                terminated[index], truncated[index] = ends, is_cut
                ended[index] = deepcopy(single), info.copy()
                info = self._reset_row(observation, index, None)
            elif is_usual:
                observation[index] = single
            else:
                self._arrays.write_row(observation, index, single)
                self._usual_dtype = usual_dtype = getattr(single, "dtype", None)
            infos.append(info.copy())
        return infos, ended

    def _check_unusual(self, index: int, reward: Rows, returned: Sequence[object]) -> None:
        """Check what a step returned by values of unusual types, and take its reward."""
        try:
            self._guards[index].check_step(returned)
        except EnvironmentFaultError as error:
            raise self._located("step", error) from (error.__cause__ or error)
        try:
            reward[index] = returned[1]
        except (TypeError, ValueError) as error:
            raise self._fault(f"the reward is not a number: {in_brief(error)}", index) from error

    def _reset_row(self, observation: ArrayObservation, index: int, seed: int | None) -> Info:
        with self._locating("reset"):
            single, info = self._guards[index].reset(seed=seed)
        self._arrays.write_row(observation, index, single)
        return info

    def _single_actions(self, action: ArrayLike) -> Rows:
        if action.__class__ is not np.ndarray:
            action = self._arrays.convert(action)
        if action.shape != self._action_shape:
            raise action_error(tuple(action.shape), self._action_space, self._num_envs)
        return action
