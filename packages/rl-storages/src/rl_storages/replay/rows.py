"""Rows: what is known of each, in one byte, and where the next ones are written."""

import numpy as np
import numpy.typing as npt

TERMINATED = 1
VALID = 2
"""The row is a transition, and may be drawn."""
TRUNCATED = 4
EPISODE_START = 8
STEP = 16
"""The row is a step of its environment, if only one that reset it."""
SEQUENCE = 32
"""The row is a transition with which a sequence begins that may be drawn."""

ENDED = TERMINATED | TRUNCATED
KNOWN = ENDED | VALID | EPISODE_START | STEP | SEQUENCE

Flags = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]


def pack_flags(starts: Mask, terminated: Mask, truncated: Mask, valid: Mask) -> Flags:
    """Make the flags of one step of all environments, each `(B,)`."""
    flags = np.full(len(starts), STEP, dtype=np.uint8)
    for mask, flag in (
        (valid, VALID),
        (terminated, TERMINATED),
        (truncated, TRUNCATED),
        (starts, EPISODE_START),
    ):
        flags[mask] |= flag
    return flags


Positions = npt.NDArray[np.int64]


class Heads:
    """The row of each environment that its next action will be taken in.

    Row `r` of environment `b` is in *slot* `r * B + b`. *Positions* count an environment's rows
    without end; row `p` is overwritten by `p + R`.

    Args:
        num_rows: R.
        num_envs: B.

    Attributes:
        common: the position of all heads while they are side by side; None where they are not.
        origin: the position of the first row since all were forgotten.
        own_slots: the slot of each head, shape `(B,)`; kept up only while ``common`` is None.
    """

    def __init__(self, num_rows: int, num_envs: int) -> None:
        self.num_rows = num_rows
        self.num_envs = num_envs
        self.envs = np.arange(num_envs)
        self.origin = 0
        self.set(np.zeros(num_envs, dtype=np.int64))

    @property
    def positions(self) -> Positions:
        """Position of each environment's head, shape `(B,)`."""
        if self.common is not None:
            return np.full(self.num_envs, self.common)
        return self._positions

    @property
    def used_slots(self) -> int:
        """The slots from 0 that were written to since all were forgotten."""
        highest = int(self._positions.max()) if self.common is None else self.common
        return min(highest - self.origin + 1, self.num_rows) * self.num_envs

    def slots(self, positions: Positions) -> Positions:
        """Return the slots of positions, the last axis being environments."""
        slots: Positions = positions % self.num_rows * self.num_envs + self.envs
        return slots

    def set(self, positions: Positions) -> None:
        """Put each environment's head to a position, shape `(B,)`."""
        first = int(positions[0])
        self.common: int | None = first if (positions == first).all() else None
        self._positions = positions
        self.own_slots = self.slots(positions)

    def step(self) -> None:
        """Advance all heads by one row."""
        if self.common is not None:
            self.common += 1
            return
        self._positions += 1
        self.own_slots = self.slots(self._positions)

    def forget(self) -> None:
        """Begin anew in the first row, at positions that no row had yet."""
        self.origin = -(-int(self.positions.max()) // self.num_rows) * self.num_rows
        self.set(np.full(self.num_envs, self.origin))

    def generations(self, slots: Positions) -> Positions:
        """Return how many times each slot had been filled before it got what it holds."""
        if self.common is not None:
            lap, row = divmod(self.common, self.num_rows)
            return lap - (slots >= (row + 1) * self.num_envs)
        env = slots % self.num_envs
        laps: Positions = self._positions // self.num_rows
        return laps[env] - (slots > self.own_slots[env])
