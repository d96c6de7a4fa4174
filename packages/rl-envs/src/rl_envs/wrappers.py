"""Wrappers that turn one task into another, some of them Gymnasium's, and flat actions."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, SupportsFloat, cast

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.utils import RecordConstructorArgs
from gymnasium.vector.utils import batch_space
from gymnasium.wrappers import (
    ClipReward,
    TimeAwareObservation,
    TransformReward,
)

from rl_core.env import keeps_integers
from rl_core.errors import ConfigError, DataError, SpaceError, in_brief, nearest
from rl_core.spaces import ACTION_MASK_KEY, HybridSpace, leaf_spaces
from rl_core.stateful import StateReader
from rl_core.types import Array, StateDict
from rl_envs.rescaling import rescaled_action, rescaled_observation

_VELOCITIES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "CartPole": ((1, 3), (4,)),
    "Pendulum": ((2,), (3,)),
    "MountainCar": ((1,), (2,)),
    "MountainCarContinuous": ((1,), (2,)),
    "Acrobot": ((4, 5), (6,)),
    "LunarLander": ((2, 3, 5), (8,)),
    "LunarLanderContinuous": ((2, 3, 5), (8,)),
    "BipedalWalker": ((1, 2, 3, 5, 7, 10, 12), (24,)),
    "BipedalWalkerHardcore": ((1, 2, 3, 5, 7, 10, 12), (24,)),
    "InvertedPendulum": ((2, 3), (4,)),
    "InvertedDoublePendulum": ((5, 6, 7), (9, 11)),
    "Hopper": (tuple(range(5, 11)), (11,)),
    "Walker2d": (tuple(range(8, 17)), (17,)),
    "HalfCheetah": (tuple(range(8, 17)), (17,)),
    "Swimmer": (tuple(range(3, 8)), (8,)),
}
"""By id without version: the entries that are velocities, and the observation sizes it holds for.

Options or wrappers of an environment may change the size.
"""


class MaskVelocity(gymnasium.ObservationWrapper, RecordConstructorArgs):
    """Hide the velocities, so that a single observation no longer determines the state.

    The remaining entries keep their order, and the observation space shrinks with them. The result
    is a test for recurrent policies, which can infer the velocities from earlier observations.

    Args:
        env: its observations must be vectors.
        velocity_indices: the entries to hide; None takes the velocities, where they are known.

    Raises:
        ConfigError: if no entries are given and the environment is not in the table, or its
            observations do not have their default size, or if an entry is not in the observation.
        SpaceError: if its observations are not vectors, or nothing would be left of them.
    """

    def __init__(self, env: gymnasium.Env, velocity_indices: Sequence[int] | None = None) -> None:
        RecordConstructorArgs.__init__(self, velocity_indices=velocity_indices)
        super().__init__(env)
        space = env.observation_space
        if not isinstance(space, spaces.Box) or len(space.shape) != 1:
            raise SpaceError(f"the observation space is {space}; expected a Box of rank 1")
        size = space.shape[0]
        hidden = _known_indices(env, size) if velocity_indices is None else tuple(velocity_indices)
        if not hidden or any(index not in range(size) for index in hidden):
            raise ConfigError(
                f"velocity_indices={list(hidden)}; expected entries from 0 to {size - 1}"
            )
        self._kept = np.array([index for index in range(size) if index not in set(hidden)])
        if not self._kept.size:
            raise SpaceError(f"hiding {list(hidden)} leaves nothing of {space}")
        self.observation_space = spaces.Box(
            space.low[self._kept], space.high[self._kept], dtype=space.dtype.type
        )

    def observation(self, observation: Array) -> Array:
        """Return the entries that are not hidden, shape `(D - velocities,)`."""
        return cast("Array", observation[self._kept])


class ActionMask(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Move ``info["action_mask"]`` into the observation, where actors look for it.

    The observation becomes a dict of ``obs`` and ``action_mask``; a dict only gets the mask.

    Args:
        env: its `reset` and `step` report which actions are allowed, one flag for each choice of a
            Discrete or MultiDiscrete space.

    Raises:
        SpaceError: for another action space.
    """

    def __init__(self, env: gymnasium.Env) -> None:
        RecordConstructorArgs.__init__(self)
        super().__init__(env)
        actions, inner = env.action_space, env.observation_space
        if not isinstance(actions, spaces.Discrete | spaces.MultiDiscrete):
            raise SpaceError(f"the action space is {actions}; expected a Discrete or MultiDiscrete")
        size = int(actions.n) if isinstance(actions, spaces.Discrete) else int(actions.nvec.sum())
        self._is_dict = isinstance(inner, spaces.Dict)
        parts = dict(inner.spaces) if isinstance(inner, spaces.Dict) else {"obs": inner}
        mask = spaces.MultiBinary(size)
        self.observation_space = spaces.Dict({**parts, ACTION_MASK_KEY: mask})

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset; the mask of the first step is in the info."""
        observation, info = self.env.reset(seed=seed, options=options)
        return self._with_mask(observation, info), info

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step; the mask of the next step is in the info."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._with_mask(observation, info), reward, terminated, truncated, info

    def _with_mask(self, observation: Any, info: dict[str, Any]) -> dict[str, Any]:
        if ACTION_MASK_KEY not in info:
            raise DataError(f"info has {sorted(info)}; expected '{ACTION_MASK_KEY}' among them")
        given = np.asarray(info[ACTION_MASK_KEY]).reshape(-1)
        mask = given.astype(np.bool_)
        if not (mask == given).all():
            raise DataError(
                f"info['{ACTION_MASK_KEY}'] is {info[ACTION_MASK_KEY]!r}; expected a flag, 0 or 1, "
                "for each choice"
            )
        parts = observation if self._is_dict else {"obs": observation}
        return {**parts, ACTION_MASK_KEY: mask.astype(np.int8)}


class FrameStack(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Stack the last observations along a new first axis; an episode begins with equal ones.

    A stack is a view of the memory that frames are written to one after the other, so that a step
    copies one frame, and neighboring stacks share theirs until a storage copies them. Frames that
    were handed out are never written to again.

    Args:
        env: its observations are a Box.
        stack_size: frames in a stack.

    Raises:
        SpaceError: for other observations.
    """

    _ROOM = 60
    """Frames that are written before new memory is taken."""

    def __init__(self, env: gymnasium.Env, stack_size: int) -> None:
        RecordConstructorArgs.__init__(self, stack_size=stack_size)
        super().__init__(env)
        space = env.observation_space
        if not isinstance(space, spaces.Box):
            raise SpaceError(f"the observation space is {space}; expected a Box to stack frames of")
        self.observation_space = batch_space(space, stack_size)
        self.stack_size = stack_size
        self._begin(np.zeros((stack_size, *space.shape), space.dtype))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """Reset; every frame of the stack is the first observation."""
        observation, info = self.env.reset(seed=seed, options=options)
        frame = self._checked(observation)
        self._begin(np.broadcast_to(frame, (self.stack_size, *frame.shape)))
        return self._stack(), info

    def step(self, action: Any) -> tuple[Array, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step, and write one frame."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        frame = self._checked(observation)
        if self._end == len(self._frames):
            self._begin(self._stack())
        self._frames[self._end] = frame
        self._end += 1
        return self._stack(), reward, terminated, truncated, info

    def state_dict(self) -> StateDict:
        """Return the stack."""
        return {"stack": torch.from_numpy(self._stack().copy())}

    def load_state_dict(self, state: StateDict) -> None:
        """Restore what `state_dict` returned."""
        like = torch.from_numpy(self._stack())
        self._begin(StateReader(state, "FrameStack").tensor("stack", like=like).numpy(force=True))

    def _begin(self, stack: Array) -> None:
        """Take new memory that begins with a stack."""
        shape, dtype = stack.shape[1:], self.observation_space.dtype
        self._frames = np.empty((self.stack_size + self._ROOM, *shape), dtype)
        self._frames[: self.stack_size] = stack
        self._end = self.stack_size

    def _checked(self, observation: object) -> Array:
        """Return a frame that fits; NumPy would stretch or cut others to fit."""
        frame, first = np.asarray(observation), self._frames[0]
        fits = np.can_cast(frame.dtype, first.dtype, "same_kind")
        if frame.shape != first.shape or not (fits and keeps_integers(frame, first.dtype)):
            raise DataError(
                f"the observation has shape {frame.shape} and dtype {frame.dtype}; expected "
                f"{first.shape} and {first.dtype}"
            )
        return frame

    def _stack(self) -> Array:
        return self._frames[self._end - self.stack_size : self._end]


class FlattenAction(gymnasium.ActionWrapper[Any, Any, Any], RecordConstructorArgs):
    """Turn Dict and Tuple actions, nested to any depth, into one vector.

    Box leaves become one Box, categorical ones one MultiDiscrete, in the order of the leaves; both
    together become a `HybridSpace`, with the real numbers before the choices.

    Args:
        env: its actions are a Dict or a Tuple.

    Raises:
        SpaceError: if a Box among them holds whole numbers.
    """

    def __init__(self, env: gymnasium.Env) -> None:
        RecordConstructorArgs.__init__(self)
        super().__init__(env)
        found: Any = leaf_spaces(env.action_space)
        leaves = list(found.values())
        for leaf in leaves:
            if isinstance(leaf, spaces.Box) and leaf.dtype.kind != "f":
                raise SpaceError(
                    f"the action space holds {leaf}; expected a floating-point Box: declare one "
                    "whole number as Discrete and several as MultiDiscrete, or as a floating-point "
                    "Box that the environment rounds"
                )
        real = [leaf for leaf in leaves if isinstance(leaf, spaces.Box)]
        choices = [leaf for leaf in leaves if not isinstance(leaf, spaces.Box)]
        if not choices:
            self.action_space = _joined_boxes(real)
        elif not real:
            self.action_space = _joined_choices(choices)
        else:
            self.action_space = HybridSpace(_joined_boxes(real), _joined_choices(choices))
        is_choice = [
            not isinstance(leaf, spaces.Box) for leaf in leaves for _ in range(_size(leaf))
        ]
        # The vector's numbers in the order of the leaves, by its own order.
        self._places = np.argsort(np.argsort(is_choice, kind="stable"))

    def action(self, action: Array) -> Any:
        """Return the nested action."""
        nested, rest = _nest(self.env.action_space, np.asarray(action)[self._places])
        assert not rest.size
        return nested


def _joined_boxes(leaves: Sequence[Any]) -> spaces.Box:
    low, high = (
        np.concatenate([getattr(leaf, bound).reshape(-1) for leaf in leaves])
        for bound in ("low", "high")
    )
    return spaces.Box(low, high, dtype=low.dtype.type)


def _joined_choices(leaves: Sequence[Any]) -> spaces.MultiDiscrete:
    sizes, starts = zip(*map(_choices, leaves), strict=True)
    return spaces.MultiDiscrete(np.concatenate(sizes), start=np.concatenate(starts))


def _choices(leaf: Any) -> tuple[Array, Array]:
    """Return number and start of each choice of a categorical leaf."""
    if isinstance(leaf, spaces.Discrete):
        return np.array([leaf.n]), np.array([leaf.start])
    if isinstance(leaf, spaces.MultiDiscrete):
        return leaf.nvec.reshape(-1), leaf.start.reshape(-1)
    return np.full(_size(leaf), 2), np.zeros(_size(leaf), np.int64)


def _size(leaf: Any) -> int:
    return int(np.prod(leaf.shape))


def _nest(space: Any, flat: Array) -> tuple[Any, Array]:
    """Return an action of a space, and the numbers that are left."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts: list[Any] = []
        named = isinstance(space, spaces.Dict)
        for inner in space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces:
            part, flat = _nest(inner, flat)
            parts.append(part)
        return (dict(zip(space, parts, strict=True)) if named else tuple(parts)), flat
    size = _size(space)
    value = flat[:size].reshape(space.shape).astype(space.dtype)
    return (value[()] if isinstance(space, spaces.Discrete) else value), flat[size:]


def with_time(env: gymnasium.Env) -> gymnasium.Env:
    """Add the elapsed fraction of the time limit: last in vectors, else as ``time`` in a dict.

    Raises:
        ConfigError: if the environment has no time limit.
    """
    space = env.observation_space
    is_vector = isinstance(space, spaces.Box) and len(space.shape) == 1
    try:
        return TimeAwareObservation(env, flatten=is_vector, normalize_time=True)
    except ValueError as error:
        message = f"time_feature needs an environment with a time limit: {in_brief(error)}"
        raise ConfigError(message) from error


WRAPPERS: Mapping[str, Callable[..., gymnasium.Env]] = {
    "mask_velocity": MaskVelocity,
    "rescale_observation": rescaled_observation,
    "stack_size": FrameStack,
    "time_feature": with_time,
    "rescale_action": rescaled_action,
    "action_mask": ActionMask,
}
"""By the name of `make_vec`'s option, in the order in which they are applied."""


def training_rewards(scale: float, clip: float | None) -> list[Callable[..., gymnasium.Env]]:
    """Return wrappers that scale rewards and then clip them to [-clip, clip]."""
    chosen: list[Callable[..., gymnasium.Env]] = []
    if scale != 1.0:
        chosen.append(partial(TransformReward, func=partial(_times, scale)))
    if clip is not None:
        chosen.append(partial(ClipReward, min_reward=-clip, max_reward=clip))
    return chosen


def _times(scale: float, reward: Any) -> Any:
    """Scale one reward, or those that hindsight computes for a batch."""
    return np.multiply(scale, reward, dtype=np.float64)


def _known_indices(env: gymnasium.Env, size: int) -> tuple[int, ...]:
    name = env.spec.name if env.spec is not None else type(env.unwrapped).__name__
    if name not in _VELOCITIES:
        raise ConfigError(
            f"the velocities of {name} are not known{nearest(name, _VELOCITIES)}; "
            "give velocity_indices"
        )
    indices, sizes = _VELOCITIES[name]
    if size not in sizes:
        raise ConfigError(
            f"the velocities of {name} are known in observations of "
            f"{' or '.join(map(str, sizes))} numbers, but these have {size}; give velocity_indices"
        )
    return indices
