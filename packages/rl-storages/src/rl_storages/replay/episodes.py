"""Where the episodes of a ring begin and end."""

import numpy as np

from rl_storages.replay.flags import VALID, Positions
from rl_storages.replay.ring import ReplayRing


class Episodes:
    """Tells of each transition between which others of its episode it lies, as far as stored.

    Consecutive transitions of an environment are of one episode, because the row after the last
    transition of one, or of what is stored of it, is never a transition. All is found out from the
    rows that are new, so nothing has to be searched for, and nothing saved.

    Args:
        ring: what is looked at.
    """

    def __init__(self, ring: ReplayRing) -> None:
        self._ring = ring
        self._episode: Positions = np.zeros(ring.num_slots, dtype=np.int64)  # of a slot
        self._first: Positions = np.zeros(ring.num_slots, dtype=np.int64)  # position, of an episode
        self._last: Positions = np.zeros(ring.num_slots, dtype=np.int64)
        self.begin_anew()

    @staticmethod
    def bytes_for(num_slots: int) -> int:
        """Return what it takes for so many slots."""
        return 3 * 8 * num_slots

    def begin_anew(self) -> None:
        """Look at all rows again, after they were replaced."""
        self._count: Positions = np.zeros(self._ring.num_envs, dtype=np.int64)
        self._seen = self._ring.write_positions.positions - self._ring.num_rows + 1

    def bounds(self, slots: Positions) -> tuple[Positions, Positions, Positions]:
        """Return positions of transitions, and of the first and last of their episodes.

        Args:
            slots: of transitions, shape `(N,)`.

        Returns:
            Three positions of each transition's environment, `(N,)`.
        """
        self._catch_up()
        ring = self._ring
        row, env = np.divmod(slots, ring.num_envs)
        positions = ring.generations(slots) * ring.num_rows + row
        episode = self._episode[slots]
        return positions, np.maximum(self._first[episode], ring.oldest[env]), self._last[episode]

    def _catch_up(self) -> None:
        ring = self._ring
        if ring.is_at(self._seen):
            return
        slots, is_there = ring.rows_since(self._seen)
        self._seen = ring.cursor()
        positions = self._seen - np.arange(len(slots) - 1, -1, -1)[:, None]
        is_valid = is_there & ((ring.flags[slots] & VALID) > 0)
        # Before the oldest row comes the write position, which is never a transition.
        begins = is_valid & ((ring.flags[ring.slots(positions - 1)] & VALID) == 0)
        numbers = self._count + begins.cumsum(0)
        episodes = ring.slots(numbers)  # no environment has more episodes than rows
        self._first[episodes[begins]] = positions[begins]
        self._last[episodes[is_valid]] = positions[is_valid]  # the last one assigned stays
        self._episode[slots[is_valid]] = episodes[is_valid]
        self._count = numbers[-1]
