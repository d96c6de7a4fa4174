"""Which transitions or sequences are drawn."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from rl_core.batch import ReplayBatch
from rl_core.errors import ConfigError
from rl_core.stateful import StateReader
from rl_core.types import StateDict
from rl_storages.replay.ring import ReplayRing
from rl_storages.replay.write_positions import Positions

_ROUNDS = 8
"""Draws before a search: of a ring in normal use at least half the rows are transitions."""


class IndexSampler(ABC):
    """Chooses slots of a ring; a subclass says how. What is concrete here is for uniform draws.

    A slot that may be drawn has the flag ``ring.drawn``: it holds a transition, or the first one
    of a sequence that is learned from. Samplers look at the ring whenever they are asked: it tells
    them nothing.
    """

    @abstractmethod
    def blocks(self, num_batches: int, size: int) -> Iterator[Tensor]:
        """Yield blocks `(K, N)` of slots that may be drawn.

        Raises:
            ConfigError: when there is none.
        """

    def weights(self, slots: Tensor) -> Tensor:
        """Return the importance weights of K batches of slots, `(K, N)`, float32."""
        return torch.ones(slots.shape)

    def learn(self, batch: ReplayBatch, info: Mapping[str, Tensor]) -> None:
        """Take in what a gradient step answered."""
        return

    def note_returns(self, returns: Sequence[float]) -> None:
        """Take in the returns of episodes that ended."""
        return

    def reset(self) -> None:
        """Forget what belongs to rows."""
        return

    def set_progress(self, progress: float) -> None:
        """Move schedules on."""
        return

    def live_parameters(self) -> Mapping[str, float]:
        """Return the parameters that may change while running."""
        return {}

    def set_live_parameter(self, name: str, value: float) -> None:
        """Set one of `live_parameters`."""
        raise ConfigError(f"{type(self).__name__} has no live parameter '{name}'")

    def metrics(self) -> Mapping[str, float]:
        """Return what is worth logging; the live parameters by default."""
        return self.live_parameters()

    def state_dict(self) -> StateDict:
        """Return what it knows beyond the ring's rows."""
        return {}

    def load_state_dict(self, state: StateDict) -> None:
        """Take over a state returned by `state_dict`, after the ring took over its own.

        Raises:
            CheckpointError: when it is of another kind of draws.
        """
        StateReader(state, "storage/sampler").expect(())


class UniformSampler(IndexSampler):
    """Draws all transitions, or all sequences, alike, with replacement.

    Args:
        ring: whose slots are drawn.
        generator: lives on the CPU.
        flag: of what is drawn; None draws what batches are made of, ``ring.drawn``.
    """

    def __init__(
        self, ring: ReplayRing, generator: torch.Generator, flag: int | None = None
    ) -> None:
        self._ring = ring
        self._generator = generator
        self._flag = flag

    def blocks(self, num_batches: int, size: int) -> Iterator[Tensor]:
        """Yield one block, drawn by rejection: the first that may be drawn, of more slots."""
        ring = self._ring
        flags, used = ring.flags, ring.used_slots
        wanted = ring.drawn if self._flag is None else self._flag
        missing = num_batches * size
        parts: list[Positions] = []
        for _ in range(_ROUNDS):
            # In long episodes almost every row is a transition, and every so manyth a sequence's.
            rows = self._draw(used, (missing + missing // 8 + 8) * ring.learned)
            accepted = (flags.take(rows) & wanted).nonzero()[0]
            parts.append(rows.take(accepted[:missing]))
            missing -= len(parts[-1])
            if not missing:
                break
        else:
            there = (flags[:used] & wanted).nonzero()[0]
            if len(there) == 0:
                raise nothing_to_draw()
            parts.append(there[self._draw(len(there), missing)])
        slots = parts[0] if len(parts) == 1 else np.concatenate(parts)
        yield torch.from_numpy(slots).view(num_batches, size)

    def _draw(self, high: int, count: int) -> Positions:
        drawn: Positions = torch.randint(high, (count,), generator=self._generator).numpy()
        return drawn


def nothing_to_draw() -> ConfigError:
    """Say that there is no transition."""
    return ConfigError(
        "the replay buffer holds no transition yet; collect some before drawing from it "
        "(algorithm.update_after)"
    )
