"""What reaching, or not reaching, a goal means in an environment."""

from collections.abc import Callable, Mapping
from typing import TypeAlias

import gymnasium
import numpy as np
import numpy.typing as npt

from rl_core.errors import EnvironmentFaultError, in_brief
from rl_core.types import Array

GoalFunction: TypeAlias = Callable[[Array, Array, Mapping[str, object]], object]
"""Of achieved goals `(N, ...)`, desired goals `(N, ...)` and an info, which is empty."""


class GoalFunctions:
    """Reward and end of transitions as functions of goals, as in Gymnasium-Robotics' ``GoalEnv``.

    Each gets the goals achieved after N transitions, the desired ones, and an empty info, and
    answers N values. One that answers a single value instead understands no batches, and is asked
    for each transition.

    Args:
        compute_reward: the reward of a transition.
        compute_terminated: whether the episode ends with a transition; None where its end has
            nothing to do with goals.
        name: what whoever gave the first one calls it, for messages.
    """

    def __init__(
        self,
        compute_reward: GoalFunction,
        compute_terminated: GoalFunction | None = None,
        *,
        name: str = "compute_reward",
    ) -> None:
        self.name = name
        self.compute_reward = compute_reward
        self.compute_terminated = compute_terminated

    @classmethod
    def of_env(cls, env: object) -> "GoalFunctions | None":
        """Take the functions of an environment, or of what it wraps.

        Args:
            env: a single environment, or a vector environment.

        Returns:
            None when it has no ``compute_reward``.
        """
        compute_reward = _method(env, "compute_reward")
        if compute_reward is None:
            return None
        return cls(compute_reward, _method(env, "compute_terminated"))

    def rewards(self, achieved: Array, desired: Array) -> npt.NDArray[np.float32]:
        """Compute the rewards of transitions.

        Args:
            achieved: shape `(N, ...)`, after the transitions.
            desired: shape `(N, ...)`.

        Returns:
            Shape `(N,)`.

        Raises:
            EnvironmentFaultError: when the function raises, or answers something else than N
                finite numbers.
        """
        answers = _asked(self.name, self.compute_reward, achieved, desired)
        if answers.dtype.kind not in "fiub":
            raise EnvironmentFaultError(f"{self.name} answered {answers.dtype}; expected numbers")
        rewards = answers.astype(np.float32)
        if not np.isfinite(rewards).all():
            row = int(np.flatnonzero(~np.isfinite(rewards))[0])
            raise EnvironmentFaultError(
                f"{self.name} answered {rewards[row]} for the achieved goal "
                f"{achieved[row].tolist()} and the desired goal {desired[row].tolist()}; expected "
                "a finite number"
            )
        return rewards

    def terminations(self, achieved: Array, desired: Array) -> npt.NDArray[np.bool_] | None:
        """Compute which transitions end their episode.

        Args:
            achieved: shape `(N, ...)`, after the transitions.
            desired: shape `(N, ...)`.

        Returns:
            Shape `(N,)`; None when that has nothing to do with goals.

        Raises:
            EnvironmentFaultError: when the function raises, or answers something else than N
                truth values.
        """
        if self.compute_terminated is None:
            return None
        ends = _asked("compute_terminated", self.compute_terminated, achieved, desired)
        if ends.dtype.kind not in "biu":
            raise EnvironmentFaultError(
                f"compute_terminated answered {ends.dtype}; expected True or False for each goal"
            )
        return ends.astype(np.bool_)


def _method(env: object, name: str) -> GoalFunction | None:
    if isinstance(env, gymnasium.Env):
        found = env.get_wrapper_attr(name) if env.has_wrapper_attr(name) else None
    else:
        found = getattr(env, name, None)
    return found if callable(found) else None


def _asked(name: str, function: GoalFunction, achieved: Array, desired: Array) -> Array:
    count = len(achieved)
    try:
        answers = np.asarray(function(achieved, desired, {}))
        if answers.shape == () and count:
            pairs = zip(achieved, desired, strict=True)
            answers = np.stack([np.asarray(function(*pair, {})) for pair in pairs])
    except Exception as error:
        raise EnvironmentFaultError(
            f"{name} raised {in_brief(error)}; it is called with achieved goals, desired goals and "
            "an empty info"
        ) from error
    if answers.shape != (count,):
        raise EnvironmentFaultError(
            f"{name} answered shape {answers.shape} for goals of shape {achieved.shape}; expected "
            f"{(count,)}"
        )
    return answers
