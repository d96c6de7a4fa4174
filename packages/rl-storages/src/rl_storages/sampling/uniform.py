"""Uniform sampling."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from rl_core.storage import IndexSampler, empty_storage_error
from rl_storages.replay.flags import Positions
from rl_storages.replay.ring import ReplayRing

_ROUNDS = 8
"""Tries before a search; usually at least half of the rows are transitions."""


class UniformSampler(IndexSampler):
    """Samples transitions, or sequences, uniformly with replacement.

    Args:
        flag: flag of the rows to draw; None takes ``rows.drawn``, of which batches are made.
    """

    rows: ReplayRing

    def __init__(self, flag: int | None = None) -> None:
        self._flag = flag

    def draw(self, num_batches: int, size: int) -> Iterator[Tensor]:
        """Yield one block by rejection sampling: the first allowed ones of more slots."""
        ring = self.rows
        flags, used = ring.flags, ring.write_positions.used_slots
        wanted = ring.drawn if self._flag is None else self._flag
        missing = num_batches * size
        share = ring.learned if self._flag is None else 1  # one row in so many begins a sequence
        parts: list[Positions] = []
        for _ in range(_ROUNDS):
            # In long episodes almost every row is a transition.
            rows = self._draw(used, (missing + missing // 8 + 8) * share)
            accepted = (flags.take(rows) & wanted).nonzero()[0]
            parts.append(rows.take(accepted[:missing]))
            missing -= len(parts[-1])
            if not missing:
                break
        else:
            there = (flags[:used] & wanted).nonzero()[0]
            if len(there) == 0:
                raise empty_storage_error()
            parts.append(there[self._draw(len(there), missing)])
        slots = parts[0] if len(parts) == 1 else np.concatenate(parts)
        yield torch.from_numpy(slots).view(num_batches, size)

    def _draw(self, high: int, count: int) -> Positions:
        drawn: Positions = torch.randint(high, (count,), generator=self.generator).numpy()
        return drawn
