"""Trajectories of any source, checked before a storage takes them."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from rl_core.actor import Actor
from rl_core.batch import Trajectory
from rl_core.env import as_numpy, observation_problem
from rl_core.errors import DataError
from rl_core.nn.distributions import ScaledHead
from rl_core.spaces import (
    HybridSpace,
    Space,
    action_problem,
    leaf_spaces,
    named_leaves,
    tensor_dtype,
)
from rl_core.types import Array, Observation
from rl_train._conversion import held_by, to_tensor

_ROUNDING = 1e-4
"""How far a scaled action may exceed [-1, 1]."""


@torch.no_grad()
def checked_trajectory(
    given: object, actor: Actor, where: str, *, has_env_actions: bool = False
) -> Trajectory:
    """Check a trajectory against an actor, and give it the dtypes that storages keep.

    Args:
        given: a `Trajectory`, whose fields may be arrays instead of tensors.
        actor: whose observations and own actions it holds.
        where: names the trajectory in messages.
        has_env_actions: it holds the environment's actions, which become the actor's own.

    Raises:
        DataError: when it is something else, has no step, or a field has another shape or kind of
            dtype, a number that is not finite in the dtype that is kept, or a value that its space
            does not have.
    """
    if not isinstance(given, Trajectory):
        raise DataError(f"{where}: got {type(given).__name__}; expected a Trajectory")
    length = as_numpy(given.reward).size
    if length == 0:
        raise DataError(f"{where}: it has no step; leave it out")
    rewards = checked_column(given.reward, "rewards", (length,), "biuf", where)
    reward = _tensor(rewards, torch.float32, "rewards", where)
    observation = _observation(given.observation, actor.observation_space, length, where)
    if has_env_actions:
        space = actor.action_space
        array = as_numpy(given.action)
        _refuse(action_problem(space, array, length, "step"), where)
        env_action = torch.from_numpy(np.array(array, dtype=space.dtype)).to(actor.device)
        array = actor.from_env_action(env_action).numpy(force=True)
        action = _tensor(array, actor.action_spec.dtype, "actions", where)
    else:
        spec = actor.action_spec
        kinds = "f" if spec.dtype.is_floating_point else "biu"
        array = checked_column(given.action, "actions", (length, *spec.shape), kinds, where)
        action = _tensor(array, spec.dtype, "actions", where)
        _refuse(_own_action_problem(action, actor), where)
    return Trajectory(observation, action, reward, bool(given.terminated))


def checked_column(
    value: object, field: str, shape: tuple[int, ...], kinds: str, where: str
) -> Array:
    """Return one number or vector per step as an array.

    Args:
        value: an array or a tensor.
        field: what to call it in messages, in the plural.
        shape: the expected shape, which begins with the number of steps.
        kinds: the expected kinds of dtype, as NumPy abbreviates them.
        where: names the trajectory in messages.

    Raises:
        DataError: when it is something else.
    """
    array = as_numpy(value)
    if array.shape != shape or array.dtype.kind not in kinds:
        numbers = "real numbers" if "f" in kinds else "whole numbers"
        raise DataError(
            f"{where}: the {field} have shape {array.shape} and dtype {array.dtype}; expected "
            f"{numbers} of shape {shape}, for {shape[0]} steps"
        )
    return array


def _observation(value: object, space: Space, length: int, where: str) -> Observation:
    leaves = named_leaves(space)
    parts = value if isinstance(value, Mapping) else {"": value}
    if set(parts) != set(leaves):
        got, expected = (
            "one array" if "" in names else f"entries {sorted(names)}" for names in (parts, leaves)
        )
        raise DataError(f"{where}: the observations are {got}; expected {expected}")
    problem = observation_problem(leaf_spaces(space), value, (length + 1,))  # type: ignore[arg-type]  # it says what is not an array
    if problem is not None:
        problem += f" for {length} rewards: one before each step, and one after the last"
    _refuse(problem, where)
    tensors = {}
    for key, leaf in leaves.items():
        field = f"observations {key}".rstrip()
        tensors[key] = _tensor(as_numpy(parts[key]), tensor_dtype(leaf), field, where)
    return tensors.get("", tensors)


def _own_action_problem(action: Tensor, actor: Actor) -> str | None:
    """Say why the actor could not have taken one of its own actions; None if it could."""
    length, space = len(action), actor.action_space
    taken, real = actor.to_env_action(action.to(actor.device)).numpy(force=True), action
    parts: list[tuple[Space, Array]] = [(space, taken)]
    if isinstance(space, HybridSpace):
        (size,) = space.parts[0].shape
        real, choices = action[:, :size], taken[:, size:].astype(np.int64)
        parts = [(space.parts[0], taken[:, :size]), (space.parts[1], choices)]
    problems = (action_problem(part, array, length, "step") for part, array in parts)
    problem = next(filter(None, problems), None)
    outside = real.reshape(length, -1).abs().gt(1.0 + _ROUNDING).any(1)
    is_scaled = any(isinstance(head, ScaledHead) for head in actor.modules())
    if problem is None and is_scaled and outside.any():
        step = int(outside.int().argmax())
        problem = f"the action of step {step} is {action[step].tolist()}; expected the actor's own"
        problem += ", in [-1, 1]"
    if problem is not None:
        problem += ": convert the environment's actions with actor.from_env_action"
    return problem


def _refuse(problem: str | None, where: str) -> None:
    if problem is not None:
        raise DataError(f"{where}: {problem}")


def _tensor(array: Array, dtype: torch.dtype, field: str, where: str) -> Tensor:
    tensor, is_held = to_tensor(array, dtype)
    if not is_held.all():
        step = int(np.argwhere(~is_held)[0, 0])
        raise DataError(
            f"{where}: the {field} at step {step} are {array[step]}; expected {held_by(dtype)}"
        )
    return tensor
