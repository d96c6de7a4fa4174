"""Environments stepped one after the other in this process."""

from collections.abc import Sequence
from copy import deepcopy
from typing import Literal, cast

import gymnasium
import numpy as np
from gymnasium.vector.utils import batch_space, iterate

from rl_core.config import ComponentSpec
from rl_core.env import EnvStep, GoalFunctions, VecEnv, action_error, action_shape, spread_seed
from rl_core.errors import ConfigError, EnvironmentFaultError, SpaceError
from rl_core.spaces import LEAF_TYPES, Space, event_shape
from rl_core.types import ArrayLike, ArrayObservation, StateDict
from rl_envs._arrays import Column, NumpyArrays, Rows
from rl_envs._layout import Layout
from rl_envs._origin import describe_spec
from rl_envs._progress import Progress
from rl_envs._told import Info, Last, ToldInfo
from rl_envs.guard import EnvGuard

_USUAL_NUMBERS = frozenset({float, np.float64, np.float32})
_USUAL_FLAGS = frozenset({bool, np.bool_})


class SyncVecEnv(VecEnv):
    """A list of Gymnasium environments, each reset in the step that ends its episode.

    A vector step costs little more than the steps of its environments: answers are written into
    the rows of new arrays, answers of the usual types are taken without a further look, and
    ``info`` is put together only for who reads it. Read it before the next step if an environment
    writes over arrays that it told.

    After an `EnvironmentFaultError`, `reset` it, or where that fails too, `close` it.

    Args:
        envs: the environments; closed by `close`. Those that are not guarded yet will be.
        seed: used by the first `reset` that is given none.
        check: look at every reward and observation for NaN, infinity and categories that do not
            exist, and for another shape or kind of dtype than its space declares. Bounds of a Box
            are not checked: many environments step over their own.
        component: how a recipe names these environments, when it can.

    Raises:
        ConfigError: when there are no environments, or the seed is negative.
        SpaceError: when the observation space is not supported, or the spaces differ.
    """

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
        # The guards are asked about resets, and about answers of unusual types.
        self._row_steps = [(index, guard.env.step) for index, guard in enumerate(self._guards)]
        self._num_envs = len(envs)
        self._observation_space, self._action_space = _common_spaces(self._guards)
        self._check = check
        self._component = component
        first = self._guards[0].env
        name, self._max_episode_steps = describe_spec(first.spec, first.unwrapped)
        self._progress = Progress(name, seed)

        self._arrays = NumpyArrays(self._num_envs, self._progress.fault, is_fresh=True)
        self._layout = Layout(self._observation_space, self._num_envs, self._arrays)
        self._reward = Column.of_rewards(self._num_envs)
        is_leaf = isinstance(self._observation_space, LEAF_TYPES)
        self._shape = event_shape(self._observation_space) if is_leaf else None
        self._usual_dtype: object = (
            None  # of a single observation; learned from one that was accepted
        )
        self._action_shape = action_shape(self._action_space, self._num_envs)
        self._is_ready = False
        self._is_first_step = True

    @property
    def envs(self) -> tuple[gymnasium.Env, ...]:
        """The environments, for rendering and looking inside; not to be stepped or reset."""
        return tuple(guard.env for guard in self._guards)

    @property
    def num_envs(self) -> int:
        """How many environments step together, ``B``."""
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
        """What kind of arrays `reset` and `step` answer: NumPy's."""
        return "numpy"

    @property
    def spec_id(self) -> str:
        """The registered id, or the class name of the environment."""
        return self._progress.name

    @property
    def component(self) -> ComponentSpec | None:
        """How a recipe names these environments."""
        return self._component

    @property
    def max_episode_steps(self) -> int | None:
        """The number of steps after which an episode is truncated, where that is known."""
        return self._max_episode_steps

    def reset(self, seed: int | None = None) -> ArrayObservation:
        """Begin a new episode in every environment; see `VecEnv.reset`."""
        self._progress.require_open("reset")
        seed = self._progress.seed_for_reset(seed)
        seeds = [None] * self._num_envs if seed is None else spread_seed(seed, self._num_envs)
        self._is_ready = False
        observation = self._layout.empty()
        for index, row_seed in enumerate(seeds):
            self._begin(observation, index, row_seed)
        self._layout.check_thoroughly(observation)
        if self._check:
            self._layout.check_values(observation, self._progress.steps)
        self._is_ready = True
        return observation

    def step(self, action: ArrayLike) -> EnvStep:
        """Step every environment once; see `VecEnv.step`."""
        progress = self._progress
        if not self._is_ready:
            progress.require_open("step")
            raise progress.not_reset()
        actions = self._single_actions(action)
        self._is_ready = False
        progress.steps += 1
        observation = self._layout.empty()
        reward = np.empty(self._num_envs, np.float32)
        terminated = np.zeros(self._num_envs, np.bool_)
        truncated = np.zeros(self._num_envs, np.bool_)
        told, ended = self._step_each(actions, observation, reward, terminated, truncated)

        final_observation: ArrayObservation | None = None
        if ended:
            last = {index: single for index, (single, _) in ended.items()}
            final_observation = self._layout.with_rows(observation, last, last)
        if self._is_first_step:
            self._layout.check_thoroughly(observation)
            self._is_first_step = False
        if self._check:
            self._arrays.check_values(reward, self._reward, progress.steps)
            self._layout.check_values(observation, progress.steps)
            if final_observation is not None:
                self._layout.check_values(final_observation, progress.steps)
        self._is_ready = True
        return EnvStep(
            observation,
            reward,
            terminated,
            truncated,
            final_observation,
            self._arrays.every_row(),
            ToldInfo(told, ended),
        )

    def close(self) -> None:
        """Close all environments; calling it again does nothing.

        Raises:
            EnvironmentFaultError: when one raises, the first of them, after all were closed.
        """
        if self._progress.closed:
            return
        self._progress.closed = True
        self._is_ready = False
        faults: list[EnvironmentFaultError] = []
        for guard in self._guards:
            try:
                guard.close()
            except EnvironmentFaultError as fault:
                faults.append(fault)
        if faults:
            raise self._progress.wrapped("close", faults[0]) from faults[0].__cause__

    def goal_functions(self) -> GoalFunctions | None:
        """Return how the first environment rewards goals; None where it has none."""
        return GoalFunctions.of_env(self._guards[0])

    def state_dict(self) -> StateDict:
        """Return the seed and the number of steps; running episodes are not part of it."""
        return self._progress.state_dict()

    def load_state_dict(self, state: StateDict) -> None:
        """Go on counting steps, and seed the next `reset` by seed and count.

        Raises:
            CheckpointError: when the state does not fit.
        """
        self._progress.load_state_dict(state)
        self._is_ready = False

    def _step_each(
        self, actions: Rows, observation: Rows, reward: Rows, terminated: Rows, truncated: Rows
    ) -> tuple[list[Info], dict[int, Last]]:
        """Step the environments one by one and write their answers into the rows."""
        shape, usual_dtype = self._shape, self._usual_dtype
        told: list[Info] = []
        ended: dict[int, Last] = {}
        for index, step in self._row_steps:
            try:
                answer = step(actions[index])
            except (Exception, SystemExit) as error:
                fault = self._guards[index].raised("step()", error)
                raise self._progress.wrapped("step", fault) from error
            try:
                single, number, ends, is_cut, info = answer
            except (TypeError, ValueError) as error:
                fault = self._guards[index].miscounted(answer)
                raise self._progress.wrapped("step", fault) from error
            is_usual = (
                single.__class__ is np.ndarray
                and single.dtype is usual_dtype
                and single.shape == shape
            )
            if not (
                is_usual
                and number.__class__ in _USUAL_NUMBERS
                and ends.__class__ in _USUAL_FLAGS
                and is_cut.__class__ in _USUAL_FLAGS
                and info.__class__ is dict
            ):
                self._look_at(index, reward, (single, number, ends, is_cut, info))
            else:
                reward[index] = number
            if ends or is_cut:
                terminated[index], truncated[index] = ends, is_cut
                ended[index] = deepcopy(single), info.copy()
                info = self._begin(observation, index, None)
            elif is_usual:
                observation[index] = single
            else:
                self._layout.write(observation, index, single)
                self._usual_dtype = usual_dtype = getattr(single, "dtype", None)
            told.append(info.copy())
        return told, ended

    def _look_at(
        self, index: int, reward: Rows, answer: tuple[object, object, object, object, object]
    ) -> None:
        """Check an answer of unusual types and take its reward."""
        guard = self._guards[index]
        try:
            guard.check_answer(*answer)
        except EnvironmentFaultError as error:
            raise self._progress.wrapped("step", error) from (error.__cause__ or error)
        try:
            reward[index] = answer[1]
        except (TypeError, ValueError) as error:
            raise self._progress.wrapped("step", guard.raised("step()", error)) from error

    def _begin(self, observation: ArrayObservation, index: int, seed: int | None) -> Info:
        with self._progress.naming("reset"):
            single, info = self._guards[index].reset(seed=seed)
        self._layout.write(observation, index, single)
        return info

    def _single_actions(self, action: ArrayLike) -> Rows:
        if self._action_shape is None:
            with self._progress.naming("step"):
                return list(iterate(batch_space(self._action_space, self._num_envs), action))
        if action.__class__ is not np.ndarray:
            action = self._arrays.action(action)
        if action.shape != self._action_shape:
            raise action_error(tuple(action.shape), self._action_space, self._num_envs)
        return action


def _common_spaces(envs: Sequence[gymnasium.Env]) -> tuple[Space, Space]:
    observations = cast("Space", envs[0].observation_space)
    actions = cast("Space", envs[0].action_space)
    for index, env in enumerate(envs):
        for name, first, other in (
            ("observation", observations, env.observation_space),
            ("action", actions, env.action_space),
        ):
            if first != other:
                raise SpaceError(
                    f"the {name} space of environment {index} is {other}; expected {first}, as "
                    "environment 0 has: environments that step together share their spaces"
                )
    return observations, actions
