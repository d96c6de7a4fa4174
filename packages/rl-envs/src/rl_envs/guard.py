"""A thin wrapper around each environment that names it, and the field, in every fault."""

import warnings
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import SupportsFloat, cast

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.wrappers import TimeLimit

from rl_core.env import observation_problem
from rl_core.errors import DataError, EnvironmentFaultError, SpaceError, in_brief
from rl_core.spaces import Space, flatten_observation, leaf_spaces, text_paths
from rl_envs.wrappers import FlattenAction

RESET_FIELDS = ("observation", "info")
STEP_FIELDS = ("observation", "reward", "terminated", "truncated", "info")

_NUMBERS = (bool, int, float, np.number, np.bool_)
_FLAGS = (bool, int, np.bool_, np.integer)


class EnvGuard(gymnasium.Wrapper):
    """Name the environment and the field in every fault; keep final observations apart.

    Vectorizers join what their environments return into one array, and an error there names no
    environment. Each step is checked as far as it costs next to nothing. The first reset and step,
    and each step whose observation changes shape or dtype, are checked thoroughly.

    The last observation of an episode is copied, because a vectorizer that resets in the same
    step holds it while the environment, which may reuse its buffer, is reset.

    Dict and Tuple actions become one vector; see `FlattenAction`.

    Args:
        env: the environment.
        index: its row in the vectorized environment.
        check: False leaves out the checks, but still names the environment if it raises.
    """

    def __init__(self, env: gymnasium.Env, index: int, *, check: bool = True) -> None:
        for name in ("observation_space", "action_space"):
            if not isinstance(space := getattr(env, name, None), gymnasium.Space):
                raise SpaceError(
                    f"{name} of {type(env.unwrapped).__name__} is {type(space).__name__}; expected "
                    "a space, such as gymnasium.spaces.Box(-1.0, 1.0, (3,))"
                )
        super().__init__(FlattenAction(env) if env.action_space.shape is None else env)
        self.index = index
        self.check = check
        self.spec_id, self.max_episode_steps = name_and_limit(env.spec, env)
        self._reset_form: object = None
        self._step_form: object = None
        self._leaves = leaf_spaces(env.observation_space)

    def reset(
        self, *, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[object, dict[str, object]]:
        """Reset the environment.

        Raises:
            EnvironmentFaultError: if it raises, or returns something its spaces do not declare.
        """
        try:
            returned = self.env.reset(seed=seed, options=options)
        except (Exception, SystemExit) as error:
            raise self._fault(f"reset() raised {in_brief(error)}") from error
        if problem := return_problem("reset()", returned, RESET_FIELDS):
            raise self._fault(problem)
        observation, info = returned
        if self.check and (form := _form(observation)) != self._reset_form:
            self._check_observation("reset()", observation)
            self._reset_form = form
        return observation, info

    def step(self, action: object) -> tuple[object, SupportsFloat, bool, bool, dict[str, object]]:
        """Step the environment.

        Raises:
            EnvironmentFaultError: if it raises, or returns something its spaces do not declare.
        """
        try:
            returned = self.env.step(action)
        except (Exception, SystemExit) as error:
            raise self._fault(f"step() raised {in_brief(error)}") from error
        self.check_step(returned)
        observation, reward, terminated, truncated, info = returned
        if terminated or truncated:
            observation = deepcopy(observation)
        return observation, reward, terminated, truncated, info

    def check_step(self, returned: object) -> None:
        """Check the values that a step returned.

        Raises:
            EnvironmentFaultError: if their number is wrong, or one is not of its kind.
        """
        if problem := return_problem("step()", returned, STEP_FIELDS):
            raise self._fault(problem)
        if not self.check:
            return
        observation, reward, terminated, truncated, _ = cast("tuple[object, ...]", returned)
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
            EnvironmentFaultError: if it raises.
        """
        try:
            self.env.close()
        except (Exception, SystemExit) as error:
            raise self._fault(f"close() raised {in_brief(error)}") from error

    def _check_observation(self, call: str, observation: object) -> None:
        try:
            flat = flatten_observation(self.env.observation_space, observation)
        except DataError as error:
            raise self._fault(f"{call}: {error}") from error
        problem = observation_problem(self._leaves, flat, ())
        if problem is not None:
            raise self._fault(f"{call}: {problem}")

    def _check_scalar(
        self, field: str, value: object, kinds: tuple[type, ...], expected: str
    ) -> None:
        if isinstance(value, kinds) or (isinstance(value, np.ndarray) and value.shape == ()):
            return
        got = "None" if value is None else f"a {type(value).__name__}"
        if isinstance(value, np.ndarray):
            got = f"an array of shape {value.shape}"
        raise self._fault(f"step() returned {got} as {field}; expected {expected}")

    def _fault(self, message: str) -> EnvironmentFaultError:
        return EnvironmentFaultError(f"environment {self.index}: {message}")


def shared_spaces(envs: Sequence[EnvGuard]) -> tuple[Space, Space]:
    """Return the observation and the action space of environments that step together.

    Raises:
        SpaceError: if they differ.
    """
    first = envs[0].observation_space, envs[0].action_space
    for env in envs:
        check_shared((env.observation_space, env.action_space), env.index, first, envs[0].index)
    return first


def check_shared(
    spaces: tuple[Space, Space], index: int, expected: tuple[Space, Space], first: int
) -> None:
    """Check the observation and the action space of one of several environments.

    Args:
        spaces: of the environment.
        index: its row.
        expected: those of the first environment.
        first: that one's row.

    Raises:
        SpaceError: if they differ.
    """
    for kind, space, wanted in zip(("observation", "action"), spaces, expected, strict=True):
        if space != wanted:
            raise SpaceError(
                f"the {kind} space of environment {index} is {space}; expected {wanted} like "
                f"environment {first}: environments that step together share their spaces"
            )


def warn_of_texts(name: str, space: Space) -> None:
    """Give notice of texts in observations, which are left out."""
    if texts := text_paths(space):
        warnings.warn(
            f"{name}: the texts {texts} of its observations are left out; no network reads them",
            RuntimeWarning,
            stacklevel=4,
        )


def return_problem(
    call: str,
    returned: object,
    fields: tuple[str, ...],
    info_type: type | tuple[type, ...] = dict,
) -> str | None:
    """Say if a call returned another number of values than Gymnasium's API asks for, or no info.

    Args:
        call: names it in the message.
        returned: whatever it returned.
        fields: what it should have returned; `RESET_FIELDS` or `STEP_FIELDS`.
        info_type: the type of the last of them, or several.
    """
    # Not tuple | list, which would be built anew in every step.
    if not isinstance(returned, (tuple, list)):
        got = "None" if returned is None else f"one {type(returned).__name__}"
    elif len(returned) != len(fields):
        got = f"{len(returned)} values"
    elif not isinstance(returned[-1], info_type):
        return f"{call} returned {returned[-1]!r} as info; expected a dict"
    else:
        return None
    return f"{call} returned {got}; Gymnasium expects {len(fields)} values: {', '.join(fields)}"


def name_and_limit(spec: object, env: object) -> tuple[str, int | None]:
    """Return the id and time limit of an environment; the class's name if it is not registered."""
    if not isinstance(spec, EnvSpec):
        # EnvPool has specs of its own, which name the limit but not the id.
        config = getattr(spec, "config", None)
        limit = getattr(config, "max_episode_steps", None) or _counted_steps(env)
        while isinstance(env, gymnasium.Wrapper):
            if isinstance(env, TimeLimit):
                limit = min(limit or env._max_episode_steps, env._max_episode_steps)
            env = env.env
        return type(env).__name__, limit
    # Atari games count frames themselves, of which a step has at least one.
    own = spec.max_episode_steps or spec.kwargs.get("max_num_frames_per_episode")
    return spec.id, spec.kwargs.get("max_episode_steps", own or _counted_steps(env))


def _counted_steps(env: object) -> int | None:
    """Return the limit of an environment that counts steps itself: one of MiniGrid's or of ours."""
    plain = getattr(env, "unwrapped", None)
    modules = (kind.__module__.partition(".")[0] for kind in type(plain).__mro__)
    return getattr(plain, "max_steps", None) if {"minigrid", "rl_envs"} & {*modules} else None


def _form(observation: object) -> object:
    """Return what tells an observation from one of another shape or dtype, and costs little."""
    if observation.__class__ is np.ndarray:  # first, because most are
        return observation.shape, observation.dtype
    if isinstance(observation, Mapping):
        return tuple(map(_form, observation.values()))
    if isinstance(observation, tuple):
        return tuple(map(_form, observation))
    shape = getattr(observation, "shape", None)
    if shape is not None:
        return shape, getattr(observation, "dtype", None)
    # What is neither array nor number has to be looked at each time: it equals no other.
    return type(observation) if isinstance(observation, int | float) else object()
