"""Rows of several environments in rings of fixed length, one per environment."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rl_core.errors import CheckpointError
from rl_core.stateful import StateReader
from rl_core.types import StateDict
from rl_storages.replay.columns import DEPTH, Columns
from rl_storages.replay.flags import (
    ENDED,
    KNOWN,
    SEQUENCE,
    STEP,
    VALID,
    Flags,
    Mask,
    Positions,
    SequenceStarts,
)
from rl_storages.replay.frames import FrameStacks, ObservationReader
from rl_storages.replay.row_writer import RowWriter, WritePositions

_NONE: Positions = np.zeros(0, dtype=np.int64)


class ReplayRing:
    """Steps of `B` environments, in `R` rows each, the oldest overwritten first.

    Each observation is stored once. The successor of a transition is its environment's next row,
    whatever that is: the next step, the last observation of an ended episode, or the row at the
    *write position*, whose observation the environment's next action will be taken in. The row
    after the last transition of an episode, or of what is stored of it, is never a transition:
    whoever looks ahead stops at a row without `VALID`.

    Environments advance each at their own pace, because an episode that ended and was reset in the
    same step takes a row for its last observation. For *slots* and *positions* see
    `WritePositions`; `rl_storages.replay.row_writer` shows the rows.

    What is drawn is a row with the flag `drawn`: a transition, or the first one of a sequence. It
    may need some of the rows before it: the older frames of its stack, and its burn-in. The oldest
    rows, which would miss these, have lost that flag.

    Args:
        columns: the memory, `(R, B, ...)`.
        num_rows: R.
        num_envs: B.
        observation_names: the columns that are the observation.
        stacks: which of them are stacks of frames.
        sequence_starts: how sequences are cut; None draws transitions.

    Attributes:
        sequence_starts: as given.
        flags: of every slot.
        reward: of every slot.
        drawn: the flag of rows that may be drawn.
        learned: transitions that are learned from in what is drawn, at most.
        observed: the columns that are there in every row, whether it is a step or not.
        observations: reads observations by slot.
        write_positions: where the next rows are written.
        slots: see `WritePositions.slots`.
        generations: see `WritePositions.generations`.
        writer: writes the rows.
    """

    def __init__(
        self,
        columns: Columns,
        num_rows: int,
        num_envs: int,
        observation_names: tuple[str, ...],
        *,
        stacks: FrameStacks | None = None,
        sequence_starts: SequenceStarts | None = None,
    ) -> None:
        self.columns = columns
        self.num_rows = num_rows
        self.num_envs = num_envs
        self.num_slots = num_rows * num_envs
        self.observations = ObservationReader(columns, observation_names, stacks)
        self.observed = observation_names if stacks is None else (*observation_names, DEPTH)
        self.drawn = VALID if sequence_starts is None else SEQUENCE
        self.learned = 1 if sequence_starts is None else sequence_starts.learned
        self.flags: Flags = columns.slots["flags"]
        self.reward: npt.NDArray[np.float32] = columns.slots["reward"]
        self.sequence_starts = sequence_starts
        self.write_positions = WritePositions(num_rows, num_envs)
        self.slots = self.write_positions.slots
        self.generations = self.write_positions.generations
        self.writer = RowWriter(
            columns, self.write_positions, self.observations, stacks, sequence_starts
        )
        self._reported: Positions = self.cursor()

    @property
    def oldest(self) -> Positions:
        """Position of the oldest row of each environment that may be a transition, shape `(B,)`."""
        return self.write_positions.positions - self.num_rows + 1 + self.writer.lost

    def reset(self) -> None:
        """Forget all rows; positions go on, so that no later one is mistaken for an earlier."""
        places = self.write_positions
        self.flags[: places.used_slots] = 0
        num_rows = places.positions - places.origin
        places.restart()
        self._reported = self.cursor()
        self.writer.boundaries.forget(torch.from_numpy(num_rows))

    def origin(self, first: Positions) -> Tensor:
        """Return the column `ORIGIN` of a slice that begins at some positions `(B,)`."""
        return self.writer.boundaries.origin(torch.from_numpy(first - self.write_positions.origin))

    def retired(self) -> Positions:
        """Return the slots of the oldest rows, which miss what they need and are not drawn."""
        return self.slots(
            self.write_positions.positions + np.arange(1, self.writer.guard + 1)[:, None]
        ).ravel()

    def grown_since(self, cursor: Positions) -> Positions:
        """Return the slots of sequences that have more transitions than at a mark."""
        if self.sequence_starts is None:
            return _NONE
        back = np.arange(1, self.sequence_starts.learned)[:, None]
        goes_on = (self.flags[self.slots(cursor)] & (VALID | SEQUENCE)) == VALID
        first = self.slots(cursor - back)
        begins = (self.flags[first] & SEQUENCE) > 0
        is_nearest = begins & (np.cumsum(begins, 0) == 1)
        grown: Positions = first[is_nearest & goes_on]
        return grown

    def rows_since(self, cursor: Positions) -> tuple[Positions, Mask]:
        """Return the slots of all rows from a mark to the write positions, as far as stored.

        Returns:
            Slots `(L, B)`, in the order of time, the rows at both ends included; and which of them
            exist, where some environments have fewer.
        """
        spans = self.write_positions.positions - cursor
        back = np.arange(min(int(spans.max()), self.num_rows - 1), -1, -1)[:, None]
        return self.slots(self.write_positions.positions - back), back <= spans

    def slots_since(self, cursor: Positions) -> Positions:
        """Return the slots of `rows_since` that exist, `(N,)`, in the order of time."""
        slots, is_there = self.rows_since(cursor)
        return slots[is_there]

    def new_transitions(self) -> Positions:
        """Return the slots of the transitions since the last call, as far as they are stored."""
        slots = self.slots_since(self._reported)
        self._reported = self.cursor()
        return slots[(self.flags[slots] & VALID) > 0]

    def step_counts(self) -> Positions:
        """Count the steps stored of each environment, shape `(B,)`."""
        used = (self.flags[: self.write_positions.used_slots] & STEP) > 0
        counts: Positions = np.count_nonzero(used.reshape(-1, self.num_envs), axis=0)
        return counts

    def cursor(self) -> Positions:
        """Return a mark of what has been inserted so far."""
        return self.write_positions.positions.copy()

    def is_at(self, cursor: Positions) -> bool:
        """Return whether nothing was inserted since a mark."""
        places = self.write_positions
        return bool(
            (cursor == (places.positions if places.common is None else places.common)).all()
        )

    def changes_since(self, cursor: Positions | None) -> tuple[Positions, Positions]:
        """Return the slots that can no longer be drawn since a mark, and the new ones.

        A sequence that has grown counts as new.

        Args:
            cursor: what `cursor` returned; None for everything that is stored.
        """
        if cursor is None:
            slots = self.slots_since(np.full(self.num_envs, self.write_positions.origin))
            return _NONE, slots[(self.flags.take(slots) & self.drawn) > 0]
        if self.is_at(cursor):
            return _NONE, _NONE
        slots = np.concatenate([self.retired(), self.grown_since(cursor), self.slots_since(cursor)])
        longest = int((self.write_positions.positions - cursor).max())
        if longest + max(self.writer.guard, self.learned) >= self.num_rows:  # one lap or more
            from_last, first = np.unique(slots[::-1], return_index=True)
            slots = from_last[np.argsort(-first)]  # each once, where it is named last
        is_new = (self.flags.take(slots) & self.drawn) > 0
        return slots[~is_new], slots[is_new]

    def drawable(self) -> Positions:
        """Return all slots that may be drawn."""
        slots: Positions = (self.flags[: self.write_positions.used_slots] & self.drawn).nonzero()[0]
        return slots

    def ends_episode(self, slots: Positions) -> Mask:
        """Return whether some slots hold the last transition of an episode; see `ReplayRows`."""
        ahead = np.arange(self.learned)[:, None] * self.num_envs
        flags = self.flags[(slots + ahead) % self.num_slots]
        flags[1:] *= np.logical_and.accumulate((flags[1:] & (VALID | SEQUENCE)) == VALID)
        ends: Mask = ((flags & ENDED) > 0).any(0)
        return ends

    def num_transitions(self) -> int:
        """Count the transitions stored of all environments."""
        return int(np.count_nonzero(self.flags[: self.write_positions.used_slots] & VALID))

    def step_positions(self) -> Iterator[Positions]:
        """Yield the positions of the steps stored of each environment, oldest first."""
        for env, end in enumerate(self.write_positions.positions.tolist()):
            oldest = max(self.write_positions.origin, end - self.num_rows + 1)
            positions = np.arange(oldest, end)
            flags = self.flags[positions % self.num_rows * self.num_envs + env]
            yield positions[(flags & STEP) > 0]

    def state_dict(self) -> StateDict:
        """Return all rows that were written to, and where the next ones go."""
        rows = self.write_positions.used_slots // self.num_envs
        return {
            "num_rows": self.num_rows,
            "origin": self.write_positions.origin,
            "positions": torch.from_numpy(self.cursor()),
            "told": torch.from_numpy(self._reported.copy()),
            "sequences": self._sequences(),
            "boundaries": self.writer.boundaries.state_dict(),
            "columns": {name: column[:rows] for name, column in self.columns.by_row.items()},
        }

    def _sequences(self) -> dict[str, int]:
        """Return how data is cut, by which its flags were set."""
        sequence_starts = self.sequence_starts
        return (
            {}
            if sequence_starts is None
            else {"learned": sequence_starts.learned, "burn_in": sequence_starts.burn_in}
        )

    def load_state_dict(self, state: StateDict) -> None:
        """Take over a state returned by `state_dict`.

        Raises:
            CheckpointError: when it is of another size, or damaged; nothing is written.
        """
        saved = StateReader(state, "storage/ring")
        saved.expect(
            ("num_rows", "origin", "positions", "told", "sequences", "boundaries", "columns")
        )
        if saved.count("num_rows") != self.num_rows:
            raise CheckpointError(
                f"the saved replay buffer has {saved.count('num_rows')} rows per environment, "
                f"this one {self.num_rows}; resume with the same size and number of environments, "
                "or give the directory as trainer.demonstrations to take over its transitions"
            )
        sequences = saved.reader("sequences")
        sequences.expect(self._sequences())
        if any(sequences.count(name) != count for name, count in self._sequences().items()):
            raise CheckpointError(
                "the saved replay buffer was cut into other sequences; resume with the same "
                "lengths and overlaps of storage.sequences, or give the directory as "
                "trainer.demonstrations to cut its transitions anew"
            )
        origin = saved.count("origin")
        like = torch.zeros(self.num_envs, dtype=torch.int64)
        positions, told = (
            saved.tensor(key, like).numpy(force=True).copy() for key in ("positions", "told")
        )
        if origin % self.num_rows or (told < origin).any() or (positions < told).any():
            raise CheckpointError("the saved replay buffer's positions contradict each other")
        rows = min(int(positions.max()) - origin + 1, self.num_rows)
        inner = saved.reader("columns")
        inner.expect(self.columns.by_row)
        parts = {
            name: inner.tensor(name, like=column[:rows])
            for name, column in self.columns.by_row.items()
        }
        flags = parts["flags"].numpy(force=True)
        if (flags & ~np.uint8(KNOWN)).any():
            raise CheckpointError("storage/ring/columns: 'flags' holds bits that mean nothing")
        self.reset()
        self.writer.boundaries.load_state_dict(saved.tree("boundaries"))
        for name, part in parts.items():
            self.columns.by_row[name][:rows].copy_(part)
        self.write_positions.origin = origin
        self._reported = told
        self.write_positions.set(positions)
        if self.sequence_starts is not None:
            back = self.slots(positions - np.arange(1, self.sequence_starts.learned + 1)[:, None])
            self.sequence_starts.begin_anew(((self.flags[back] & SEQUENCE) > 0).argmax(0))
