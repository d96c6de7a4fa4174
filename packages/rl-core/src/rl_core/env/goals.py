"""Rewards and terminations of a goal environment as functions of goals, for hindsight replay."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorRewardWrapper, VectorWrapper
from gymnasium.wrappers.vector import NormalizeReward as NormalizeVectorReward

from rl_core.errors import ConfigError, EnvironmentFaultError, in_brief
from rl_core.types import Array

GoalFunction: TypeAlias = Callable[[Array, Array, Mapping[str, object]], object]
"""Takes achieved goals `(N, ...)`, desired goals `(N, ...)` and an empty info."""


class GoalFunctions:
    """Reward and termination as functions of goals, as in Gymnasium-Robotics' ``GoalEnv``.

    Each function is called with the goals achieved after N transitions, the desired goals, and an
    empty info, and returns N values. If it returns a single value or raises, it does not support
    batches and is called for each transition.

    Args:
        compute_reward: the reward of a transition.
        compute_terminated: whether the episode ends with a transition; None if goals do not
            decide that.
        name: what error messages call the first function.
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
        """Take the functions of an environment, or of one that it wraps.

        Reward wrappers outside that one change what its function returns, too.

        Args:
            env: a single environment, or a vector environment. For one whose environments run in
                processes, another one is built here to ask.

        Returns:
            None if it has no ``compute_reward``.

        Raises:
            ConfigError: if a wrapper normalizes rewards by statistics, which only steps move.
        """
        compute_reward, compute_terminated, is_normalized = None, None, False
        changes: list[Callable[[Any], object]] = []
        for layer in _layers(env):
            compute_reward = compute_reward or _method(layer, "compute_reward")
            compute_terminated = compute_terminated or _method(layer, "compute_terminated")
            if compute_reward is not None:
                continue
            if isinstance(layer, gymnasium.wrappers.NormalizeReward | NormalizeVectorReward):
                is_normalized = True
            elif isinstance(layer, gymnasium.RewardWrapper):
                changes.append(layer.reward)
            elif isinstance(layer, VectorRewardWrapper):
                changes.append(partial(_changed, layer))
        if compute_reward is None:
            return None
        if is_normalized:
            raise ConfigError(
                "hindsight computes rewards anew, which NormalizeReward would not scale like the "
                "others; leave this wrapper out"
            )
        if changes:
            compute_reward = partial(_compute_wrapped, compute_reward, changes[::-1])
        return cls(compute_reward, compute_terminated)

    def rewards(self, achieved: Array, desired: Array) -> npt.NDArray[np.float32]:
        """Compute the rewards of transitions.

        Args:
            achieved: shape `(N, ...)`, after the transitions.
            desired: shape `(N, ...)`.

        Returns:
            Shape `(N,)`.

        Raises:
            EnvironmentFaultError: if the function raises, or does not return N finite numbers.
        """
        values = _call(self.name, self.compute_reward, achieved, desired, "fiub", "numbers")
        rewards = values.astype(np.float32)
        if not np.isfinite(rewards).all():
            row = int(np.flatnonzero(~np.isfinite(rewards))[0])
            raise EnvironmentFaultError(
                f"{self.name} returned {rewards[row]} for the achieved goal "
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
            Shape `(N,)`; None if goals do not decide that.

        Raises:
            EnvironmentFaultError: if the function raises, or does not return N booleans.
        """
        function = self.compute_terminated
        if function is None:
            return None
        name, expected = "compute_terminated", "True or False for each goal"
        return _call(name, function, achieved, desired, "biu", expected).astype(np.bool_)


def _layers(env: object) -> Iterator[object]:
    """Go from an environment to the innermost one."""
    layer: Any = env
    while layer is not None:
        yield layer
        if isinstance(layer, SyncVectorEnv):
            layer = layer.envs[0]
        elif isinstance(layer, AsyncVectorEnv):
            layer = next(iter(layer.env_fns))()
        elif isinstance(layer, gymnasium.Wrapper | VectorWrapper):
            layer = layer.env
        else:
            layer = None


def _method(env: object, name: str) -> GoalFunction | None:
    found = getattr(env, name, None)
    return found if callable(found) else None


def _compute_wrapped(
    compute_reward: GoalFunction,
    changes: Sequence[Callable[[Any], object]],
    achieved: Array,
    desired: Array,
    info: Mapping[str, object],
) -> object:
    reward = compute_reward(achieved, desired, info)
    for change in changes:
        reward = change(reward)
    return reward


def _changed(wrapper: VectorRewardWrapper, reward: object) -> Array:
    """Let a wrapper of vectors, which may write into what it gets, change one or more rewards."""
    rewards = np.array(reward, np.float64)
    return np.asarray(wrapper.rewards(rewards.reshape(-1))).reshape(rewards.shape)


def _call(
    name: str, function: GoalFunction, achieved: Array, desired: Array, kinds: str, expected: str
) -> Array:
    """Call a function for a batch; refuse another shape, and dtypes that are not of `kinds`."""
    count = len(achieved)
    try:
        values = np.asarray(function(achieved, desired, {}))
        is_batch = values.shape != () or not count
    except Exception:  # such as a comparison that is true of some goals and not of others
        is_batch = False
    if not is_batch:
        try:
            pairs = zip(achieved, desired, strict=True)
            values = np.stack([np.asarray(function(*pair, {})) for pair in pairs])
        except Exception as error:
            raise EnvironmentFaultError(
                f"{name} raised {in_brief(error)}; it is called with achieved goals, desired goals "
                "and an empty info. If it needs more, give the ReplayBuffer a her_function that "
                "needs only goals"
            ) from error
    if values.shape != (count,):
        raise EnvironmentFaultError(
            f"{name} returned shape {values.shape} for goals of shape {achieved.shape}; expected "
            f"{(count,)}"
        )
    if values.dtype.kind not in kinds:
        raise EnvironmentFaultError(f"{name} returned {values.dtype}; expected {expected}")
    return values
