"""The toolbox's view of Gymnasium spaces: one leaf, or a flat mapping of leaves.

A leaf is a Box, Discrete, MultiDiscrete or MultiBinary space. Dict and Tuple spaces, nested to any
depth, become one mapping. Its keys are the paths, joined with ``/``, in the order that the space
declares (``camera/left``, ``0/position``). Texts within them, such as MiniGrid's missions, are left
out: no network of ours reads them.
"""

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias, cast

import gymnasium
import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces
from torch import Tensor

from rl_core.errors import DataError, SpaceError
from rl_core.types import Array, ArrayLike, ArrayObservation, Observation

Space: TypeAlias = gymnasium.Space[object]
"""Any Gymnasium space."""

_LEAF_TYPES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)

ACTION_MASK_KEY = "action_mask"
"""Key of the flags in a dict observation that say which actions are allowed; no network input."""

_TOLERANCE = 1e-4
"""How far an action may exceed its bounds, as a fraction of their distance, for rounding."""

UNBOUNDED = 1e30
"""Bounds from here on say that there are none, such as the greatest number of float32."""

# Torch has hardly any operators for wide unsigned integers.
_SIGNED_DTYPES = {"uint16": torch.int32, "uint32": torch.int64, "uint64": torch.int64}


class HybridSpace(gymnasium.Space[Array]):
    """Vectors of real numbers and then choices, which Dict and Tuple actions of both kinds become.

    Args:
        real: of rank 1.
        choices: of rank 1.

    Attributes:
        parts: both.
    """

    def __init__(self, real: spaces.Box, choices: spaces.MultiDiscrete) -> None:
        self.parts = real, choices
        super().__init__((real.shape[0] + choices.shape[0],), real.dtype)

    def seed(self, seed: int | None = None) -> tuple[int, ...]:
        """Seed both parts."""
        return tuple(part.seed(seed) for part in self.parts)

    def sample(self, mask: None = None, probability: None = None) -> Array:
        """Draw a vector."""
        return np.concatenate([part.sample() for part in self.parts], dtype=self.dtype)

    def contains(self, x: object) -> bool:
        """Return whether each part is in its space."""
        vector = np.asarray(x)
        return vector.shape == self.shape and not action_problem(self, vector[None], 1, "row")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HybridSpace) and self.parts == other.parts

    def __repr__(self) -> str:
        return f"HybridSpace{self.parts}"


def leaf_spaces(space: Space) -> Space | dict[str, Space]:
    """Flatten a space into its leaves.

    Args:
        space: a leaf, or Dict and Tuple spaces of leaves to any depth.

    Returns:
        The space itself when it is a leaf; for a Dict or Tuple a mapping from path to leaf.

    Raises:
        SpaceError: for any other space, for a Dict or Tuple without leaves, and for two entries
            with the same path.
    """
    if isinstance(space, _LEAF_TYPES):
        return cast("Space", space)
    leaves: dict[str, Space] = {}
    for path, leaf in _walk(space, ()):
        if _is_text(leaf):
            continue
        key = "/".join(path)
        if key in leaves:
            raise SpaceError(f"two entries of {space} have the path '{key}'; rename one of them")
        leaves[key] = leaf
    if not leaves:
        raise SpaceError(f"{space} has no entries; at least one leaf is needed")
    return leaves


def named_leaves(space: Space) -> dict[str, Space]:
    """Return the leaves of a space by path; a space that is a leaf itself has the path ``""``."""
    leaves = leaf_spaces(space)
    return leaves if isinstance(leaves, dict) else {"": leaves}


def flatten_observation(space: Space, observation: object) -> ArrayObservation:
    """Flatten an observation, single or batched, the way `leaf_spaces` flattens its space.

    Args:
        space: the space of a single observation.
        observation: what the environment returned: an array, or nested mappings and tuples.

    Returns:
        The same object if the space is a leaf; else a dict from path to array.

    Raises:
        DataError: if the observation is not nested like the space.
    """
    if isinstance(space, _LEAF_TYPES):
        return cast("ArrayLike", observation)
    flat: dict[str, ArrayLike] = {}
    _flatten_into(flat, "", space, observation)
    return flat


def tensor_dtype(space: Space) -> torch.dtype:
    """Return the dtype in which values of a leaf space are stored and trained on.

    Every floating-point Box becomes float32; integers and booleans keep their width, images stay
    uint8; Discrete and MultiDiscrete are int64.

    Raises:
        SpaceError: if the space is not a leaf, or torch has no such dtype.
    """
    _require_leaf(space)
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return torch.int64
    dtype = np.dtype(space.dtype)
    if dtype.kind == "f":
        return torch.float32
    if dtype.kind not in "biu":
        raise SpaceError(f"{space} has dtype {dtype}; expected a float, integer or boolean dtype")
    return _SIGNED_DTYPES.get(dtype.name) or getattr(torch, dtype.name)


def event_shape(space: Space) -> tuple[int, ...]:
    """Return the shape of one value of a leaf space; ``()`` for Discrete.

    Raises:
        SpaceError: if the space is not a leaf.
    """
    _require_leaf(space)
    assert space.shape is not None
    return tuple(space.shape)


def made_up_observation(space: Space, device: torch.device) -> Observation:
    """Return a batch of one made-up observation, to see what a network returns for it.

    Args:
        space: of one observation.
        device: of the tensors.

    Returns:
        Shape `(1, ...)`: ones, or the nearest numbers that a leaf's bounds allow; the first
        category of categorical leaves.
    """

    def made_up(leaf: Space) -> Tensor:
        values: object = np.ones(event_shape(leaf))
        if isinstance(leaf, spaces.Box):
            values = np.clip(np.ones(leaf.shape), leaf.low, leaf.high)
        elif isinstance(leaf, spaces.Discrete | spaces.MultiDiscrete):
            values = leaf.start
        return torch.as_tensor(values, device=device).to(tensor_dtype(leaf)).unsqueeze(0)

    parts = {key: made_up(leaf) for key, leaf in named_leaves(space).items()}
    return parts.get("", parts)


def random_env_actions(
    space: Space,
    num_envs: int,
    generator: torch.Generator,
    device: torch.device,
    mask: Tensor | None = None,
) -> Tensor:
    """Draw the environment's actions at random.

    Each number is uniform between two bounds, standard normal without bounds, and at an
    exponentially distributed distance of mean 1 from a single bound. Integers are uniform and
    reach both bounds.

    Args:
        space: Discrete, MultiDiscrete, MultiBinary, Box, or a `HybridSpace`.
        num_envs: the number of actions.
        generator: on ``device``.
        device: of the result.
        mask: bool, True for allowed actions; shape `(num_envs, n)` for a Discrete space, and
            `(num_envs, m)` for a MultiDiscrete one, with m the sum of its choices. None allows all.

    Returns:
        Shape `(num_envs, *space.shape)`.
    """
    if isinstance(space, HybridSpace):
        parts = [random_env_actions(part, num_envs, generator, device) for part in space.parts]
        return torch.cat(parts, -1)
    uniform = torch.rand((num_envs, *event_shape(space)), generator=generator, device=device)
    if isinstance(space, spaces.Discrete):
        drawn = (uniform * int(space.n)).long() if mask is None else _draw_allowed(uniform, mask)
        return drawn + int(space.start)
    if isinstance(space, spaces.MultiDiscrete):
        nvec, start = (torch.as_tensor(part, device=device) for part in (space.nvec, space.start))
        if mask is None:
            return (uniform * nvec).long() + start
        choices = torch.split(mask, [int(size) for size in space.nvec.reshape(-1)], dim=-1)
        shares = uniform.view(num_envs, -1).unbind(1)
        columns = [_draw_allowed(*pair) for pair in zip(shares, choices, strict=True)]
        return torch.stack(columns, 1).view(uniform.shape) + start
    if isinstance(space, spaces.MultiBinary):
        return (uniform < 0.5).to(tensor_dtype(space))
    assert isinstance(space, spaces.Box)
    if np.dtype(space.dtype).kind in "biu":
        least, greatest = (
            torch.as_tensor(part.astype(np.float64), device=device)
            for part in (space.low, space.high)
        )
        return (least + (uniform * (greatest - least + 1)).floor()).to(tensor_dtype(space))
    low, high = (torch.as_tensor(part, device=device) for part in (space.low, space.high))
    drawn = torch.randn(uniform.shape, generator=generator, device=device)
    has_low, has_high = low > -UNBOUNDED, high < UNBOUNDED
    width = torch.where(has_low & has_high, high - low, 0.0)
    distance = -torch.log1p(-uniform)  # inverse of the exponential's distribution function
    drawn = torch.where(has_low, low + torch.where(has_high, uniform * width, distance), drawn)
    drawn = torch.where(has_high & ~has_low, high - distance, drawn)
    return drawn.clamp(low, high).to(tensor_dtype(space))


def is_bounded(space: spaces.Box) -> npt.NDArray[np.bool_]:
    """Return where both bounds of a space are meant as such, below `UNBOUNDED`."""
    bounds = np.abs(np.stack([space.low, space.high]))
    return np.asarray((bounds < UNBOUNDED).all(axis=0))


def _draw_allowed(uniform: Tensor, mask: Tensor) -> Tensor:
    """Return an allowed index; each one gets the same share of the numbers in [0, 1)."""
    counted = mask.long().cumsum(-1)
    wanted = (uniform * counted[..., -1]).long()
    return (counted > wanted.unsqueeze(-1)).long().argmax(-1)


def mask_sizes(observation_space: Space, action_space: Space) -> tuple[int, ...] | None:
    """Return the number of actions of each choice in an action mask; None without a mask.

    Args:
        observation_space: of one environment; the entry ``action_mask`` of a dict is the mask,
            with the choices one after the other.
        action_space: of one environment.

    Raises:
        SpaceError: if the actions cannot be masked, or the mask has another length.
    """
    if not (
        isinstance(observation_space, spaces.Dict) and ACTION_MASK_KEY in observation_space.spaces
    ):
        return None
    if isinstance(action_space, spaces.Discrete):
        sizes = [int(action_space.n)]
    elif isinstance(action_space, spaces.MultiDiscrete):
        sizes = [int(size) for size in action_space.nvec.reshape(-1)]
    else:
        raise SpaceError(
            f"the observation has an '{ACTION_MASK_KEY}', but {action_space} cannot be masked; "
            "expected Discrete or MultiDiscrete actions: leave the mask out, or rename it"
        )
    shape = observation_space[ACTION_MASK_KEY].shape
    if shape != (sum(sizes),):
        raise SpaceError(
            f"the observation's '{ACTION_MASK_KEY}' has shape {shape}, but {action_space} needs "
            f"shape ({sum(sizes)},), a flag for each action of each choice"
        )
    return tuple(sizes)


def is_image(space: Space) -> bool:
    """Decide whether a leaf space holds images, which are fed to a convolutional network.

    It does if it is a Box of rank 3, or of rank 4 with a stack of frames along its first axis, and
    each image is either

    - of dtype uint8, with its axes in any order, or
    - of a floating-point dtype, with all bounds 0 and 1 or all bounds 0 and 255, and with a first
      or last axis (the channels) that is shorter than both others.

    The channels are the shorter one of first and last axis, or the last one if they are equal.

    Raises:
        SpaceError: if the space is not a leaf.
    """
    _require_leaf(space)
    if not isinstance(space, spaces.Box) or len(space.shape) not in (3, 4):
        return False
    first, middle, last = space.shape[-3:]
    if space.dtype == np.uint8:
        return True
    if np.dtype(space.dtype).kind != "f":
        return False
    few_channels = first < min(middle, last) or last < min(first, middle)
    unit_or_byte = not space.low.any() and np.unique(space.high).tolist() in ([1], [255])
    return few_channels and unit_or_byte


def brightest(image_space: Space) -> float:
    """Return what the pixels of an image space are divided by, to lie in [0, 1]: their bound."""
    assert isinstance(image_space, spaces.Box)
    return max(1.0, float(image_space.high.max()))


def check_same_space(expected: Space, actual: Space, what: str) -> None:
    """Refuse a space other than the one that a part was built for.

    Args:
        expected: the space that the part was built for.
        actual: the space of the environment at hand.
        what: names the space in the message, such as ``"observation space"``.

    Raises:
        SpaceError: if the two differ in kind, shape, dtype or bounds.
    """
    if expected != actual:
        raise SpaceError(
            f"the {what} is {actual}; expected {expected}: use the environment, with the "
            "wrappers, that this part was built for"
        )


def action_problem(space: Space, actions: Array, length: int, each: str) -> str | None:
    """Say why an array does not hold actions of a space; None if it does.

    Box actions may exceed their bounds by 0.0001 of the bounds' distance, for rounding.

    Args:
        space: of one action.
        actions: expected to have shape `(length, ...)`.
        length: the expected number of actions.
        each: what each action belongs to, such as ``"step"``, for the message.
    """
    if isinstance(space, HybridSpace) and actions.ndim == 2 and actions.shape[1:] == space.shape:
        real, choices = np.split(actions, space.parts[0].shape, axis=1)
        whole: Array = choices.astype(np.int64)
        given = (real.astype(space.dtype), whole if (whole == choices).all() else choices)
        problems = (
            action_problem(part, columns, length, each)
            for part, columns in zip(space.parts, given, strict=True)
        )
        return next(filter(None, problems), None)
    shape = (length, *(space.shape or ()))
    kinds = "f" if isinstance(space, spaces.Box) else "biu"
    if actions.shape != shape or actions.dtype.kind not in kinds:
        return (
            f"the actions have shape {actions.shape} and dtype {actions.dtype}; expected {shape} "
            f"and {space.dtype}"
        )
    least, greatest = cast("tuple[Any, Any]", category_range(space))
    if isinstance(space, spaces.Box):
        width = np.where(np.isfinite(space.high - space.low), space.high - space.low, 1.0)
        slack = _TOLERANCE * width
        least, greatest = space.low - slack, space.high + slack
    inside: Array = (actions >= least) & (actions <= greatest)
    outside = ~inside.reshape(length, -1).all(1)
    if not outside.any():
        return None
    row = int(outside.argmax())
    return f"the action of {each} {row} is {actions[row]}; expected one of {space}"


def category_range(space: Space) -> tuple[object, object]:
    """Return the least and greatest value of a space of categories; None twice for a Box."""
    if isinstance(space, spaces.Discrete):
        return space.start, space.start + space.n - 1
    if isinstance(space, spaces.MultiDiscrete):
        return space.start, space.start + space.nvec - 1
    return (0, 1) if isinstance(space, spaces.MultiBinary) else (None, None)


def text_paths(space: Space) -> list[str]:
    """Return the paths of the texts in a Dict or Tuple space, which `leaf_spaces` leaves out."""
    return ["/".join(path) for path, leaf in _walk(space, ()) if _is_text(leaf)]


def _is_text(space: Space) -> bool:
    # Also MiniGrid's MissionSpace, which is not a spaces.Text.
    return space.dtype is not None and space.dtype.kind == "U"


def _walk(space: Space, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Space]]:
    if isinstance(space, _LEAF_TYPES) or (path and _is_text(space)):
        yield path, space
    elif isinstance(space, spaces.Dict):
        for key, child in space.spaces.items():
            yield from _walk(child, (*path, str(key)))
    elif isinstance(space, spaces.Tuple):
        for index, child in enumerate(space.spaces):
            yield from _walk(child, (*path, str(index)))
    else:
        where = f" at '{'/'.join(path)}'" if path else ""
        raise SpaceError(
            f"{type(space).__name__} space{where} is not supported: {space}; expected Box, "
            "Discrete, MultiDiscrete or MultiBinary, or Dict and Tuple of these"
        )


def _flatten_into(flat: dict[str, ArrayLike], path: str, space: Space, observation: object) -> None:
    if isinstance(space, spaces.Dict):
        if not isinstance(observation, Mapping) or set(observation) != set(space.spaces):
            raise _nesting_error(path, f"a mapping with keys {list(space.spaces)}", observation)
        children: list[tuple[object, Space]] = list(space.spaces.items())
    elif isinstance(space, spaces.Tuple):
        if not isinstance(observation, tuple | list) or len(observation) != len(space.spaces):
            raise _nesting_error(path, f"a tuple of {len(space.spaces)}", observation)
        children = list(enumerate(space.spaces))
    else:
        if not _is_text(space):
            flat[path] = cast("ArrayLike", observation)
        return
    parts = cast("Mapping[object, object]", observation)
    for key, child in children:
        child_path = f"{path}/{key}" if path else str(key)
        _flatten_into(flat, child_path, child, parts[key])


def _nesting_error(path: str, expected: str, observation: object) -> DataError:
    got = (
        f"a mapping with keys {list(observation)}"
        if isinstance(observation, Mapping)
        else f"{type(observation).__name__}"
    )
    where = f" at '{path}'" if path else ""
    return DataError(f"the observation{where} is {got}; its space expects {expected}")


def _require_leaf(space: Space) -> None:
    if not isinstance(space, _LEAF_TYPES):
        raise SpaceError(
            f"{space} is not a leaf; take it apart with leaf_spaces first, which supports Box, "
            "Discrete, MultiDiscrete and MultiBinary, and Dict and Tuple of these"
        )
