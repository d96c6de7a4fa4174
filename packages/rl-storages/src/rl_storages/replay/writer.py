"""How steps become rows: each observation is written once, where its environment's head is."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from rl_core.batch import Transition
from rl_core.storage import Continuity
from rl_storages.gather.sequence_starts import SequenceTiles
from rl_storages.replay.columns import DEPTH, FIRST, Columns, Rows, TransitionFitter
from rl_storages.replay.frames import FrameStacks
from rl_storages.replay.observations import ObservationReader
from rl_storages.replay.rows import (
    EPISODE_START,
    SEQUENCE,
    STEP,
    VALID,
    Flags,
    Heads,
    Mask,
    Positions,
    pack_flags,
)


class RowWriter:
    """Writes the rows of a `ReplayRing`.

    Args:
        columns: the memory.
        heads: where the next rows are; it moves them.
        observations: reads what is stored.
        stacks: which columns are stacks of frames.
        tiles: how sequences are cut; None draws transitions.

    Attributes:
        guard: how many of the oldest rows miss what they need before them, to be drawn.
        lost: how many of these miss frames of their own stack, and are no steps any more.
        kept: by n, which flags a row keeps when it comes to be the n-th oldest.
        continuity: knows what goes on from the newest rows.
    """

    def __init__(
        self,
        columns: Columns,
        heads: Heads,
        observations: ObservationReader,
        stacks: FrameStacks | None,
        tiles: SequenceTiles | None,
    ) -> None:
        self.guard = needed_before(stacks, tiles)
        self.continuity = Continuity(heads.num_envs)
        self._columns = columns
        self._heads = heads
        self._observations = observations
        self._stacks = stacks
        self._tiles = tiles
        self.lost = older_frames(stacks)
        # Sequences may lead through the rows of a burn-in, but not where stacks are gone.
        self.kept = {self.guard: np.uint8(0xFF & ~SEQUENCE)} if self.guard else {}
        if self.lost:
            self.kept[self.lost] = np.uint8(0xFF & ~(VALID | STEP | SEQUENCE))
        self._flags: Flags = columns.slots["flags"]
        self._fitter = TransitionFitter(
            columns.fit, columns.specs, heads.num_envs, observations.names
        )

    def insert(self, transition: Transition) -> None:
        """Take in one step of all environments.

        Raises:
            DataError: when a column is missing or has another shape or dtype; nothing is written.
        """
        columns, heads, fit = self._columns, self._heads, self._fitter
        observation = fit.observation("observation", transition.observation)
        after = fit.observation("next_observation", transition.next_observation)
        last = transition.final_observation
        final = None if last is None else fit.observation("final_observation", last)
        values = fit.values(transition)
        starts, terminated, truncated, valid = fit.masks(transition)
        stacks = self._stacks
        if stacks is not None:
            ended = terminated | truncated
            stays = valid if final is None else valid & ~ended
            stacks.check_goes_on(observation, after, stays, "next_observation")
            if final is not None:
                stacks.check_goes_on(observation, final, valid & ended, "final_observation")
        num_starts = np.count_nonzero(starts)
        num_ended = np.count_nonzero(terminated) + np.count_nonzero(truncated)
        flags: int | Flags = VALID | STEP
        if num_starts or num_ended or np.count_nonzero(valid) < heads.num_envs:
            flags = pack_flags(starts, terminated, truncated, valid)
        if num_starts or self.continuity.has_seam:
            self._join(observation, starts | self.continuity.breaks().numpy())
            self.continuity.inserted()
        if self._tiles is not None:
            flags = flags | self._tiles.mark(self._begins()[None])[0] * valid
        if stacks is not None:
            depths = (DEPTH, stacks.following_depths(heads.slots(heads.positions)))
            after = [*stacks.newest(after), depths]
            final = None if final is None else [*stacks.newest(final), depths]
        common = heads.common
        if common is None:
            slots = heads.own_slots
            for name, value in values:
                columns.slots[name][slots] = value
            columns.slots["flags"][slots] = flags
        else:
            row = common % heads.num_rows
            for name, value in values:
                columns.rows[name][row] = value
            columns.rows["flags"][row] = flags
        if num_ended and final is not None:
            self._advance()
            jumps = (terminated | truncated).nonzero()[0]
            self._write_heads(final, jumps)
            self._advance(jumps)
            self._write_heads(after)
        else:
            self._step(after)

    def append(self, data: Mapping[str, Tensor], num_rows: Positions) -> None:
        """Take in rows of each environment, of which the last is no step but what followed.

        Args:
            data: columns `(L, B, ...)` all of which fit, and the stacks of the first row.
            num_rows: how many of the L are there of each environment, shape `(B,)`.

        Raises:
            DataError: when the slice does not say where it is from; nothing is written.
        """
        origin = self.continuity.checked_origin(data)
        heads, given = self._heads, num_rows > 0
        if not given.any():
            return
        starts = (data["flags"][0].numpy(force=True) & EPISODE_START) > 0
        stacked = () if self._stacks is None else self._stacks.names
        observation: Rows = [
            (name, self._columns.fit(name, data[FIRST + name if name in stacked else name][0]))
            for name in self._observations.names
        ]
        elsewhere = starts | self.continuity.breaks_before(origin).numpy() | self._begins()
        self._join(observation, elsewhere & given)
        steps = np.arange(len(data["flags"]))[:, None]
        data = {**data, **self._derived(data, steps, num_rows)}
        # Rows that would be overwritten by later ones of the same slice are left out.
        kept = (steps < num_rows) & (steps >= num_rows - heads.num_rows)
        place = torch.from_numpy(heads.slots(heads.positions + steps)[kept])
        mask = torch.from_numpy(kept)
        for name, column in self._columns.by_slot.items():
            part = data[name]
            column[place.to(column.device)] = part[mask.to(part.device)].to(column.device)
        heads.set(heads.positions + np.maximum(num_rows - 1, 0))
        for oldest, flags in self.kept.items():
            self._retire(heads.positions[:, None] + np.arange(1, oldest + 1), flags)
        self.continuity.appended(origin, torch.from_numpy(np.maximum(num_rows - 1, 0)))

    def _join(self, observation: Rows, elsewhere: Mask) -> None:
        """Make the heads hold what is acted on, in environments that do not just go on.

        Where an episode begins, the row before the head is often an ended episode's last
        observation, or a step that only reset; then the head is the episode's first row. If it is
        a transition, the head is what followed that one, and has to stay: the episode begins one
        row further.

        Args:
            observation: what is acted on, shape `(B, ...)`, by column.
            elsewhere: which environments begin an episode, or are in another one.
        """
        leaves = elsewhere & ~self._begins()
        self._advance(leaves.nonzero()[0])
        stacks = self._stacks
        if stacks is None:
            self._write_heads(observation, elsewhere.nonzero()[0])
            return
        depths = stacks.first_depths(observation)
        is_first = elsewhere & (self._heads.positions == self._heads.origin)
        self.continuity.precede(torch.from_numpy(np.where(is_first, depths, 0).astype(np.int64)))
        for back in range(int((depths * elsewhere).max()), 0, -1):
            deeper = (elsewhere & (depths >= back)).nonzero()[0]
            older = [*stacks.frame(observation, back), (DEPTH, depths - np.uint8(back))]
            self._write_heads(older, deeper)
            self._advance(deeper)
        self._write_heads([*stacks.newest(observation), (DEPTH, depths)], elsewhere.nonzero()[0])

    def _begins(self) -> Mask:
        """Return where the head does not go on from a transition in the row before, `(B,)`."""
        heads = self._heads
        begins: Mask = (self._flags[heads.slots(heads.positions - 1)] & VALID) == 0
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
            slots = self._heads.slots(self._heads.positions)
            head = self._columns.slots[DEPTH][slots].astype(np.int64)
            deeper = np.minimum(head + steps, self._stacks.size - 1).astype(np.uint8)
            depths = np.where(goes_on, deeper, data[DEPTH].numpy(force=True))
            derived[DEPTH] = torch.from_numpy(depths)
        if self._tiles is not None:
            begins = np.concatenate([self._begins()[None], ~is_valid[:-1]])
            marks = self._tiles.mark(begins, np.maximum(num_rows - 1, 0))
            derived["flags"] = torch.from_numpy(flags | marks * is_valid)
        return derived

    def _retire(self, positions: Positions, kept: np.uint8) -> None:
        """Let rows `(B, N)` keep only some flags, because what they need is overwritten."""
        heads = self._heads
        slots = (positions % heads.num_rows) * heads.num_envs + heads.envs[:, None]
        self._flags[slots] &= kept

    def _step(self, observation: Rows) -> None:
        """Advance all heads by one row and write there what is acted on next."""
        columns, heads = self._columns, self._heads
        heads.step()
        if heads.common is None:
            slots = heads.own_slots
            columns.slots["flags"][slots] = 0
            for oldest, kept in self.kept.items():
                self._retire((heads.positions + oldest)[:, None], kept)
            for name, value in observation:
                columns.slots[name][slots] = value
            return
        row = heads.common % heads.num_rows
        columns.rows["flags"][row] = 0
        for oldest, kept in self.kept.items():
            columns.rows["flags"][(row + oldest) % heads.num_rows] &= kept
        for name, value in observation:
            columns.rows[name][row] = value

    def _advance(self, envs: Positions | None = None) -> None:
        """Advance heads by one row, clearing what they come to; None advances all."""
        heads = self._heads
        positions = heads.positions.copy()
        if envs is None:
            envs = heads.envs
        positions[envs] += 1
        self._flags[heads.slots(positions)[envs]] = 0
        heads.set(positions)
        for oldest, kept in self.kept.items():
            self._retire((positions + oldest)[:, None], kept)

    def _write_heads(self, observation: Rows, envs: Positions | None = None) -> None:
        """Write some environments' rows of an observation to their heads; None writes all."""
        heads = self._heads
        if envs is None:
            envs = heads.envs
        slots = heads.slots(heads.positions)[envs]
        for name, value in observation:
            self._columns.slots[name][slots] = value[envs]


def needed_before(stacks: FrameStacks | None, tiles: SequenceTiles | None) -> int:
    """Return how many rows before a row that is drawn are read with it."""
    return older_frames(stacks) + (0 if tiles is None else tiles.burn_in)


def older_frames(stacks: FrameStacks | None) -> int:
    """Return how many rows before a row hold frames of its stack."""
    return 0 if stacks is None else stacks.size - 1
