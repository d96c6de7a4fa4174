"""Replay that prefers episodes with high returns."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from rl_core.errors import ConfigError
from rl_core.stateful import StateFields
from rl_core.storage import IndexSampler, ReplayRows, empty_storage_error
from rl_core.types import StateDict


class ByReturn(StateFields, IndexSampler):
    """Draw transitions in proportion to exp(G / temperature), G being their episode's return.

    Transitions of an unfinished episode count as if its return were 0. One that was left, such as
    by a reset from outside, counts as a part of the next.

    Args:
        temperature: above 0, in units of returns. High temperatures draw all episodes alike.

    Raises:
        ConfigError: when the temperature is not above 0.
    """

    state_fields = ("_return", "_episode", "_current")

    def __init__(self, temperature: float = 1.0) -> None:
        if not temperature > 0.0:
            raise ConfigError(f"temperature must be above 0, got {temperature}")
        self.temperature = temperature

    def attach(self, rows: ReplayRows, generator: torch.Generator) -> None:
        """Begin to draw from rows, which are empty; sequences are refused."""
        if rows.learned > 1:
            raise ConfigError(
                "ByReturn sums the rewards of single transitions; leave sequences out"
            )
        super().attach(rows, generator)
        self.reset()

    def reset(self) -> None:
        """Forget all rows."""
        super().reset()
        self._return = np.full(self.rows.num_slots, -np.inf)  # which is never drawn
        self._episode = np.zeros(self.rows.num_slots, np.int64)  # number of a slot's episode
        self._current = np.zeros(self.rows.num_envs, np.int64)  # number of an environment's episode

    def draw(self, num_batches: int, size: int) -> Iterator[Tensor]:
        """Yield one block, drawn with replacement."""
        self._catch_up()
        highest = self._return.max()
        if highest == -np.inf:
            raise empty_storage_error()
        weights = torch.from_numpy(np.exp((self._return - highest) / self.temperature))
        count = num_batches * size
        drawn = torch.multinomial(weights, count, replacement=True, generator=self.generator)
        yield drawn.view(num_batches, size)

    def _catch_up(self) -> None:
        """Weigh the rows that were inserted since the last call."""
        gone, new = self.changes()
        self._return[np.concatenate([gone, new])] = -np.inf
        for slot, is_end in zip(new, self.rows.ends_episode(new), strict=True):
            env = slot % self.rows.num_envs
            self._episode[slot], self._return[slot] = self._current[env], 0.0
            if is_end:
                rows = np.arange(env, self.rows.num_slots, self.rows.num_envs)
                rows = rows[self._episode[rows] == self._current[env]]
                rows = rows[self._return[rows] > -np.inf]
                self._return[rows] = float(self.rows.reward[rows].sum())
                self._current[env] += 1

    def state_dict(self) -> StateDict:
        """Return the state fields, up to date with the rows."""
        self._catch_up()
        return super().state_dict()

    def load_state_dict(self, state: StateDict) -> None:
        """Restore a state returned by `state_dict`; the rows are restored already."""
        self.reset()
        super().load_state_dict(state)
