"""The order in which a ring's slots are the leaves of a sum tree: by slot, or by time."""

from abc import ABC, abstractmethod

import numpy as np
import torch

from rl_core.errors import CheckpointError
from rl_core.stateful import StateReader
from rl_core.types import StateDict
from rl_storages.replay.flags import STEP, Mask, Positions
from rl_storages.replay.ring import ReplayRing
from rl_storages.sampling.sum_tree import SumTree

_NONE: Positions = np.zeros(0, dtype=np.int64)


class IndexLayout(ABC):
    """Assigns a leaf of the tree to each slot that may be drawn.

    Slots that may be drawn have the flag ``ring.drawn``: transitions, or the first ones of
    sequences.

    Args:
        ring: the rows.
    """

    def __init__(self, ring: ReplayRing) -> None:
        self._ring = ring
        self._seen = ring.cursor()

    def catch_up(self) -> tuple[Positions, Positions]:
        """Process the rows inserted since the last call.

        Returns:
            The leaves that became free, and the slots that are new or begin a sequence that has
            grown. A new slot may get a leaf that just became free.
        """
        if self._ring.is_at(self._seen):
            return _NONE, _NONE
        changes = self._take_in()
        self._seen = self._ring.cursor()
        return changes

    @abstractmethod
    def _take_in(self) -> tuple[Positions, Positions]:
        """Process the rows inserted since the last call, of which there are some."""

    @abstractmethod
    def leaves(self, slots: Positions) -> Positions:
        """Return the leaves of slots that have one."""

    @abstractmethod
    def stored(self) -> Positions:
        """Return all slots that have a leaf."""

    @abstractmethod
    def holds(self, slots: Positions) -> Mask:
        """Whether slots have a leaf."""

    def reset(self) -> None:
        """Forget all leaves."""
        self._seen = self._ring.cursor()

    def state_dict(self) -> StateDict:
        """Return what cannot be derived from the rows."""
        return {}

    def load_state_dict(self, state: StateDict) -> None:
        """Restore a state returned by `state_dict`; the ring is restored already.

        Raises:
            CheckpointError: when it is damaged, or of another layout.
        """
        StateReader(state, "storage/sampler/order").expect(())
        self.reset()


class LayoutBySlot(IndexLayout):
    """The leaf of a slot is its number."""

    def _take_in(self) -> tuple[Positions, Positions]:
        return self._ring.changes_since(self._seen)

    def leaves(self, slots: Positions) -> Positions:
        """Return the slots."""
        return slots

    def stored(self) -> Positions:
        """Return all slots that may be drawn."""
        return self._ring.drawable()

    def holds(self, slots: Positions) -> Mask:
        """Whether slots may be drawn."""
        holds: Mask = (self._ring.flags.take(slots) & self._ring.drawn) > 0
        return holds


class LayoutByTime(IndexLayout):
    """Numbers the slots that may be drawn in order of time; those of one step by environment.

    A slot's leaf is its number modulo the number of slots. Numbers begin with 1, and 0 means none,
    so that memory is not touched before it is needed. Sequences get their number when they begin.

    Environments advance at their own pace and overwrite their oldest rows at different times, so
    the numbers of what is still stored have gaps. A tree of ones counts what is there. A slot keeps
    its leaf until it is overwritten or may not be drawn any more, or until as many others came
    after it as there are slots; only slices that lack its environment for whole laps lead to that.

    Args:
        ring: the rows.

    Attributes:
        end: the next number.
    """

    def __init__(self, ring: ReplayRing) -> None:
        super().__init__(ring)
        self._tree = SumTree(ring.num_slots)
        self._number: Positions = np.zeros(ring.num_slots, dtype=np.int64)
        self._slot_at: Positions = np.zeros(ring.num_slots, dtype=np.int64)
        self.end = 1

    @staticmethod
    def bytes_for(num_slots: int) -> int:
        """Return how many bytes it needs for a number of slots."""
        return SumTree.bytes_for(num_slots) + 2 * 8 * num_slots

    def __len__(self) -> int:
        """Return how many slots have a leaf."""
        return int(self._tree.total)

    def _take_in(self) -> tuple[Positions, Positions]:
        ring = self._ring
        slots, is_there = ring.rows_since(self._seen)
        flags = np.where(is_there, ring.flags[slots], 0)
        grown = ring.grown_since(self._seen)
        is_step = (flags & STEP) > 0
        steps_from_newest = is_step[::-1].cumsum(0)[::-1] - is_step
        rows, envs = ((flags & ring.drawn) > 0).nonzero()
        order = np.lexsort((envs, -steps_from_newest[rows, envs]))
        new: Positions = slots[rows[order], envs[order]]
        numbers = self.end + np.arange(len(new))
        self.end += len(new)

        touched = np.concatenate([slots[is_there], ring.retired()])
        gone = self._number[touched]
        self._number[touched] = 0
        leaves = numbers % ring.num_slots
        before = self._slot_at[leaves]
        is_late = (self._number[before] > 0) & (self._number[before] % ring.num_slots == leaves)
        self._number[before[is_late]] = 0
        self._number[new] = numbers
        self._slot_at[leaves] = new
        given_up: Positions = gone[gone > 0] % ring.num_slots
        self._tree.set(given_up, 0.0)
        self._tree.set(leaves, 1.0)
        return given_up, np.concatenate([new, grown[self._number[grown] > 0]])

    def leaves(self, slots: Positions) -> Positions:
        """Return the leaves of slots that have one."""
        leaves: Positions = self._number[slots] % self._ring.num_slots
        return leaves

    def stored(self) -> Positions:
        """Return all slots that have a leaf."""
        stored: Positions = self._number.nonzero()[0]
        return stored

    def holds(self, slots: Positions) -> Mask:
        """Whether slots have a leaf."""
        holds: Mask = self._number[slots] > 0
        return holds

    def slots_of(self, leaves: Positions, first: int) -> Positions:
        """Return the slots at leaves; those outside ``first`` to ``end - 1`` are moved inside."""
        numbers = np.clip(self._number[self._slot_at[leaves]], first, self.end - 1)
        slots: Positions = self._slot_at[numbers % self._ring.num_slots]
        return slots

    def first_of_newest(self, count: int) -> int:
        """Return the number of the oldest among the ``count`` newest."""
        (slot,) = self.newest(np.zeros(1, dtype=np.int64), count)
        return int(self._number[slot])

    def newest(self, ranks: Positions, count: int) -> Positions:
        """Return slots among the ``count`` newest, by their rank from the oldest."""
        if self._has_no_gap(count):
            numbers = self.end - count + ranks
            slots: Positions = self._slot_at[numbers % self._ring.num_slots]
            return slots
        stored = len(self)
        start = self.end % self._ring.num_slots
        fractions = (stored - count + ranks + 0.5) / stored
        slots_found: Positions = self._slot_at[self._tree.find(fractions, start, start)]
        return slots_found

    def reset(self) -> None:
        """Forget all leaves."""
        super().reset()
        self._number[:] = 0
        self._tree.set_all(0.0)
        self.end = 1

    def state_dict(self) -> StateDict:
        """Return the numbers of the slots in use, counted from 0."""
        self.catch_up()
        numbers = self._number[: self._ring.write_positions.used_slots] - 1
        return {"end": self.end - 1, "numbers": torch.from_numpy(numbers)}

    def load_state_dict(self, state: StateDict) -> None:
        """Restore a state returned by `state_dict`; see `IndexLayout.load_state_dict`."""
        ring = self._ring
        saved = StateReader(state, "storage/sampler/order")
        saved.expect(("end", "numbers"))
        end, used = saved.count("end") + 1, ring.write_positions.used_slots
        like = torch.zeros(used, dtype=torch.int64)
        numbers = saved.tensor("numbers", like).numpy(force=True) + 1
        slots = (numbers > 0).nonzero()[0]
        there = numbers[slots]
        is_drawn = (ring.flags[slots] & ring.drawn) > 0
        is_recent = (there < end) & (there >= end - ring.num_slots)
        if not (is_drawn & is_recent).all() or len(np.unique(there)) < len(there):
            raise CheckpointError("storage/sampler/order: the saved numbers contradict the rows")
        self.reset()
        self.end = end
        self._number[slots] = there
        self._slot_at[there % ring.num_slots] = slots
        self._tree.set(there % ring.num_slots, 1.0)

    def _has_no_gap(self, count: int) -> bool:
        """Whether all of the last ``count`` numbers are still there."""
        return self._tree.sum_of(*self.range_from(self.end - count)) == count

    def range_from(self, first: int) -> tuple[int, int]:
        """Return the leaves from a number to the newest, as the first one and the end."""
        return first % self._ring.num_slots, self.end % self._ring.num_slots
