"""A thin wrapper around each environment, so that a fault can be told by its place."""

from collections.abc import Mapping
from copy import deepcopy
from typing import SupportsFloat

import gymnasium
import numpy as np

from rl_core.env import observation_problem
from rl_core.env.checks import RESET_ANSWER, STEP_ANSWER, answer_problem
from rl_core.errors import DataError, EnvironmentFaultError, in_brief
from rl_core.spaces import flatten_observation, leaf_spaces

_NUMBERS = (bool, int, float, np.number, np.bool_)
_FLAGS = (bool, int, np.bool_, np.integer)


class EnvGuard(gymnasium.Wrapper):
    """Name the environment and the field in every fault; keep final observations apart.

    Vectorisers join the answers of their environments into one array, and an error there names no
    environment. Each step is checked as far as it costs next to nothing; the first reset and step,
    and each whose observation has another shape or dtype than the one before, thoroughly.

    The last observation of an episode is copied, because a vectoriser that resets in the same
    step holds it while the environment, which may reuse its buffer, is reset.

    Args:
        env: the environment.
        index: its row in the vectorised environment.
        check: False leaves out the checks, but still names the environment when it raises.
    """

    def __init__(self, env: gymnasium.Env, index: int, *, check: bool = True) -> None:
        super().__init__(env)
        self.index = index
        self.check = check
        self.spec_id = env.spec.id if env.spec is not None else type(env.unwrapped).__name__
        self.max_episode_steps = env.spec.max_episode_steps if env.spec is not None else None
        self._reset_form: object = None
        self._step_form: object = None
        self._leaves = leaf_spaces(env.observation_space)

    def reset(
        self, *, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[object, dict[str, object]]:
        """Reset the environment.

        Raises:
            EnvironmentFaultError: when it raises or answers something its spaces do not declare.
        """
        try:
            answer = self.env.reset(seed=seed, options=options)
        except (Exception, SystemExit) as error:
            raise self.raised("reset()", error) from error
        if not isinstance(answer, tuple | list) or len(answer) != len(RESET_ANSWER):
            raise self._fault(answer_problem("reset()", answer, RESET_ANSWER))
        observation, info = answer
        self._check_info("reset()", info)
        if self.check and (form := _form(observation)) != self._reset_form:
            self._check_observation("reset()", observation)
            self._reset_form = form
        return observation, info

    def step(self, action: object) -> tuple[object, SupportsFloat, bool, bool, dict[str, object]]:
        """Step the environment.

        Raises:
            EnvironmentFaultError: when it raises or answers something its spaces do not declare.
        """
        try:
            answer = self.env.step(action)
        except (Exception, SystemExit) as error:
            raise self.raised("step()", error) from error
        if not isinstance(answer, tuple | list) or len(answer) != len(STEP_ANSWER):
            raise self.miscounted(answer)
        observation, reward, terminated, truncated, info = answer
        self.check_answer(observation, reward, terminated, truncated, info)
        if terminated or truncated:
            observation = deepcopy(observation)
        return observation, reward, terminated, truncated, info

    def check_answer(
        self,
        observation: object,
        reward: object,
        terminated: object,
        truncated: object,
        info: object,
    ) -> None:
        """Compare what a step answered with what it may answer.

        Raises:
            EnvironmentFaultError: when a part is not of its kind.
        """
        self._check_info("step()", info)
        if not self.check:
            return
        if type(reward) is not float:
            self._check_scalar("reward", reward, _NUMBERS, "a number")
        if type(terminated) is not bool or type(truncated) is not bool:
            self._check_scalar("terminated", terminated, _FLAGS, "True or False")
            self._check_scalar("truncated", truncated, _FLAGS, "True or False")
        if (form := _form(observation)) != self._step_form:
            self._check_observation("step()", observation)
            self._step_form = form

    def close(self) -> None:
        """Close the environment.

        Raises:
            EnvironmentFaultError: when it raises.
        """
        try:
            self.env.close()
        except (Exception, SystemExit) as error:
            raise self.raised("close()", error) from error

    def raised(self, call: str, error: BaseException) -> EnvironmentFaultError:
        """Build the error that says which environment raised, and in which call."""
        return self._fault(f"{call} raised {in_brief(error)}")

    def miscounted(self, answer: object) -> EnvironmentFaultError:
        """Build the error of a step whose answer has another number of values."""
        return self._fault(answer_problem("step()", answer, STEP_ANSWER))

    def _check_observation(self, call: str, observation: object) -> None:
        try:
            flat = flatten_observation(self.env.observation_space, observation)
        except DataError as error:
            raise self._fault(f"{call}: {error}") from error
        problem = observation_problem(self._leaves, flat, ())
        if problem is not None:
            raise self._fault(f"{call}: {problem}")

    def _check_info(self, call: str, info: object) -> None:
        if not isinstance(info, dict):
            raise self._fault(f"{call} answered {info!r} as info; expected a dict")

    def _check_scalar(
        self, field: str, value: object, kinds: tuple[type, ...], expected: str
    ) -> None:
        if isinstance(value, kinds) or (isinstance(value, np.ndarray) and value.shape == ()):
            return
        shape = f" of shape {value.shape}" if isinstance(value, np.ndarray) else ""
        raise self._fault(
            f"step() answered {type(value).__name__}{shape} as {field}; expected {expected}"
        )

    def _fault(self, message: str) -> EnvironmentFaultError:
        return EnvironmentFaultError(f"environment {self.index}: {message}")


def _form(observation: object) -> object:
    """Return what tells an observation of another kind from the last one, and costs little."""
    if isinstance(observation, Mapping):
        return tuple(map(_form, observation.values()))
    if isinstance(observation, tuple):
        return tuple(map(_form, observation))
    shape = getattr(observation, "shape", None)
    if shape is not None:
        return shape, getattr(observation, "dtype", None)
    # What is neither array nor number has to be looked at each time: it equals no other.
    return type(observation) if isinstance(observation, int | float) else object()
