"""How steps become rows: each observation is written once, where its environment writes next.

An environment's rows, oldest first: ``o`` is an observation, ``a`` the action taken in it, ``r``
its reward. A row is a transition if it has the flag ``VALID``; the observation that it leads to is
always in the row after it, whatever that row is::

    row     p        p+1        p+2        p+3        p+4            p+5
    holds   o0 a0 r0 o1 a1 r1   o2         o0 a0 r0   o1             -
    flags   VALID    VALID      -          VALID      -              -
            START    TERMINATED            START
            |------ episode ------|        |- next -| write position  overwritten next

Row p+2 holds the last observation of an episode and is never drawn. Where an environment resets in
a step of its own (next-step autoreset), that row is this step, with the flag ``STEP``. The row at
the write position holds the observation that the next action will be taken in.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from rl_core.batch import Transition
from rl_core.storage import EpisodeBoundaries
from rl_core.types import ArrayObservation
from rl_storages.replay.columns import DEPTH, FIRST, Columns
from rl_storages.replay.flags import (
    EPISODE_START,
    SEQUENCE,
    STEP,
    TERMINATED,
    TRUNCATED,
    VALID,
    Flags,
    Mask,
    Positions,
    SequenceStarts,
)
from rl_storages.replay.frames import FrameStacks, ObservationReader
from rl_storages.transitions import Rows, TransitionFitter


class WritePositions:
    """Where each environment writes next: the row that its next action will be taken in.

    Row `r` of environment `b` is in *slot* `r * B + b`. *Positions* count an environment's rows
    without end; row `p` is overwritten by `p + R`.

    Args:
        num_rows: R.
        num_envs: B.

    Attributes:
        common: the position of all environments while they are side by side; None otherwise.
        origin: the position of the first row since the storage was emptied.
    """

    def __init__(self, num_rows: int, num_envs: int) -> None:
        self.num_rows = num_rows
        self.num_envs = num_envs
        self.envs = np.arange(num_envs)
        self.origin = 0
        self.set(np.zeros(num_envs, dtype=np.int64))

    @property
    def positions(self) -> Positions:
        """Each environment's position, shape `(B,)`."""
        if self.common is not None:
            return np.full(self.num_envs, self.common)
        return self._positions

    @property
    def used_slots(self) -> int:
        """The slots from 0 that were written to since the storage was emptied."""
        highest = int(self._positions.max()) if self.common is None else self.common
        return min(highest - self.origin + 1, self.num_rows) * self.num_envs

    def slots(self, positions: Positions) -> Positions:
        """Return the slots of positions, the last axis being environments."""
        slots: Positions = positions % self.num_rows * self.num_envs + self.envs
        return slots

    def set(self, positions: Positions) -> None:
        """Move each environment to a position, shape `(B,)`."""
        first = int(positions[0])
        self.common: int | None = first if (positions == first).all() else None
        self._positions = positions
        self._own_slots = self.slots(positions)  # kept up to date only while common is None

    def step(self) -> None:
        """Advance all environments by one row."""
        if self.common is not None:
            self.common += 1
            return
        self._positions += 1
        self._own_slots = self.slots(self._positions)

    def index(self, ahead: int = 0) -> int | Positions:
        """Return the number of the row while environments are side by side, else slots `(B,)`.

        Args:
            ahead: of the row so many positions further.
        """
        if self.common is not None:
            return (self.common + ahead) % self.num_rows
        return self.slots(self._positions + ahead) if ahead else self._own_slots

    def restart(self) -> None:
        """Begin anew in the first row, at positions that no row had yet."""
        self.origin = -(-int(self.positions.max()) // self.num_rows) * self.num_rows
        self.set(np.full(self.num_envs, self.origin))

    def generations(self, slots: Positions) -> Positions:
        """Return how many times each slot had been filled before it got what it holds."""
        # Slots up to the write position were filled in this lap, those after it in the last one.
        if self.common is not None:
            lap, row = divmod(self.common, self.num_rows)
            return lap - (slots >= (row + 1) * self.num_envs)
        env = slots % self.num_envs
        laps: Positions = self._positions // self.num_rows
        return laps[env] - (slots > self._own_slots[env])


class RowWriter:
    """Writes the rows of a `ReplayRing`.

    Args:
        columns: the memory.
        places: where the next rows are written; the writer moves them.
        observations: reads what is stored.
        stacks: which columns are stacks of frames.
        sequence_starts: how sequences are cut; None draws transitions.

    Attributes:
        guard: how many of the oldest rows miss what they need before them, to be drawn.
        lost: how many of these miss frames of their own stack, and are no steps any more.
        kept: by n, which flags a row keeps when it becomes the n-th oldest.
        boundaries: knows what continues the newest rows.
    """

    def __init__(
        self,
        columns: Columns,
        places: WritePositions,
        observations: ObservationReader,
        stacks: FrameStacks | None,
        sequence_starts: SequenceStarts | None,
    ) -> None:
        self.lost = 0 if stacks is None else stacks.size - 1
        self.guard = self.lost + (0 if sequence_starts is None else sequence_starts.burn_in)
        self.boundaries = EpisodeBoundaries(places.num_envs)
        self._columns = columns
        self._places = places
        self._observations = observations
        self._stacks = stacks
        self._sequence_starts = sequence_starts
        # Sequences may lead through the rows of a burn-in, but not where stacks are gone.
        self.kept = {self.guard: np.uint8(0xFF & ~SEQUENCE)} if self.guard else {}
        if self.lost:
            self.kept[self.lost] = np.uint8(0xFF & ~(VALID | STEP | SEQUENCE))
        self._flags: Flags = columns.slots["flags"]
        self._flag_bytes = memoryview(self._flags)  # a few bytes are written faster than by NumPy
        self._no_flags = bytes(places.num_envs)
        self._step_flags = bytes([VALID | STEP] * places.num_envs)
        self._next_observation: ArrayObservation | None = None
        self._fitter = TransitionFitter(
            columns.expected, places.num_envs, observations.names, columns.device
        )

    def insert(self, transition: Transition) -> None:
        """Take in one step of all environments.

        Raises:
            DataError: when a column is missing or has another shape or dtype; nothing is written.
        """
        places, fit, stacks = self._places, self._fitter, self._stacks
        starts, terminated, truncated, valid = fit.masks(transition)
        # Rows without any event are the common case; looking through bytes is the fastest check.
        starts_any = 1 in starts.tobytes()
        ended_any = 1 in terminated.tobytes() or 1 in truncated.tobytes()
        values, after = fit.step(transition)
        last = transition.final_observation
        final = None if last is None else fit.observation("final_observation", last)
        # What the step before led to is in the row already, and was checked.
        is_stored = transition.observation is self._next_observation
        observation: Rows = []
        if not is_stored or starts_any or self.boundaries.is_pending or stacks is not None:
            observation = fit.observation("observation", transition.observation)
        if stacks is not None:
            ended = terminated | truncated
            stays = valid if final is None else valid & ~ended
            stacks.check_goes_on(observation, after, stays, "next_observation")
            if final is not None:
                stacks.check_goes_on(observation, final, valid & ended, "final_observation")
        if starts_any or self.boundaries.is_pending:
            self._join(observation, starts | self.boundaries.breaks().numpy())
            self.boundaries.inserted()
        flags = self._step_flags
        if starts_any or ended_any or self._sequence_starts is not None or 0 in valid.tobytes():
            packed = _pack_flags(starts, terminated, truncated, valid)
            if self._sequence_starts is not None:
                packed |= self._sequence_starts.mark(self._begins()[None])[0] * valid
            flags = packed.tobytes()
        if stacks is not None:
            depths = (DEPTH, stacks.following_depths(places.slots(places.positions)))
            after = [*stacks.newest(after), depths]
            final = None if final is None else [*stacks.newest(final), depths]
        self._next_observation = transition.next_observation
        self._write(values, flags)
        if ended_any and final is not None:
            self._advance()
            jumps = (terminated | truncated).nonzero()[0]
            self._write_some(final, jumps)
            self._advance(jumps)
            self._write_some(after)
            return
        places.step()
        self._write(after, self._no_flags)
        if self.kept:
            self._retire()

    def append(self, data: Mapping[str, Tensor], num_rows: Positions) -> None:
        """Take in rows of each environment, of which the last is not a step but what followed.

        Args:
            data: columns `(L, B, ...)` all of which fit, and the stacks of the first row.
            num_rows: how many of the L are there of each environment, shape `(B,)`.

        Raises:
            DataError: when the slice does not say where it is from; nothing is written.
        """
        origin = self.boundaries.checked_origin(data)
        places, given = self._places, num_rows > 0
        if not given.any():
            return
        starts = (data["flags"][0].numpy(force=True) & EPISODE_START) > 0
        stacked = () if self._stacks is None else self._stacks.names
        observation: Rows = [
            (name, self._fitter.fit(name, data[FIRST + name if name in stacked else name][0]))
            for name in self._observations.names
        ]
        elsewhere = starts | self.boundaries.breaks_before(origin).numpy() | self._begins()
        self._join(observation, elsewhere & given)
        steps = np.arange(len(data["flags"]))[:, None]
        data = {**data, **self._derived(data, steps, num_rows)}
        # Rows that would be overwritten by later ones of the same slice are left out.
        kept = (steps < num_rows) & (steps >= num_rows - places.num_rows)
        place = torch.from_numpy(places.slots(places.positions + steps)[kept])
        mask = torch.from_numpy(kept)
        for name, column in self._columns.by_slot.items():
            part = data[name]
            column[place.to(column.device)] = part[mask.to(part.device)].to(column.device)
        places.set(places.positions + np.maximum(num_rows - 1, 0))
        for oldest, flags in self.kept.items():
            ahead = np.arange(1, oldest + 1)[:, None]
            self._flags[places.slots(places.positions + ahead)] &= flags
        self.boundaries.appended(origin, torch.from_numpy(np.maximum(num_rows - 1, 0)))

    def _join(self, observation: Rows, elsewhere: Mask) -> None:
        """Write what is acted on, in environments that do not just continue.

        Where an episode begins, the row before the write position usually holds the last
        observation of an ended episode, or a step that only reset; then the new episode begins at
        the write position. If that row is a transition, the row at the write position holds what
        followed it and has to stay: the episode begins one row further.

        Args:
            observation: what is acted on, shape `(B, ...)`, by column.
            elsewhere: which environments begin an episode, or are in another one.
        """
        leaves = elsewhere & ~self._begins()
        self._advance(leaves.nonzero()[0])
        stacks = self._stacks
        if stacks is None:
            self._write_some(observation, elsewhere.nonzero()[0])
            return
        depths = stacks.first_depths(observation)
        is_first = elsewhere & (self._places.positions == self._places.origin)
        self.boundaries.precede(torch.from_numpy(np.where(is_first, depths, 0).astype(np.int64)))
        for back in range(int((depths * elsewhere).max()), 0, -1):
            deeper = (elsewhere & (depths >= back)).nonzero()[0]
            older = [*stacks.frame(observation, back), (DEPTH, depths - np.uint8(back))]
            self._write_some(older, deeper)
            self._advance(deeper)
        self._write_some([*stacks.newest(observation), (DEPTH, depths)], elsewhere.nonzero()[0])

    def _begins(self) -> Mask:
        """Return where no transition is in the row before the write position, `(B,)`."""
        places = self._places
        begins: Mask = (self._flags[places.slots(places.positions - 1)] & VALID) == 0
        return begins

    def _derived(
        self, data: Mapping[str, Tensor], steps: Positions, num_rows: Positions
    ) -> dict[str, Tensor]:
        """Return the columns of appended rows that depend on what is stored before them."""
        derived = {}
        flags = data["flags"].numpy(force=True) & ~np.uint8(SEQUENCE)
        is_valid = (flags & VALID) > 0
        if self._stacks is not None:
            follows = np.logical_and.accumulate(is_valid)[:-1]
            goes_on = np.concatenate([np.ones_like(is_valid[:1]), follows])
            slots = self._places.slots(self._places.positions)
            depth = self._columns.slots[DEPTH][slots].astype(np.int64)
            deeper = np.minimum(depth + steps, self._stacks.size - 1).astype(np.uint8)
            depths = np.where(goes_on, deeper, data[DEPTH].numpy(force=True))
            derived[DEPTH] = torch.from_numpy(depths)
        if self._sequence_starts is not None:
            begins = np.concatenate([self._begins()[None], ~is_valid[:-1]])
            marks = self._sequence_starts.mark(begins, np.maximum(num_rows - 1, 0))
            derived["flags"] = torch.from_numpy(flags | marks * is_valid)
        return derived

    def _retire(self) -> None:
        """Let the oldest rows keep only some flags, because what they need is overwritten."""
        columns = self._columns.slots if self._places.common is None else self._columns.rows
        for oldest, kept in self.kept.items():
            columns["flags"][self._places.index(oldest)] &= kept

    def _write(self, row: Rows, flags: bytes) -> None:
        """Write one row of all environments at their write positions."""
        places = self._places
        index = places.common
        if index is None:
            columns, where = self._columns.slots, places.index()
            self._flags[where] = np.frombuffer(flags, np.uint8)
        else:
            columns, where = self._columns.rows, index % places.num_rows
            first = where * places.num_envs
            self._flag_bytes[first : first + places.num_envs] = flags
        for name, value in row:
            columns[name][where] = value

    def _advance(self, envs: Positions | None = None) -> None:
        """Advance environments by one row, clearing the rows they come to; None advances all."""
        places = self._places
        positions = places.positions.copy()
        if envs is None:
            envs = places.envs
        positions[envs] += 1
        self._flags[places.slots(positions)[envs]] = 0
        places.set(positions)
        self._retire()

    def _write_some(self, observation: Rows, envs: Positions | None = None) -> None:
        """Write some environments' rows at their write positions; None writes all."""
        places = self._places
        if envs is None:
            envs = places.envs
        slots = places.slots(places.positions)[envs]
        for name, value in observation:
            self._columns.slots[name][slots] = value[envs]


def _pack_flags(starts: Mask, terminated: Mask, truncated: Mask, valid: Mask) -> Flags:
    """Return the flags of one step of all environments, each `(B,)`."""
    flags = np.full(len(starts), STEP, dtype=np.uint8)
    for mask, flag in (
        (valid, VALID),
        (terminated, TERMINATED),
        (truncated, TRUNCATED),
        (starts, EPISODE_START),
    ):
        flags[mask] |= flag
    return flags
