"""What a caller gives to predict from, as batches on an actor's device."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from rl_core.actor import Actor
from rl_core.env import as_numpy, category_problem
from rl_core.errors import DataError, in_brief
from rl_core.spaces import Space, event_shape, flatten_observation, leaf_spaces, tensor_dtype
from rl_core.types import Array, Observation, State


def observation_batch(observation: object, actor: Actor) -> tuple[Observation, bool]:
    """Bring observations to their declared dtypes and the device, with a batch axis.

    Args:
        observation: one, of the environment's shape, or a batch `(N, ...)` of them.
        actor: whose observations they are.

    Returns:
        The batch, and whether it was one before.

    Raises:
        DataError: when a shape, dtype or value is not one of the observation space.
    """
    arrays = flatten_observation(actor.observation_space, observation)
    leaves = leaf_spaces(actor.observation_space)
    if not isinstance(leaves, Mapping):
        array, is_batch = _checked("observation", arrays, leaves)
        tensor = torch.as_tensor(array, dtype=tensor_dtype(leaves), device=actor.device)
        return tensor if is_batch else tensor.unsqueeze(0), is_batch
    assert isinstance(arrays, Mapping)
    tensors, batched = {}, []
    for key, leaf in leaves.items():
        array, is_batch = _checked(key, arrays[key], leaf)
        tensor = torch.as_tensor(array, dtype=tensor_dtype(leaf), device=actor.device)
        tensors[key] = tensor if is_batch else tensor.unsqueeze(0)
        batched.append(is_batch)
    if len(set(batched)) > 1:
        raise DataError("some entries of the observation are batches and others are not")
    return tensors, batched[0]


def state_batch(state: State | None, actor: Actor, count: int) -> State:
    """Return recurrent states for so many observations.

    Args:
        state: what an earlier prediction returned; None starts episodes.
        actor: whose states they are.
        count: N.

    Raises:
        DataError: when they are those of another actor, or of another number of observations.
    """
    if state is None:
        return actor.actor_initial_states(count)
    expected = {name: (count, size) for name, size in actor.state_sizes.items()}
    got = {
        name: tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        for name, value in state.items()
    }
    if got != expected:
        raise DataError(
            f"state: got {got or 'none'}; expected tensors {expected or 'of no name'}, as the last "
            "call returned them, or None to start episodes"
        )
    return {name: tensor.to(actor.device) for name, tensor in state.items()}


def start_batch(episode_start: object, actor: Actor, count: int) -> Tensor:
    """Return which of so many observations start an episode, `(N,)`, bool.

    Args:
        episode_start: flags, or a single one for a single observation; None starts none.
        actor: on whose device they shall be.
        count: N.

    Raises:
        DataError: when they are no flags, or not as many.
    """
    if episode_start is None:
        return torch.zeros(count, dtype=torch.bool, device=actor.device)
    flags = np.atleast_1d(as_numpy(episode_start))
    if flags.dtype != np.bool_ or flags.shape != (count,):
        raise DataError(
            f"episode_start: got {flags.dtype} of shape {flags.shape}; expected bool of shape "
            f"({count},), a flag for each observation"
        )
    return torch.as_tensor(flags, device=actor.device)


def _checked(name: str, value: object, space: Space) -> tuple[Array, bool]:
    """Compare an observation with its space; say whether it has a batch axis."""
    try:
        array = as_numpy(value)
    except (TypeError, ValueError) as error:
        raise DataError(f"{name} is no array: {in_brief(error)}") from error
    shape = event_shape(space)
    if shape not in (array.shape, array.shape[1:]):
        raise DataError(
            f"{name}: expected shape {shape}, or {('N', *shape)} for a batch, got {array.shape}"
        )
    kinds = "biuf" if tensor_dtype(space).is_floating_point else "biu"
    if array.dtype.kind not in kinds:
        raise DataError(f"{name} has dtype {array.dtype}; expected {space.dtype}")
    if not np.isfinite(array).all():
        raise DataError(f"{name} holds NaN or infinity; expected finite numbers")
    problem = category_problem(name, space, array)
    if problem is not None:
        raise DataError(problem)
    return array, array.shape != shape
