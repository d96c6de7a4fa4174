"""The adapter that makes a `VecEnv` of any `gymnasium.vector.VectorEnv`."""

from collections.abc import Mapping
from typing import Any, Literal, cast

import numpy as np
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from torch import Tensor

from rl_core.config import ComponentSpec
from rl_core.env import EnvStep, GoalFunctions, VecEnv, action_error, action_shape, spread_seed
from rl_core.env.checks import RESET_ANSWER, STEP_ANSWER, answer_problem
from rl_core.spaces import Space
from rl_core.types import ArrayLike, ArrayObservation, StateDict
from rl_envs._arrays import Arrays, Column, NumpyArrays, Rows, TorchArrays
from rl_envs._layout import Layout
from rl_envs._origin import autoreset_mode, describe
from rl_envs._progress import Progress


class GymVecEnv(VecEnv):
    """Any Gymnasium vector environment, in any of its three autoreset modes.

    The mode is read from ``metadata["autoreset_mode"]``; where it is missing, Gymnasium's default
    is assumed, which is next-step. In disabled mode the ended rows are reset here, and the step
    looks like one in same-step mode, with what that reset told under ``info["reset_info"]``.

    Whether arrays are NumPy's or torch's is learned from the first `reset`; until then
    `array_type` says NumPy. Arrays are copied, unless the environment is known not to use them
    again, and are C-contiguous.

    After an `EnvironmentFaultError`, `reset` it, or where that fails too, `close` it.

    Args:
        envs: the vector environment; closed by `close`.
        seed: used by the first `reset` that is given none.
        check: look at every reward and observation for NaN and infinity. On an accelerator the
            look is taken every 32 steps, because each one waits for the device; the error names
            the step all the same.
        name: what to call it in messages and as `spec_id`; found out when None.
        max_episode_steps: found out when None, where that is possible.
        component: how a recipe names these environments, when it can.

    Raises:
        SpaceError: when the observation space is not supported.
        ConfigError: when the seed is negative or the autoreset mode unknown.
    """

    def __init__(
        self,
        envs: VectorEnv,
        *,
        seed: int | None = None,
        check: bool = True,
        name: str | None = None,
        max_episode_steps: int | None = None,
        component: ComponentSpec | None = None,
    ) -> None:
        self._envs = envs
        self._component = component
        self._num_envs = int(envs.num_envs)
        self._observation_space = cast("Space", envs.single_observation_space)
        self._action_space = cast("Space", envs.single_action_space)
        self._mode = autoreset_mode(envs)
        self._check = check
        found_name, found_limit = describe(envs)
        self._progress = Progress(name or found_name, seed)
        self._max_episode_steps = max_episode_steps or found_limit

        # Gymnasium's own vectorisers answer arrays of which they keep no second reference.
        is_fresh = isinstance(envs, SyncVectorEnv | AsyncVectorEnv) and envs.copy
        self._arrays: Arrays = NumpyArrays(self._num_envs, self._progress.fault, is_fresh=is_fresh)
        self._layout = Layout(self._observation_space, self._num_envs, self._arrays)
        rows = (self._num_envs,)
        self._reward = Column.of_rewards(self._num_envs)
        self._terminated = Column.make("terminated", rows, torch.bool)
        self._truncated = Column.make("truncated", rows, torch.bool)
        self._action_shape = action_shape(self._action_space, self._num_envs)
        self._ended: Rows = None  # which rows ended in the last step; None before a reset
        self._is_first_step = True

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
        """What kind of arrays `reset` and `step` answer; known after the first `reset`."""
        return "torch" if isinstance(self._arrays, TorchArrays) else "numpy"

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
        self._ended = None
        self._arrays.settle()
        raw, _ = self._reset(self._seed_for_envs(seed), None)
        self._follow_arrays(raw)
        observation = self._layout.take(raw)
        self._layout.check_thoroughly(observation)
        if self._check:
            self._layout.check_values(observation, self._progress.steps)
        self._ended = ~self._arrays.every_row()
        return observation

    def step(self, action: ArrayLike) -> EnvStep:
        """Step every environment once; see `VecEnv.step`."""
        arrays, layout, progress = self._arrays, self._layout, self._progress
        was_ended, self._ended = self._ended, None
        if was_ended is None:
            progress.require_open("step")
            raise progress.not_reset()
        env_action = arrays.action(action)
        if env_action.shape != self._action_shape and self._action_shape is not None:
            self._ended = was_ended
            raise action_error(env_action.shape, self._action_space, self._num_envs)
        progress.steps += 1
        try:  # what `naming` does, which would cost a microsecond in every step
            answer = self._envs.step(env_action)
        except (Exception, SystemExit) as error:
            raise progress.wrapped("step", error) from (error.__cause__ or error)
        raw, raw_reward, raw_terminated, raw_truncated, told = self._parts(
            "step()", answer, STEP_ANSWER
        )
        observation = layout.take(raw)
        reward = arrays.take(raw_reward, self._reward)
        terminated = arrays.take(raw_terminated, self._terminated)
        truncated = arrays.take(raw_truncated, self._truncated)
        final_observation: ArrayObservation | None = None
        info: Mapping[str, object] = told
        if self._mode is AutoresetMode.NEXT_STEP:
            valid = ~was_ended
            if arrays.may_hold(was_ended):
                reward = arrays.select(valid, reward, 0.0)
                terminated &= valid
                truncated &= valid
            ended = terminated | truncated
        else:
            valid = arrays.every_row()
            ended = terminated | truncated
            if arrays.may_hold(ended):
                observation, final_observation, info = self._finish(observation, ended, info)

        if self._is_first_step:
            layout.check_thoroughly(observation)
            self._is_first_step = False
        if self._check:
            arrays.check_values(reward, self._reward, progress.steps)
            layout.check_values(observation, progress.steps)
            if final_observation is not None:
                layout.check_values(final_observation, progress.steps)
        self._ended = ended
        return EnvStep(observation, reward, terminated, truncated, final_observation, valid, info)

    def close(self) -> None:
        """Close the environments; calling it again does nothing.

        Raises:
            EnvironmentFaultError: when an environment raises while it closes, or a check that
                waited for the device has found something.
        """
        if self._progress.closed:
            return
        self._progress.closed = True
        self._ended = None
        with self._progress.naming("close"):
            self._envs.close()
        self._arrays.settle()

    def goal_functions(self) -> GoalFunctions | None:
        """Return how goals are rewarded; None where there are none.

        Where the environments are in processes of their own, another one is built here to ask.
        """
        base = self._envs.unwrapped
        if isinstance(base, SyncVectorEnv):
            return GoalFunctions.of_env(base.envs[0])
        if not isinstance(base, AsyncVectorEnv):
            return GoalFunctions.of_env(base)
        with self._progress.naming("goal_functions"):
            return GoalFunctions.of_env(next(iter(base.env_fns))())

    def state_dict(self) -> StateDict:
        """Return the seed and the number of steps; running episodes are not part of it."""
        return self._progress.state_dict()

    def load_state_dict(self, state: StateDict) -> None:
        """Go on counting steps, and seed the next `reset` by seed and count.

        So a resumed run neither repeats the episodes it began with nor depends on chance.

        Raises:
            CheckpointError: when the state does not fit.
        """
        self._progress.load_state_dict(state)
        self._ended = None

    def _finish(
        self, observation: ArrayObservation, ended: Rows, info: Mapping[str, object]
    ) -> tuple[ArrayObservation, ArrayObservation | None, Mapping[str, object]]:
        """Answer next observation, final observation and info of a step with ended rows."""
        layout = self._layout
        if self._mode is AutoresetMode.DISABLED:
            mask = np.zeros(self._num_envs, np.bool_)
            mask[self._arrays.indices(ended)] = True
            if not mask.any():
                return observation, None, info
            raw, reset_info = self._reset(None, {"reset_mask": mask})
            begun = layout.select(ended, layout.take(raw), observation)
            return begun, observation, {**info, "reset_info": reset_info}
        given = info.get("final_obs")
        if isinstance(given, list) or (isinstance(given, np.ndarray) and given.dtype == object):
            rows = self._arrays.indices(ended)
            return observation, layout.with_rows(observation, rows, given), info
        if given is not None:
            return observation, layout.select(ended, layout.take(given), observation), info
        for index in self._arrays.indices(ended):
            raise self._progress.fault(
                "the episode ended without info['final_obs']; expected its last observation "
                "there, as same-step autoreset demands",
                index,
            )
        return observation, None, info

    def _reset(
        self, seed: int | list[int] | None, options: dict[str, object] | None
    ) -> tuple[object, Mapping[str, object]]:
        with self._progress.naming("reset"):
            answer = self._envs.reset(seed=seed, options=options)  # type: ignore[arg-type]  # Sync and Async take a list
        raw, info = self._parts("reset()", answer, RESET_ANSWER)
        return raw, info

    def _parts(self, call: str, answer: object, expected: tuple[str, ...]) -> tuple[Any, ...]:
        """Take an answer apart whose last value is the info."""
        if not isinstance(answer, tuple | list) or len(answer) != len(expected):
            raise self._progress.fault(answer_problem(call, answer, expected))
        if not isinstance(answer[-1], Mapping):
            raise self._progress.fault(f"{call} answered {answer[-1]!r} as info; expected a dict")
        return tuple(answer)

    def _seed_for_envs(self, seed: int | None) -> int | list[int] | None:
        if seed is None:
            return None
        if isinstance(self._envs.unwrapped, SyncVectorEnv | AsyncVectorEnv):
            return spread_seed(seed, self._num_envs)
        return spread_seed(seed, 1)[0]

    def _follow_arrays(self, raw: object) -> None:
        while isinstance(raw, Mapping | tuple):
            raw = next(iter(raw.values() if isinstance(raw, Mapping) else raw), None)
        if isinstance(raw, Tensor) and not isinstance(self._arrays, TorchArrays):
            self._arrays = TorchArrays(self._num_envs, self._progress.fault, raw.device)
            self._layout = Layout(self._observation_space, self._num_envs, self._arrays)
