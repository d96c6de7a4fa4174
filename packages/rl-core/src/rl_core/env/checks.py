"""Checks of observations and actions against their declared spaces."""

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
from torch import Tensor

from rl_core.errors import DataError, in_brief
from rl_core.spaces import Space, category_range, event_shape, tensor_dtype
from rl_core.types import ArrayObservation, numpy_dtype


def observation_problem(
    leaves: Space | Mapping[str, Space],
    observation: ArrayObservation,
    batch_shape: tuple[int, ...],
) -> str | None:
    """Compare shape, kind of dtype and category ranges of an observation with its space.

    The bounds of Box spaces are not compared: so many environments exceed them slightly that
    nobody treats them as binding.

    Args:
        leaves: what `leaf_spaces` returned.
        observation: shape `(*batch_shape, ...)`, flattened by `flatten_observation`.
        batch_shape: ``()`` for a single observation, ``(B,)`` for a batch.

    Returns:
        What is wrong, naming the field, or None.
    """
    if not isinstance(leaves, Mapping):
        return _leaf_problem("the observation", leaves, observation, batch_shape)
    parts = cast("Mapping[str, object]", observation)
    problems = (
        _leaf_problem(f"observation '{key}'", leaf, parts[key], batch_shape)
        for key, leaf in leaves.items()
    )
    return next(filter(None, problems), None)


def action_shape(space: Space, num_envs: int) -> tuple[int, ...] | None:
    """Return the shape of a batch of actions; None if the space's actions are not arrays."""
    return None if space.shape is None else (num_envs, *space.shape)


def action_error(got: tuple[int, ...], space: Space, num_envs: int) -> DataError:
    """Build the error for a batch of actions of the wrong shape."""
    return DataError(
        f"the action has shape {tuple(got)}; expected {action_shape(space, num_envs)}: one of "
        f"{space} for each of {num_envs} environments"
    )


def as_numpy(value: object) -> "np.ndarray[Any, np.dtype[Any]]":
    """Convert what an environment or a policy returned.

    Raises:
        ValueError: if its parts have different lengths; other errors as NumPy raises them.
    """
    return value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)


def keeps_integers(array: "np.ndarray[Any, np.dtype[Any]]", dtype: "np.dtype[Any]") -> bool:
    """Whether no integer wraps around where an array is converted to another dtype."""
    given = array.dtype
    if given.kind not in "iu" or dtype.kind not in "iu" or np.can_cast(given, dtype):
        return True
    return bool((array.astype(dtype) == array).all())


def category_problem(
    field: str, space: Space, array: "np.ndarray[Any, np.dtype[Any]]"
) -> str | None:
    """Say that categories of a leaf space do not exist; None if all do, and for a Box."""
    least, greatest = category_range(space)
    if greatest is None or bool(((array >= least) & (array <= greatest)).all()):
        return None
    return f"{field} holds {array.min()} to {array.max()}; expected a value of {space}"


def _leaf_problem(
    field: str, space: Space, value: object, batch_shape: tuple[int, ...]
) -> str | None:
    if value is None:
        return f"{field} is None; expected a value of {space}"
    try:
        array = as_numpy(value)
    except (ValueError, TypeError) as error:
        return f"{field} is not an array: {in_brief(error)}; expected a value of {space}"
    expected_shape = (*batch_shape, *event_shape(space))
    if array.shape != expected_shape:
        return f"{field} has shape {array.shape}; expected {expected_shape}"
    # What vector environments convert to may be wider than the declared dtype.
    stored_dtype = numpy_dtype(tensor_dtype(space))
    declared_dtype = cast("np.dtype[np.generic]", space.dtype)
    is_kind = array.dtype == stored_dtype or np.can_cast(array.dtype, declared_dtype, "same_kind")
    if array.dtype.kind not in "biuf" or not is_kind:
        return f"{field} has dtype {array.dtype}; expected {space.dtype}"
    return category_problem(field, space, array)
