"""Environments stepped one after the other in this process, and their infos."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from typing import TypeAlias, cast

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv

from rl_core.config import ComponentSpec
from rl_core.env import EnvStep, GoalFunctions
from rl_core.errors import ConfigError, EnvironmentFaultError, in_brief
from rl_core.stateful import StateReader
from rl_core.types import ArrayLike, ArrayObservation, StateDict
from rl_envs.guard import STEP_FIELDS, EnvGuard, return_problem, shared_spaces
from rl_envs.state import can_save, get_state, set_state
from rl_envs.vector._arrays import Info, NumpyArrays, Rows
from rl_envs.vector.base import BaseGymVecEnv, spread_seed

Last: TypeAlias = tuple[object, Info]
"""Last observation and last info of an episode."""

_LAST_KEYS = ("final_obs", "final_info")
"""Gymnasium's names for the parts of `Last`."""

_USUAL_NUMBERS = frozenset({float, int, np.float64, np.float32})
_USUAL_FLAGS = frozenset({bool, np.bool_})


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
        ConfigError: if there are no environments, or one twice, or the seed is negative.
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
        for env in envs:
            if not isinstance(env, gymnasium.Env):
                raise ConfigError(
                    f"envs holds a {type(env).__name__}; expected environments that are built; to "
                    "build them by a function, use make_vec"
                )
        self._guards = [
            env if isinstance(env, EnvGuard) else EnvGuard(env, index, check=check)
            for index, env in enumerate(envs)
        ]
        if len({id(guard.unwrapped) for guard in self._guards}) < len(envs):
            raise ConfigError(
                f"an environment ({self._guards[0].spec_id}) was given more than once, and would "
                "take several actions in each step; expected a function that builds a new one in "
                "each call"
            )
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
        actions = self._actions(action)
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
        arrays.check_step(observation, reward, final_observation, self._steps, self._check)
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

    def _call_each(self, name: str, arguments: Sequence[object]) -> Iterable[object]:
        for guard in self._guards:
            found = guard.env.get_wrapper_attr(name)
            yield found(*arguments) if arguments or callable(found) else found

    def _save_episodes(self) -> StateDict:
        # In the form of `ProcessVecEnv`: each restores what the other saved.
        rows = {str(index): get_state(guard.env) for index, guard in enumerate(self._guards)}
        return {"rows": rows, "observation": {}}

    def _load_episodes(self, saved: StateReader) -> None:
        rows = saved.reader("rows")
        rows.expect(map(str, range(self._num_envs)))
        for index, guard in enumerate(self._guards):
            set_state(guard.env, rows.tree(str(index)))

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
                self._usual_dtype = usual_dtype = self._arrays.fitting_dtype(single)
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


class LazyInfo(Mapping[str, object]):
    """The infos of one step in Gymnasium's form for vectors; a key is joined when it is read.

    Each key holds an array of ``B`` values, beside a mask under ``_key`` that says which
    environments reported it. Values of several kinds are in an array of objects, and dicts are
    joined to a mapping like this one. Rows that ended hold the info of their reset; the info and
    the observation of their last step are under ``final_info`` and ``final_obs``.

    Args:
        infos: one per environment.
        ended: last observation and info of the rows that ended, by row.
    """

    __slots__ = ("_ended", "_infos", "_joined")

    def __init__(self, infos: Sequence[Info], ended: Mapping[int, Last]) -> None:
        self._infos = infos
        self._ended = ended
        self._joined = Info()

    def parts(self) -> tuple[Sequence[Info], Mapping[int, Last]]:
        """Return the infos and the ends it was made of."""
        return self._infos, self._ended

    def __getitem__(self, key: str) -> object:
        if key not in self._joined:
            self._joined[key] = self._join(key)
        return self._joined[key]

    def __iter__(self) -> Iterator[str]:
        keys: dict[str, None] = {}  # in order, without duplicates
        for index, info in enumerate(self._infos):
            for key in (*_LAST_KEYS, *info) if index in self._ended else info:
                keys[key] = keys[f"_{key}"] = None
        return iter(keys)

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __repr__(self) -> str:
        return repr(dict(self))

    def _join(self, key: str) -> object:
        num_envs = len(self._infos)
        if values := self._values(key):
            return _join_values(key, values, num_envs)
        for name in self:
            if f"_{name}" == key and (reported := self._values(name)):
                return np.isin(np.arange(num_envs), list(reported))
        raise KeyError(key)

    def _values(self, key: str) -> dict[int, object]:
        """Return what was reported under a key, by row."""
        values = {index: info[key] for index, info in enumerate(self._infos) if key in info}
        if key in _LAST_KEYS:
            place = _LAST_KEYS.index(key)
            values = {index: last[place] for index, last in self._ended.items()} | values
        return values


def _join_values(key: str, values: Mapping[int, object], num_envs: int) -> object:
    """Join one value for each of some rows, in Gymnasium's way where that is possible."""
    if key != "final_obs" and all(isinstance(value, dict) for value in values.values()):
        return LazyInfo([cast("Info", values.get(row, {})) for row in range(num_envs)], {})
    # Gymnasium would cast and broadcast other kinds to that of the first value.
    kinds = {
        (type(value), getattr(value, "dtype", None), getattr(value, "shape", None))
        for value in values.values()
    }
    if key != "final_obs" and len(kinds) == 1:
        vector, joined = VectorEnv(), Info()  # which has Gymnasium's own way
        vector.num_envs = num_envs
        with suppress(Exception):  # of whatever kinds of values
            for row, value in values.items():
                joined = vector._add_info(joined, {key: value}, row)
            return joined[key]
    objects = np.full(num_envs, None, dtype=object)
    for row, value in values.items():
        objects[row] = value
    return objects
