"""The true last observations of episodes that were cut inside a step."""

from collections.abc import Mapping

import torch
from torch import Tensor


class FinalObservations:
    """A few observations `(K, ...)` by row and environment, in the order they were added.

    Args:
        empty: by column, shape `(0, ...)`: dtype, device and shape of what will be added.
    """

    def __init__(self, empty: Mapping[str, Tensor]) -> None:
        self._empty = dict(empty)
        device = next((column.device for column in self._empty.values()), None)
        self._no_index = torch.zeros((0, 2), dtype=torch.int64, device=device)
        self.clear()

    @property
    def index(self) -> Tensor:
        """Row and environment of each, shape `(K, 2)`."""
        return torch.cat([self._no_index, *self._index])

    @property
    def observations(self) -> dict[str, Tensor]:
        """Each column `(K, ...)`."""
        return {name: torch.cat([self._empty[name], *self._pieces[name]]) for name in self._empty}

    def add(self, row: int, envs: Tensor, observations: Mapping[str, Tensor]) -> None:
        """Keep the observations of some environments at one row.

        Args:
            row: counted from the rollout's start.
            envs: shape `(k,)`, int64.
            observations: each column `(k, ...)`.
        """
        self.extend(torch.stack([torch.full_like(envs, row), envs], dim=1), observations)

    def extend(self, index: Tensor, observations: Mapping[str, Tensor]) -> None:
        """Keep copies of observations by an index of their own.

        Args:
            index: shape `(k, 2)`, row and environment.
            observations: each column `(k, ...)`.
        """
        self._index.append(index.to(self._no_index.device))
        for name, pieces in self._pieces.items():
            pieces.append(observations[name].to(self._empty[name], copy=True))

    def clear(self) -> None:
        """Forget all of them."""
        self._index: list[Tensor] = []
        self._pieces: dict[str, list[Tensor]] = {name: [] for name in self._empty}
