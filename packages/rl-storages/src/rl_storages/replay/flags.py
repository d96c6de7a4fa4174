"""What is known of each row, in one byte, and where sequences begin."""

import numpy as np
import numpy.typing as npt

from rl_storages.config import SequenceConfig

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
Positions = npt.NDArray[np.int64]


class SequenceStarts:
    """Splits each environment's transitions into sequences, as they are inserted.

    The first sequence of an episode, or of what is stored of it, begins at its first transition,
    the next one T transitions later, and so on; T is how many are learned from.

    Args:
        config: lengths.
        num_envs: B.

    Attributes:
        learned: T.
        burn_in: transitions before these.
    """

    def __init__(self, config: SequenceConfig, num_envs: int) -> None:
        self.learned = config.learned
        self.burn_in = config.burn_in
        self._count = np.zeros(num_envs, dtype=np.int64)

    def begin_anew(self, counts: Positions) -> None:
        """Set how many transitions `(B,)` the newest sequence of each environment has."""
        self._count = counts

    def mark(self, begins: Mask, num_rows: Positions | None = None) -> Flags:
        """Return which rows begin sequences, if they are transitions.

        Args:
            begins: whether the row does not continue the one before it, `(L, B)`.
            num_rows: how many of the L rows each environment has; None means all.

        Returns:
            Flags `(L, B)`.
        """
        steps = np.arange(len(begins))[:, None]
        latest = np.maximum.accumulate(np.where(begins, steps, -1), 0)
        counts = np.where(latest >= 0, steps - latest, self._count + 1 + steps) % self.learned
        if num_rows is None:
            self._count = counts[-1]
        else:
            last = np.maximum(num_rows - 1, 0)
            newest = np.take_along_axis(counts, last[None], 0)[0]
            self._count = np.where(num_rows > 0, newest, self._count)
        marks: Flags = (counts == 0) * np.uint8(SEQUENCE)
        return marks
