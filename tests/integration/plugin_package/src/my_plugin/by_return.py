"""Replay that prefers episodes with high returns."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from rl_core.errors import ConfigError
from rl_core.stateful import StateReader
from rl_core.storage import IndexSampler, ReplayRows, nothing_to_draw
from rl_core.types import Array, StateDict


class ByReturn(IndexSampler):
    r"""Draw transitions in proportion to $e^{G / \tau}$, G being the return of their episode.

    Transitions of episodes that have not ended yet count as if their return were 0.

    Args:
        temperature: $\tau > 0$, in units of returns; the higher, the more alike all draws are.

    Raises:
        ConfigError: when the temperature is not above 0.
    """

    def __init__(self, temperature: float = 1.0) -> None:
        if not temperature > 0.0:
            raise ConfigError(f"temperature must be above 0, got {temperature}")
        self.temperature = temperature

    def attach(self, rows: ReplayRows, generator: torch.Generator) -> None:
        """Begin to draw from rows, which are empty."""
        super().attach(rows, generator)
        self.reset()

    def reset(self) -> None:
        """Forget all rows."""
        super().reset()
        self._weight = np.zeros(self.rows.num_slots)
        self._episode = np.zeros(self.rows.num_slots, np.int64)  # counted by environment
        self._running = np.zeros(self.rows.num_envs, np.int64)

    def draw(self, num_batches: int, size: int) -> Iterator[Tensor]:
        """Yield one block, drawn with replacement."""
        self._look()
        weights = torch.from_numpy(self._weight)
        if not weights.any():
            raise nothing_to_draw()
        count = num_batches * size
        drawn = torch.multinomial(weights, count, replacement=True, generator=self.generator)
        yield drawn.view(num_batches, size)

    def _look(self) -> None:
        """Weigh what was inserted since the last draw."""
        gone, new = self.changes()
        self._weight[np.concatenate([gone, new])] = 0.0
        for slot, is_end in zip(new, self.rows.ends_episode(new), strict=True):
            env = slot % self.rows.num_envs
            self._episode[slot], self._weight[slot] = self._running[env], 1.0
            if is_end:
                rows = np.arange(env, self.rows.num_slots, self.rows.num_envs)
                rows = rows[(self._episode[rows] == self._running[env]) & (self._weight[rows] > 0)]
                episode_return = float(self.rows.reward[rows].sum())
                self._weight[rows] = np.exp(episode_return / self.temperature)
                self._running[env] += 1

    def state_dict(self) -> StateDict:
        """Return what it knows of the rows."""
        self._look()
        return {name: torch.from_numpy(array.copy()) for name, array in self._arrays().items()}

    def load_state_dict(self, state: StateDict) -> None:
        """Take over a state returned by `state_dict`."""
        saved = StateReader(state, "storage/sampler")
        saved.expect(self._arrays())
        self.reset()
        for name, array in self._arrays().items():
            array[:] = saved.tensor(name, like=torch.from_numpy(array)).numpy()

    def _arrays(self) -> dict[str, Array]:
        return {"weight": self._weight, "episode": self._episode, "running": self._running}
