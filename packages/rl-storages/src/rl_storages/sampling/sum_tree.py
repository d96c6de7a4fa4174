"""Draws in proportion to priorities that change all the time, and the smallest of them."""

import math
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch

Indices = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.float64]
Priorities = npt.NDArray[np.float32]
Bits = npt.NDArray[np.uint32]

LARGEST_ERROR = 1e30
"""Errors are at most this, so that single-precision sums over sequences are finite too."""

LEAST_PRIORITY = np.finfo(np.float32).tiny
"""Replaces a priority of 0, so that its leaf can be drawn if no other has a larger one."""

_ABOVE_LEAST = LEAST_PRIORITY.view(np.uint32) + np.uint32(1)
"""The bits of the next number; those of numbers that are not negative are in their order."""

_USUAL_DRAWS = 256
"""Leaves drawn at once, for which the size of blocks is chosen."""


class SumTree:
    """Priorities in blocks, with a sum per block: a tree of two levels.

    A draw adds up the sums of all blocks, and then the leaves of one block per draw. With blocks
    of about ``sqrt(num_leaves / draws)`` leaves both take the same time, and less than going down
    a binary tree whose twenty levels are a handful of calls each. Sums are computed anew from the
    leaves whenever these change, so nothing drifts.

    Args:
        num_leaves: how many priorities; all are 0 at first.

    Attributes:
        bytes_per_block: what is kept of each, but its leaves.
        leaves: the priorities, float32; to be changed by `set` only.
    """

    bytes_per_block: ClassVar[int] = 16

    def __init__(self, num_leaves: int) -> None:
        self._shift, num_blocks = _blocks(num_leaves)
        padded: Priorities = np.zeros(num_blocks << self._shift, dtype=np.float32)
        self.leaves = padded[:num_leaves]
        self._blocks = padded.reshape(num_blocks, 1 << self._shift)
        self._sums: Numbers = np.zeros(num_blocks)
        self._running: Numbers = np.zeros(num_blocks + 1)
        self._stale: list[Indices] = []

    @classmethod
    def bytes_for(cls, num_leaves: int) -> int:
        """Return what a tree takes: 4 bytes per leaf, and what is kept of blocks."""
        shift, num_blocks = _blocks(num_leaves)
        return 4 * (num_blocks << shift) + cls.bytes_per_block * num_blocks + 8

    @property
    def total(self) -> float:
        """The sum of all priorities."""
        self._add_up()
        return float(self._running[-1])

    def set(self, indices: Indices, priorities: Priorities | np.float32 | float) -> None:
        """Change priorities; of an index that occurs twice, the last one counts.

        Args:
            indices: shape `(N,)`.
            priorities: shape `(N,)`, finite, at least 0.
        """
        self.leaves[indices] = priorities
        self._stale.append(indices >> self._shift)

    def set_all(self, priorities: Priorities | float) -> None:
        """Change all priorities."""
        self.leaves[:] = priorities
        self._stale = [np.arange(len(self._sums))]

    def sum_of(self, first: int, end: int) -> float:
        """Return the sum of the leaves from one to another one, as `find` counts them."""
        self._add_up()
        low, high = self._sum_before(first), self._sum_before(end)
        return high - low if first < end else float(self._running[-1]) - low + high

    def find(self, fractions: Numbers, first: int = 0, end: int | None = None) -> Indices:
        """Return the leaves at fractions of a sum, none of which has priority 0.

        Args:
            fractions: shape `(N,)`, in [0, 1); best in rising order.
            first: the sum is that of the leaves from this one.
            end: to this one, which is left out; round the end of all leaves where it is not above
                ``first``. None means all leaves. Where priorities add up to rounded sums, a leaf
                just outside of ``first`` and ``end`` may be found.

        Returns:
            Shape `(N,)`: where the sum of the leaves up to and with this one first exceeds the
            fraction of the sum.
        """
        self._add_up()
        total = self._running[-1]
        if end is None:
            return self._find(fractions * total, total)
        targets = self._sum_before(first) + fractions * self.sum_of(first, end)
        if first < end:
            return self._find(targets, self._sum_before(end))
        targets[targets >= total] -= total
        return self._find(targets, total)

    def _find(self, targets: Numbers, high: float) -> Indices:
        """Return where the running sum of all leaves first exceeds targets below a sum."""
        running = self._running
        # A target below the last sum is exceeded somewhere, and only a positive leaf exceeds it.
        targets = np.minimum(targets, math.nextafter(high, 0.0))
        blocks = running.searchsorted(targets, "right") - 1
        within = torch.from_numpy(self._blocks.take(blocks, 0)).cumsum(1, dtype=torch.float64)
        rest = np.minimum(targets - running.take(blocks), np.nextafter(within.numpy()[:, -1], 0.0))
        leaves = torch.searchsorted(within, torch.from_numpy(rest[:, None]), right=True)
        found: Indices = (blocks << self._shift) + leaves.numpy()[:, 0]
        return found

    def _sum_before(self, index: int) -> float:
        block, within = index >> self._shift, index & (1 << self._shift) - 1
        if within == 0:
            return float(self._running[block])
        part = self._blocks[block, :within].sum(dtype=np.float64)
        return float(self._running[block] + part)

    def _add_up(self) -> None:
        if not self._stale:
            return
        changed = np.concatenate(self._stale)
        if len(changed) >= len(self._sums):
            changed = np.unique(changed)
        self._take_over(changed, self._blocks.take(changed, 0))
        # Torch adds up several times faster than NumPy, each number once and from the left.
        torch.cumsum(torch.from_numpy(self._sums), 0, out=torch.from_numpy(self._running[1:]))
        self._stale = []

    def _take_over(self, blocks: Indices, leaves: Priorities) -> None:
        """Keep what is kept of blocks, with a copy of their leaves."""
        self._sums[blocks] = leaves.sum(1, dtype=np.float64)


class PriorityTree(SumTree):
    """A sum tree with a minimum per block too, for the smallest of the priorities.

    Args:
        num_leaves: how many priorities; all are 0 at first.
    """

    bytes_per_block = SumTree.bytes_per_block + 4

    def __init__(self, num_leaves: int) -> None:
        super().__init__(num_leaves)
        self._smallest: Bits = np.zeros(len(self._sums), np.uint32) - _ABOVE_LEAST

    def smallest(self, first: int = 0, end: int | None = None) -> np.float32:
        """Return the smallest priority above the least, or the least where there is none.

        Args:
            first: of the leaves from this one.
            end: to this one, as `find` counts them; None means all leaves.
        """
        self._add_up()
        if end is None:
            bits = self._smallest
        else:
            around = [(first, len(self.leaves)), (0, end)]
            spans = [(first, end)] if first < end else around
            bits = np.concatenate([part for span in spans for part in self._bits_of(*span)])
        smallest = (bits.min(keepdims=True) + _ABOVE_LEAST).view(np.float32)[0]
        return max(smallest, LEAST_PRIORITY)

    def _bits_of(self, first: int, end: int) -> list[Bits]:
        """Return the minima of whole blocks, and the leaves before and after these."""
        shift = self._shift
        low = min(-(-first >> shift) << shift, end)
        high = max(end >> shift << shift, low)
        leaves = self.leaves.view(np.uint32)
        return [
            leaves[first:low] - _ABOVE_LEAST,
            self._smallest[low >> shift : high >> shift],
            leaves[high:end] - _ABOVE_LEAST,
        ]

    def _take_over(self, blocks: Indices, leaves: Priorities) -> None:
        super()._take_over(blocks, leaves)
        bits = leaves.view(np.uint32)
        bits -= _ABOVE_LEAST  # what is not above the least wraps round, and comes last
        self._smallest[blocks] = bits.min(1)


def _blocks(num_leaves: int) -> tuple[int, int]:
    """Return the logarithm of the leaves in a block, and how many blocks there are."""
    shift = max(round(math.log2(max(num_leaves / _USUAL_DRAWS, 1)) / 2), 3)
    return shift, (num_leaves - 1 >> shift) + 1
