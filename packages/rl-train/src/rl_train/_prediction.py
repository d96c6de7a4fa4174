"""The arguments of `Agent.predict`, as batches on the actor's device."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from rl_core.actor import Actor
from rl_core.env import as_numpy, category_problem
from rl_core.errors import DataError, in_brief
from rl_core.spaces import Space, event_shape, flatten_observation, leaf_spaces, tensor_dtype
from rl_core.types import Array, ArrayObservation, Observation, State
from rl_train._conversion import held_by, to_tensor


def observation_batch(observation: object, actor: Actor) -> tuple[Observation, bool]:
    """Convert observations to their declared dtypes on the device, with a batch axis.

    Args:
        observation: one observation of the environment's shape, or a batch `(N, ...)`; for nested
            spaces also a dict by path, as vector environments return it.
        actor: actor that receives the observations.

    Returns:
        The batch, and whether the argument was one.

    Raises:
        DataError: when a shape, dtype or value does not fit the observation space.
    """
    spaces = leaf_spaces(actor.observation_space)
    leaves = spaces if isinstance(spaces, Mapping) else {"observation": spaces}
    flat: ArrayObservation
    if isinstance(observation, Mapping) and set(observation) == set(leaves):
        flat = observation  # without nesting, or flattened by a vector environment
    else:
        flat = flatten_observation(actor.observation_space, observation)
    arrays = flat if isinstance(flat, Mapping) else {"observation": flat}
    if isinstance(flat, Mapping) and not isinstance(spaces, Mapping):
        raise DataError(f"the observation is a mapping; expected an array of {spaces}")
    tensors: dict[str, Tensor] = {}
    counts: dict[str, int | None] = {}  # of a batch; None is a single observation
    for key, leaf in leaves.items():
        array, is_batch = _checked(key, arrays[key], leaf)
        dtype = tensor_dtype(leaf)
        tensor, is_held = to_tensor(array, dtype)
        if not is_held.all():
            raise DataError(f"{key} holds {array[~is_held][0]}; expected {held_by(dtype)}")
        tensors[key] = (tensor if is_batch else tensor.unsqueeze(0)).to(actor.device)
        counts[key] = len(array) if is_batch else None
    if len(set(counts.values())) > 1:
        sizes = ", ".join(
            f"{key} {'is a single one' if count is None else f'has {count}'}"
            for key, count in counts.items()
        )
        raise DataError(
            f"the entries of the observation are not equally many: {sizes}; give a single "
            "observation, or a batch with as many of each entry"
        )
    inputs = tensors if isinstance(spaces, Mapping) else tensors["observation"]
    return inputs, None not in counts.values()


def state_batch(state: State | None, actor: Actor, count: int) -> State:
    """Return the recurrent states of a batch.

    Args:
        state: what an earlier prediction returned; None starts episodes.
        actor: the recurrent actor.
        count: number of observations N.

    Raises:
        DataError: when they belong to another actor, or to another number of observations.
    """
    if state is None:
        return actor.actor_initial_states(count)
    expected = {name: (count, size) for name, size in actor.state_sizes.items()}
    got: object = type(state).__name__
    if isinstance(state, Mapping):
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
    """Return which observations of a batch start an episode, `(N,)`, bool.

    Args:
        episode_start: flags, or a single one for a single observation; None starts none.
        actor: actor whose device the flags are put on.
        count: number of observations N.

    Raises:
        DataError: when they are not booleans, or not one for each observation.
    """
    if episode_start is None:
        return torch.zeros(count, dtype=torch.bool, device=actor.device)
    flags = np.atleast_1d(as_numpy(episode_start))
    if flags.dtype != np.bool_ or flags.shape != (count,):
        raise DataError(
            f"episode_start: got {flags.dtype} of shape {flags.shape}; expected bool of shape "
            f"({count},), one flag for each observation"
        )
    return torch.as_tensor(flags, device=actor.device)


def _checked(name: str, value: object, space: Space) -> tuple[Array, bool]:
    """Check an observation against its space; return it, and whether it has a batch axis."""
    try:
        array = as_numpy(value)
    except (TypeError, ValueError) as error:
        hint = "; of what reset returns, give the first part" if isinstance(value, tuple) else ""
        raise DataError(f"{name} is not an array: {in_brief(error)}{hint}") from error
    shape = event_shape(space)
    if shape not in (array.shape, array.shape[1:]):
        raise DataError(
            f"{name}: expected shape {shape}, or {('N', *shape)} for a batch, got {array.shape}"
        )
    kinds = "biuf" if tensor_dtype(space).is_floating_point else "biu"
    if array.dtype.kind not in kinds:
        raise DataError(f"{name} has dtype {array.dtype}; expected {space.dtype}")
    problem = category_problem(name, space, array)
    if problem is not None:
        raise DataError(problem)
    return array, array.shape != shape
