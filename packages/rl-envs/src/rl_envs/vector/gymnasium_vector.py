"""The adapter that turns any `gymnasium.vector.VectorEnv` into a `VecEnv`."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from torch import Tensor

from rl_core.config import ComponentSpec
from rl_core.env import EnvStep, GoalFunctions, as_numpy
from rl_core.errors import ConfigError, EnvironmentFaultError, nearest
from rl_core.spaces import Space
from rl_core.stateful import StateReader
from rl_core.types import ArrayLike, ArrayObservation, StateDict
from rl_envs.guard import RESET_FIELDS, STEP_FIELDS, name_and_limit, return_problem
from rl_envs.state import can_save, get_state, set_state
from rl_envs.vector._arrays import Arrays, ArraySpec, Fault, Rows
from rl_envs.vector._envpool import EnvPoolVectorEnv, is_envpool
from rl_envs.vector._gymnasium_processes import ProcessWatch
from rl_envs.vector.base import BaseGymVecEnv, spread_seed

_DEFERRED_STEPS = 32
"""How many steps an accelerator runs between two looks at the results of finite checks."""


class GymVecEnv(BaseGymVecEnv):
    """Any Gymnasium vector environment, in any of its three autoreset modes.

    The mode is read from ``metadata["autoreset_mode"]``; if it is missing, Gymnasium's default,
    next-step, is assumed. In disabled mode the ended rows are reset here, and the step looks like
    one in same-step mode, with the info of that reset under ``info["reset_info"]``.

    Whether arrays are NumPy's or torch's is learned from the first `reset`; until then
    `array_type` says NumPy. Arrays are copied, unless the environment is known not to use them
    again, and are C-contiguous.

    After an `EnvironmentFaultError`, call `reset`, or if that fails too, `close`.

    Args:
        envs: the vector environment; closed by `close`.
        seed: used by the first `reset` that is given none.
        check: look at every reward and observation for NaN and infinity. On an accelerator this
            happens every 32 steps, because each look waits for the device; the error still names
            the step.
        name: what to call it in messages and as `spec_id`; found out if None.
        component: how a recipe names these environments, if it can.
        timeout_s: how long a reset, step or close may take if Gymnasium runs each environment in a
            process of its own.

    Raises:
        SpaceError: if the observation space is not supported.
        ConfigError: if the seed is negative or the autoreset mode unknown.
    """

    vectorization = "native"

    def __init__(
        self,
        envs: VectorEnv,
        *,
        seed: int | None = None,
        check: bool = True,
        name: str | None = None,
        component: ComponentSpec | None = None,
        timeout_s: float = 60.0,
    ) -> None:
        if is_envpool(envs):
            envs = EnvPoolVectorEnv(envs)
        if not isinstance(envs, VectorEnv):
            raise ConfigError(
                f"envs is a {type(envs).__name__}; expected a gymnasium.vector.VectorEnv; "
                "as_vec_env takes single environments, too"
            )
        limit = None
        if isinstance(envs, EnvPoolVectorEnv):
            name, limit = name or envs.name, envs.max_episode_steps
        base = envs.unwrapped
        first = base.envs[0] if isinstance(base, SyncVectorEnv) else base
        found_name, found_limit = name_and_limit(first.spec or base.spec, first)
        super().__init__(
            int(envs.num_envs),
            (envs.single_observation_space, envs.single_action_space),
            name or found_name,
            limit or found_limit,
            seed=seed,
            check=check,
            component=component,
            is_fresh=isinstance(envs, EnvPoolVectorEnv)  # each of its steps has arrays of its own
            or (isinstance(envs, SyncVectorEnv | AsyncVectorEnv) and envs.copy),
        )
        self._envs = envs
        self._mode = _autoreset_mode(envs)
        self._ended: Rows = None  # the rows that the next step only resets, None if there are none
        self._can_save = can_save(envs)
        self._can_call = isinstance(base, SyncVectorEnv | AsyncVectorEnv)
        self._watch = ProcessWatch(base, timeout_s) if isinstance(base, AsyncVectorEnv) else None

    @property
    def resets_in_steps(self) -> bool:
        """Whether a step that only resets follows an episode's last one."""
        return self._mode is AutoresetMode.NEXT_STEP

    def step(self, action: ArrayLike) -> EnvStep:
        """Step every environment once; see `VecEnv.step`."""
        if not self._is_ready:
            raise self._not_ready("step")
        arrays = self._arrays
        actions = self._actions(action)
        self._is_ready = False
        self._steps += 1
        try:  # what `_locating` does, which would cost a microsecond in every step
            returned: Any = self._envs.step(actions)
        except (Exception, SystemExit) as error:
            raise self._located("step", error) from (error.__cause__ or error)
        is_usual = returned.__class__ is tuple and len(returned) == len(STEP_FIELDS)
        if not is_usual or returned[-1].__class__ is not dict:
            self._refuse_other("step()", returned, STEP_FIELDS)
        raw, raw_reward, raw_terminated, raw_truncated, info = returned
        observation = arrays.take_observation(raw)
        reward = arrays.take(arrays.reward, raw_reward)
        terminated = arrays.take(arrays.terminated, raw_terminated)
        truncated = arrays.take(arrays.truncated, raw_truncated)
        resets, self._ended = self._ended, None
        if resets is None:
            valid = arrays.every_row()
        else:
            valid = ~resets
            reward[resets] = 0.0
            terminated &= valid
            truncated &= valid
        final_observation: ArrayObservation | None = None
        if (ended := arrays.find_ended(terminated, truncated)) is not None:
            if self._mode is AutoresetMode.NEXT_STEP:
                self._ended = ended
            else:
                observation, final_observation, info = self._finish(observation, ended, info)
        arrays.check_step(observation, reward, final_observation, self._steps, self._check)
        self._is_ready = True
        return EnvStep(observation, reward, terminated, truncated, final_observation, valid, info)

    def goal_functions(self) -> GoalFunctions | None:
        """Return how goals are rewarded; None if there are none.

        If the environments run in processes of their own, another one is built here to ask.
        """
        with self._locating("goal_functions"):
            return GoalFunctions.of_env(self._envs)

    def _reset_all(self, seed: int | None) -> ArrayObservation:
        env_seed: int | list[int] | None = None
        if seed is not None:
            is_gymnasium = isinstance(self._envs.unwrapped, SyncVectorEnv | AsyncVectorEnv)
            seeds = spread_seed(seed, self._num_envs if is_gymnasium else 1)
            env_seed = seeds if is_gymnasium else seeds[0]
        raw, _ = self._reset_envs(env_seed, None)
        array: Any = raw
        while isinstance(array, Mapping | tuple):
            array = next(iter(array.values() if isinstance(array, Mapping) else array), None)
        if isinstance(array, Tensor) and not isinstance(self._arrays, _TorchArrays):
            self._arrays = _TorchArrays(
                self._observation_space, self._num_envs, self._fault, array.device
            )
        self._ended = None
        observation: ArrayObservation = self._arrays.take_observation(raw)
        return observation

    def _call_each(self, name: str, arguments: Sequence[object]) -> Iterable[object]:
        base: Any = self._envs.unwrapped
        found: Iterable[object] = base.call(name, *arguments)
        return found

    def _save_episodes(self) -> StateDict:
        ended = ~self._arrays.every_row() if self._ended is None else self._ended
        return {"ended": torch.as_tensor(ended).clone(), "envs": get_state(self._envs)}

    def _load_episodes(self, saved: StateReader) -> None:
        self._reset_all(None)  # which shows of what kind its arrays are
        every_row = torch.as_tensor(self._arrays.every_row())
        ended = self._arrays.convert(saved.tensor("ended", like=every_row).clone())
        self._ended = ended if ended.any() else None
        set_state(self._envs, saved.tree("envs"))

    def _close_all(self) -> None:
        with self._locating("close"):
            if self._watch is not None:
                self._watch.close()
            self._envs.close()

    def _located(self, call: str, error: BaseException) -> EnvironmentFaultError:
        if self._watch is not None and isinstance(error, EOFError | ConnectionError):
            error = self._watch.find_dead() or error
        return super()._located(call, error)

    def _finish(
        self, observation: ArrayObservation, ended: Rows, info: Mapping[str, object]
    ) -> tuple[ArrayObservation, ArrayObservation | None, Mapping[str, object]]:
        """Return next observation, final observation and info of a step with ended rows."""
        arrays = self._arrays
        if self._mode is AutoresetMode.DISABLED:
            mask = as_numpy(ended)
            if not mask.any():
                return observation, None, info
            raw, reset_info = self._reset_envs(None, {"reset_mask": mask})
            begun = arrays.select(ended, arrays.take_observation(raw), observation)
            return begun, observation, {**info, "reset_info": reset_info}
        given = info.get("final_obs")
        if given is None:
            if rows := arrays.indices(ended):
                raise self._fault(
                    "the episode ended without info['final_obs']; expected its last observation "
                    "there, as same-step autoreset requires",
                    rows[0],
                )
            return observation, None, info
        if isinstance(given, list) or (isinstance(given, np.ndarray) and given.dtype == object):
            singles = {index: given[index] for index in arrays.indices(ended)}
            return observation, arrays.replace_rows(observation, singles), info
        return observation, arrays.select(ended, arrays.take_observation(given), observation), info

    def _reset_envs(
        self, seed: int | list[int] | None, options: dict[str, object] | None
    ) -> tuple[Any, ...]:
        with self._locating("reset"):
            returned = self._envs.reset(seed=seed, options=options)  # type: ignore[arg-type]  # Sync and Async take a list
        self._refuse_other("reset()", returned, RESET_FIELDS)
        observation, info = returned
        return observation, info

    def _refuse_other(self, call: str, returned: object, fields: tuple[str, ...]) -> None:
        """Refuse what has another number of values than Gymnasium's API asks for, or no info."""
        if problem := return_problem(call, returned, fields, (dict, Mapping)):
            raise self._fault(problem)


class _TorchArrays(Arrays):
    """Operations on tensors, without waiting for an accelerator.

    Args:
        space: of a single observation.
        num_envs: ``B``.
        fault: builds the errors.
        device: where the environment's tensors are.
    """

    array_type = "torch"

    def __init__(self, space: Space, num_envs: int, fault: Fault, device: torch.device) -> None:
        super().__init__(space, num_envs, fault)
        self.kind, self.convert = Tensor, partial(torch.as_tensor, device=device)
        self.copy, self.where = torch.clone, torch.where
        self._every_row = torch.ones(num_envs, dtype=torch.bool, device=device)
        self.waits = device.type == "cpu"
        self._looked_at = 0

    def take(self, spec: ArraySpec, raw: object) -> Rows:
        """See `Arrays.take`."""
        tensor = self._checked(spec, raw, None).detach()
        return tensor.to(spec.torch_dtype, copy=True, memory_format=torch.contiguous_format)

    def find_ended(self, terminated: Rows, truncated: Rows) -> Rows:
        """See `Arrays.find_ended`."""
        ended = terminated | truncated
        return None if self.waits and not ended.any() else ended

    def check_values(self, spec: ArraySpec, rows: Rows, step: int) -> None:
        """See `Arrays.check_values`."""
        if not rows.is_floating_point():
            return
        bad = ~torch.isfinite(rows).reshape(len(rows), -1).all(dim=1)
        if spec.field not in self._first_bad:
            self._first_bad[spec.field] = torch.full_like(bad, -1, dtype=torch.int64)
        first = self._first_bad[spec.field]
        first.masked_fill_(bad & (first < 0), step)
        if self.waits or step - self._looked_at >= _DEFERRED_STEPS:
            self._looked_at = step
            self.raise_deferred()

    def _fits(self, array: Rows, spec: ArraySpec) -> bool:
        dtype = spec.torch_dtype
        if dtype.is_floating_point:
            return not array.is_complex()
        if array.is_complex() or array.is_floating_point():
            return False
        if dtype is torch.bool or array.dtype in (dtype, torch.bool):
            return True
        given, wanted = torch.iinfo(array.dtype), torch.iinfo(dtype)
        fits_whole = wanted.min <= given.min and given.max <= wanted.max
        return fits_whole or bool((array.to(dtype) == array).all())


def _autoreset_mode(envs: VectorEnv) -> AutoresetMode:
    """Return how a vector environment resets ended rows; next-step if it does not say."""
    declared = envs.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
    try:
        return AutoresetMode(declared)
    except ValueError as error:
        known = [mode.value for mode in AutoresetMode]
        raise ConfigError(
            f"{envs} declares autoreset_mode={declared!r} in its metadata{nearest('', known)}"
        ) from error
