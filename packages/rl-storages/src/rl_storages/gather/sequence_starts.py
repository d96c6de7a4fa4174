"""Where sequences begin."""

import numpy as np
import numpy.typing as npt

from rl_storages.config import SequenceConfig
from rl_storages.replay.flags import SEQUENCE, Flags, Mask


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

    def begin_anew(self, counts: npt.NDArray[np.int64]) -> None:
        """Set how many transitions `(B,)` the newest sequence of each environment has."""
        self._count = counts

    def mark(self, begins: Mask, num_rows: npt.NDArray[np.int64] | None = None) -> Flags:
        """Return which rows begin sequences, if they are transitions.

        Args:
            begins: Whether the row does not continue the one before it, `(L, B)`.
            num_rows: How many of the L rows each environment has; None means all.

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
