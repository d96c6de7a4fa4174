"""Observations of rows, as they were given; of stacks of frames only the newest is stored."""

from collections.abc import Collection, Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rl_core.errors import ConfigError, DataError
from rl_core.storage import OBSERVATION_COLUMN, TensorSpec
from rl_core.types import ArrayLike
from rl_storages.replay.columns import DEPTH, Columns
from rl_storages.replay.flags import Mask
from rl_storages.transitions import Rows

Depths = npt.NDArray[np.uint8]


def stacked_columns(
    observation: Mapping[str, TensorSpec], frame_stack: int, goals: Collection[str] = ()
) -> dict[str, TensorSpec]:
    """Choose the columns that hold stacks: the observation itself, or the images of a dict.

    Args:
        observation: what is given of each column.
        frame_stack: frames in a stack.
        goals: columns that are none, because they are compared and exchanged as a whole.

    Returns:
        What is given of the chosen columns.

    Raises:
        ConfigError: when there is none.
    """
    is_single = set(observation) == {OBSERVATION_COLUMN}
    rank = 2 if is_single else 3
    stacked = {
        name: spec
        for name, spec in observation.items()
        if len(spec.shape) >= rank and spec.shape[0] == frame_stack and name not in goals
    }
    if not stacked:
        shapes = {name: spec.shape for name, spec in observation.items()}
        what = "an observation" if is_single else "an image (rank 3 or 4) of the dict"
        raise ConfigError(
            f"storage.frame_stack={frame_stack} needs {what} whose first axis is a stack of "
            f"{frame_stack} frames, as gymnasium.wrappers.FrameStackObservation makes; got {shapes}"
        )
    return stacked


def check_known(names: Collection[str], observation: Mapping[str, TensorSpec]) -> None:
    """Refuse columns that an observation has not.

    Raises:
        ConfigError: naming them, and those that there are.
    """
    if unknown := sorted(set(names) - set(observation)):
        raise ConfigError(
            f"storage.unstacked: the observation has no {unknown}; it has {sorted(observation)}"
        )


class FrameStacks:
    """Takes stacks apart into frames, one per row, and puts them together again.

    The *depth* of a row says how many of the rows before it hold older frames of its stack, at
    most k - 1. Frames that are older than these equal the oldest of them. So an episode that
    begins with its first frame repeated begins with depth 0 and needs no further rows. Where a
    stack begins with other frames, such as zeros, these get rows of their own before it.

    Args:
        columns: the memory.
        names: the columns that hold stacks.
        size: k.
        num_envs: B.
    """

    def __init__(self, columns: Columns, names: tuple[str, ...], size: int, num_envs: int) -> None:
        self.names = names
        self.size = size
        self._num_envs = num_envs
        self._frames = {name: columns.by_slot[name] for name in names}
        self._depths: Depths = columns.slots[DEPTH]
        self._num_slots = len(self._depths)
        self._back = np.arange(size - 1, -1, -1)[:, None]

    @property
    def nbytes(self) -> int:
        """What the stacks of one row take when they are rebuilt."""
        return self.size * sum(frames[0].nbytes for frames in self._frames.values())

    def read(self, slots: Tensor) -> dict[str, Tensor]:
        """Rebuild the stacks of slots `(N,)`, each `(N, k, ...)`."""
        place = slots.numpy()
        back = np.minimum(self._back, self._depths.take(place))
        rows = torch.from_numpy((place - back * self._num_envs) % self._num_slots).T.reshape(-1)
        stacks = {}
        for name, frames in self._frames.items():
            found = frames.index_select(0, rows.to(frames.device))
            stacks[name] = found.view(len(place), self.size, *frames.shape[1:])
        return stacks

    def newest(self, observation: Rows) -> Rows:
        """Replace stacks by their newest frames."""
        return self.frame(observation, 0)

    def frame(self, observation: Rows, back: int) -> Rows:
        """Replace stacks by one of their frames, counted back from the newest."""
        place = self.size - 1 - back
        return [
            (name, value[:, place] if name in self.names else value) for name, value in observation
        ]

    def following_depths(self, slots: npt.NDArray[np.int64]) -> Depths:
        """Return the depths of rows that continue these slots `(B,)`."""
        depths: Depths = np.minimum(self._depths[slots] + np.uint8(1), np.uint8(self.size - 1))
        return depths

    def first_depths(self, observation: Rows) -> Depths:
        """Return the fewest older frames, `(B,)`, from which stacks can be rebuilt."""
        depths: Depths = np.zeros(self._num_envs, dtype=np.uint8)
        for name, value in observation:
            if name in self.names:
                differs = ~_same_frames(value[:, 1:], value[:, :-1])  # (B, k - 1), oldest first
                changes = np.cumsum(differs, axis=1) > 0
                np.maximum(depths, changes.sum(1, dtype=np.uint8), out=depths)
        return depths

    def check_goes_on(self, earlier: Rows, later: Rows, among: Mask, field: str) -> None:
        """Make sure that the older frames of one stack are the newer ones of another.

        Args:
            earlier: what was acted on.
            later: what followed.
            among: the environments in which it did.
            field: where the later one comes from, for the message.

        Raises:
            DataError: where they are not.
        """
        given = dict(earlier)
        for name, value in later:
            if name not in self.names:
                continue
            wrong = among & ~_same_frames(value[:, :-1], given[name][:, 1:]).all(1)
            if field == "final_observation" and wrong.any():
                # A failed environment that is started again ends where it stood.
                wrong &= ~_same_frames(value, given[name]).all(1)
            if rows := wrong.nonzero()[0].tolist():
                key = name.removeprefix(OBSERVATION_COLUMN)
                raise DataError(
                    f"transition.{field}{key}: in environments {rows} it does not hold the newest "
                    f"{self.size - 1} frames of transition.observation before its last "
                    f"one; storage.frame_stack={self.size} stores one frame per step and needs "
                    "stacks as gymnasium.wrappers.FrameStackObservation makes them, oldest frame "
                    "first along the first axis; leave it out for other observations"
                )


class ObservationReader:
    """Reads observations by slot: columns as they are, and stacks rebuilt from their frames.

    Args:
        columns: the memory.
        names: the columns that are the observation.
        stacks: those of them that hold stacks of frames.

    Attributes:
        names: the columns that are the observation.
        plain: the columns that are read as they are, by slot.
        stacks: what reads the others; None where there are none.
    """

    def __init__(
        self, columns: Columns, names: tuple[str, ...], stacks: FrameStacks | None
    ) -> None:
        self.names = names
        self.stacks = stacks
        stacked = () if stacks is None else stacks.names
        self.plain: Mapping[str, Tensor] = {
            name: columns.by_slot[name] for name in names if name not in stacked
        }
        self._device = columns.device

    def read(self, slots: Tensor) -> dict[str, Tensor]:
        """Return each column of the observation at slots `(N,)`, on the data's device."""
        index = slots.to(self._device)
        observation = {name: column.index_select(0, index) for name, column in self.plain.items()}
        if self.stacks is None:
            return observation
        observation |= self.stacks.read(slots)
        return {name: observation[name] for name in self.names}


def _same_frames(a: ArrayLike, b: ArrayLike) -> Mask:
    """Compare frames `(B, j, ...)` one by one, `(B, j)`."""
    equal = torch.as_tensor(a == b)
    same: Mask = equal.flatten(2).all(2).numpy(force=True)
    return same
