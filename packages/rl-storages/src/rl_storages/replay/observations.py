"""Observations of rows, as they were given."""

from collections.abc import Mapping

from torch import Tensor

from rl_storages.replay.columns import Columns
from rl_storages.replay.frames import FrameStacks


class ObservationReader:
    """Reads observations by slot: columns as they are, and stacks rebuilt from their frames.

    Args:
        columns: the memory.
        names: the columns that are the observation.
        stacks: those of them that hold stacks of frames.

    Attributes:
        names: the columns that are the observation.
        plain: the columns that are read as they are, by slot.
        stacks: what reads the others; None where there are none.
    """

    def __init__(
        self, columns: Columns, names: tuple[str, ...], stacks: FrameStacks | None
    ) -> None:
        self.names = names
        self.stacks = stacks
        stacked = () if stacks is None else stacks.names
        self.plain: Mapping[str, Tensor] = {
            name: columns.by_slot[name] for name in names if name not in stacked
        }
        self._device = columns.device

    def read(self, slots: Tensor) -> dict[str, Tensor]:
        """Return each column of the observation at slots `(N,)`, on the data's device."""
        index = slots.to(self._device)
        observation = {name: column.index_select(0, index) for name, column in self.plain.items()}
        if self.stacks is None:
            return observation
        observation |= self.stacks.read(slots)
        return {name: observation[name] for name in self.names}
