"""Rows of several environments in rings of fixed length, one per environment."""

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rl_core.batch import Transition
from rl_core.errors import CheckpointError
from rl_core.stateful import StateReader
from rl_core.types import StateDict
from rl_storages._columns import DEPTH, FIRST, Columns
from rl_storages._fitting import Rows, TransitionFitter
from rl_storages._flags import (
    EPISODE_START,
    SEQUENCE,
    STEP,
    VALID,
    Flags,
    Mask,
    pack_flags,
)
from rl_storages._frames import FrameStacks
from rl_storages._observations import ObservationReader
from rl_storages._tiles import SequenceTiles

Positions = npt.NDArray[np.int64]

_NONE: Positions = np.zeros(0, dtype=np.int64)


class ReplayRing:
    """Steps of `B` environments, in `R` rows each, the oldest overwritten first.

    Each observation is stored once. The successor of a transition is its environment's next row,
    whatever that is: the next step, the last observation of an ended episode, or the *head*: the
    row with the observation that the environment's next action will be taken in. The row after the
    last transition of an episode, or of what is stored of it, is never a transition: whoever looks
    ahead stops at a row without `VALID`.

    Environments advance each at their own pace, because an episode that ended and was reset in
    the same step takes a row for its last observation. Row `r` of environment `b` is in *slot*
    `r * B + b`. *Positions* count an environment's rows without end; row `p` is overwritten by
    `p + R`.

    What is drawn is a row with the flag `drawn`: a transition, or the first one of a sequence. It
    may need some of the rows before it: the older frames of its stack, and its burn-in. The oldest
    rows, which would miss these, have lost that flag.

    Args:
        columns: the memory, `(R, B, ...)`.
        num_rows: R.
        num_envs: B.
        observation_names: the columns that are the observation.
        stacks: which of them are stacks of frames.
        tiles: how sequences are cut; None draws transitions.

    Attributes:
        flags: of every slot.
        reward: of every slot.
        drawn: the flag of rows that may be drawn.
        learned: transitions that are learned from in what is drawn, at most.
        observed: the columns that are there in every row, whether it is a step or not.
        observations: reads observations by slot.
        may_be_seam: the next step may be of another episode than the stored ones, unannounced.
    """

    def __init__(
        self,
        columns: Columns,
        num_rows: int,
        num_envs: int,
        observation_names: tuple[str, ...],
        *,
        stacks: FrameStacks | None = None,
        tiles: SequenceTiles | None = None,
    ) -> None:
        self.columns = columns
        self.num_rows = num_rows
        self.num_envs = num_envs
        self.num_slots = num_rows * num_envs
        self.observations = ObservationReader(columns, observation_names, stacks)
        self.observed = observation_names if stacks is None else (*observation_names, DEPTH)
        self.drawn = VALID if tiles is None else SEQUENCE
        self.learned = 1 if tiles is None else tiles.learned
        self.may_be_seam = True
        self._stacks = stacks
        self._tiles = tiles
        self._guard = needed_before(stacks, tiles)
        # Rows that can no longer be drawn are no steps either, unless sequences lead through them.
        self._kept = np.uint8(0xFF & ~(VALID | STEP if tiles is None else SEQUENCE))
        self.flags: Flags = columns.slots["flags"]
        self.reward: npt.NDArray[np.float32] = columns.slots["reward"]
        self._fitter = TransitionFitter(columns, num_envs, observation_names)
        self._env = np.arange(num_envs)
        self._origin = 0
        self._told: Positions = np.zeros(num_envs, dtype=np.int64)
        self._set_heads(self._told.copy())

    @property
    def heads(self) -> Positions:
        """Position of each environment's head, shape `(B,)`."""
        if self._common_head is not None:
            return np.full(self.num_envs, self._common_head)
        return self._heads

    @property
    def used_slots(self) -> int:
        """The slots from 0 that were written to since the last reset."""
        highest = int(self.heads.max()) if self._common_head is None else self._common_head
        return min(highest - self._origin + 1, self.num_rows) * self.num_envs

    def slots(self, positions: Positions) -> Positions:
        """Return the slots of positions, the last axis being environments."""
        slots: Positions = positions % self.num_rows * self.num_envs + self._env
        return slots

    def insert(self, transition: Transition) -> None:
        """Take in one step of all environments.

        Raises:
            DataError: when a column is missing or has another shape or dtype; nothing is written.
        """
        columns, fit = self.columns, self._fitter
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
        if num_starts or num_ended or np.count_nonzero(valid) < self.num_envs:
            flags = pack_flags(starts, terminated, truncated, valid)
        if num_starts or self.may_be_seam:
            self._join(observation, starts)
        if self._tiles is not None:
            flags = flags | self._tiles.mark(self._begins()[None])[0] * valid
        if stacks is not None:
            depths = (DEPTH, stacks.following_depths(self.slots(self.heads)))
            after = [*stacks.newest(after), depths]
            final = None if final is None else [*stacks.newest(final), depths]
        common = self._common_head
        if common is None:
            slots = self._head_slots
            for name, value in values:
                columns.slots[name][slots] = value
            columns.slots["flags"][slots] = flags
        else:
            row = common % self.num_rows
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
        """
        given = num_rows > 0
        if not given.any():
            return
        starts = (data["flags"][0].numpy(force=True) & EPISODE_START) > 0
        stacked = () if self._stacks is None else self._stacks.names
        observation: Rows = [
            (name, self.columns.fit(name, data[FIRST + name if name in stacked else name][0]))
            for name in self.observations.names
        ]
        self.may_be_seam = True
        self._join(observation, starts & given, given)
        steps = np.arange(len(data["flags"]))[:, None]
        data = {**data, **self._derived(data, steps, num_rows)}
        # Rows that would be overwritten by later ones of the same slice are left out.
        kept = (steps < num_rows) & (steps >= num_rows - self.num_rows)
        place = torch.from_numpy(self.slots(self.heads + steps)[kept])
        mask = torch.from_numpy(kept)
        for name, column in self.columns.by_slot.items():
            part = data[name]
            column[place.to(column.device)] = part[mask.to(part.device)].to(column.device)
        self._set_heads(self.heads + np.maximum(num_rows - 1, 0))
        self._retire(self.heads[:, None] + np.arange(1, self._guard + 1))
        self.may_be_seam = True

    def reset(self) -> None:
        """Forget all rows; positions go on, so that no later one is mistaken for an earlier."""
        self.flags[: self.used_slots] = 0
        self._origin = -(-int(self.heads.max()) // self.num_rows) * self.num_rows
        self._set_heads(np.full(self.num_envs, self._origin))
        self._told = self.heads.copy()
        self.may_be_seam = True

    def retired(self) -> Positions:
        """Return the slots of the oldest rows, which miss what they need and are not drawn."""
        return self.slots(self.heads + np.arange(1, self._guard + 1)[:, None]).ravel()

    def grown_since(self, heads: Positions) -> Positions:
        """Return the slots of sequences that have more transitions than at earlier heads.

        Args:
            heads: what `heads` was, shape `(B,)`.
        """
        if self._tiles is None:
            return _NONE
        back = np.arange(1, self._tiles.learned)[:, None]
        goes_on = (self.flags[self.slots(heads)] & (VALID | SEQUENCE)) == VALID
        first = self.slots(heads - back)
        begins = (self.flags[first] & SEQUENCE) > 0
        is_nearest = begins & (np.cumsum(begins, 0) == 1)
        grown: Positions = first[is_nearest & goes_on]
        return grown

    def slots_since(self, heads: Positions) -> Positions:
        """Return the slots of all rows from earlier heads to these, as far as they are stored.

        Args:
            heads: what `heads` was, shape `(B,)`.

        Returns:
            Shape `(N,)`, in the order of time; both the earlier and the present heads are there.
        """
        spans = self.heads - heads
        back = np.arange(min(int(spans.max()), self.num_rows - 1), -1, -1)[:, None]
        return self.slots(self.heads - back)[back <= spans]

    def new_transitions(self) -> Positions:
        """Return the slots of the transitions since the last call, as far as they are stored."""
        slots = self.slots_since(self._told)
        self._told = self.heads.copy()
        return slots[(self.flags[slots] & VALID) > 0]

    def step_counts(self) -> Positions:
        """Count the steps stored of each environment, shape `(B,)`."""
        used = (self.flags[: self.used_slots] & STEP) > 0
        counts: Positions = np.count_nonzero(used.reshape(-1, self.num_envs), axis=0)
        return counts

    def num_transitions(self) -> int:
        """Count the transitions stored of all environments."""
        return int(np.count_nonzero(self.flags[: self.used_slots] & VALID))

    def step_positions(self) -> Iterator[Positions]:
        """Yield the positions of the steps stored of each environment, oldest first."""
        for env, head in enumerate(self.heads.tolist()):
            oldest = max(self._origin, head - self.num_rows + 1)
            positions = np.arange(oldest, head)
            flags = self.flags[positions % self.num_rows * self.num_envs + env]
            yield positions[(flags & STEP) > 0]

    def generations(self, slots: Positions) -> Positions:
        """Return how many times each slot had been filled before it got what it holds."""
        common = self._common_head
        if common is not None:
            lap, row = divmod(common, self.num_rows)
            return lap - (slots >= (row + 1) * self.num_envs)
        env = slots % self.num_envs
        laps: Positions = self._heads // self.num_rows
        return laps[env] - (slots > self._head_slots[env])

    def state_dict(self) -> StateDict:
        """Return all rows that were written to, and where the heads are."""
        rows = self.used_slots // self.num_envs
        return {
            "num_rows": self.num_rows,
            "origin": self._origin,
            "heads": torch.from_numpy(self.heads.copy()),
            "told": torch.from_numpy(self._told.copy()),
            "columns": {name: column[:rows] for name, column in self.columns.by_row.items()},
        }

    def load_state_dict(self, state: StateDict) -> None:
        """Take over a state returned by `state_dict`.

        Raises:
            CheckpointError: when it is of another size, or damaged; nothing is written.
        """
        saved = StateReader(state, "storage/ring")
        saved.expect(("num_rows", "origin", "heads", "told", "columns"))
        if saved.count("num_rows") != self.num_rows:
            raise CheckpointError(
                f"the saved replay buffer has {saved.count('num_rows')} rows per environment, "
                f"this one {self.num_rows}; resume with the same size and number of environments"
            )
        origin = saved.count("origin")
        like = torch.zeros(self.num_envs, dtype=torch.int64)
        heads, told = (
            saved.tensor(key, like).numpy(force=True).copy() for key in ("heads", "told")
        )
        if origin % self.num_rows or (told < origin).any() or (heads < told).any():
            raise CheckpointError("the saved replay buffer's positions contradict each other")
        rows = min(int(heads.max()) - origin + 1, self.num_rows)
        inner = saved.reader("columns")
        inner.expect(self.columns.by_row)
        parts = {
            name: inner.tensor(name, like=column[:rows])
            for name, column in self.columns.by_row.items()
        }
        self.reset()
        for name, part in parts.items():
            self.columns.by_row[name][:rows].copy_(part)
        self._origin = origin
        self._told = told
        self._set_heads(heads)
        if self._tiles is not None:
            back = self.slots(heads - np.arange(1, self._tiles.learned + 1)[:, None])
            self._tiles.begin_anew(((self.flags[back] & SEQUENCE) > 0).argmax(0))
        self.may_be_seam = True

    def _join(self, observation: Rows, starts: Mask, among: Mask | None = None) -> None:
        """Make the heads hold what is acted on, in environments that do not just go on.

        Where an episode begins, the row before the head is often an ended episode's last
        observation, or a step that only reset; then the head is the episode's first row. If it is
        a transition, the head is what followed that one, and has to stay: the episode begins one
        row further.

        Args:
            observation: what is acted on, shape `(B, ...)`, by column.
            starts: which environments begin an episode.
            among: which environments may be elsewhere than their heads; None means all.
        """
        elsewhere = starts
        if self.may_be_seam:
            self.may_be_seam = False
            differs = self._differs_from_heads(observation)
            elsewhere = starts | (differs if among is None else differs & among)
        leaves = elsewhere & ((self.flags[self.slots(self.heads - 1)] & VALID) > 0)
        self._advance(leaves.nonzero()[0])
        stacks = self._stacks
        if stacks is None:
            self._write_heads(observation, elsewhere.nonzero()[0])
            return
        depths = stacks.first_depths(observation)
        for back in range(int((depths * elsewhere).max()), 0, -1):
            deeper = (elsewhere & (depths >= back)).nonzero()[0]
            older = [*stacks.frame(observation, back), (DEPTH, depths - np.uint8(back))]
            self._write_heads(older, deeper)
            self._advance(deeper)
        self._write_heads([*stacks.newest(observation), (DEPTH, depths)], elsewhere.nonzero()[0])

    def _begins(self) -> Mask:
        """Return where the head does not go on from a transition in the row before, `(B,)`."""
        begins: Mask = (self.flags[self.slots(self.heads - 1)] & VALID) == 0
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
            head = self.columns.slots[DEPTH][self.slots(self.heads)].astype(np.int64)
            deeper = np.minimum(head + steps, self._stacks.size - 1).astype(np.uint8)
            depths = np.where(goes_on, deeper, data[DEPTH].numpy(force=True))
            derived[DEPTH] = torch.from_numpy(depths)
        if self._tiles is not None:
            begins = np.concatenate([self._begins()[None], ~is_valid[:-1]])
            marks = self._tiles.mark(begins, np.maximum(num_rows - 1, 0))
            derived["flags"] = torch.from_numpy(flags | marks * is_valid)
        return derived

    def _retire(self, positions: Positions) -> None:
        """Let rows `(B, ...)` not be drawn any more, because what they need is overwritten."""
        slots = (positions % self.num_rows) * self.num_envs + self._env[:, None]
        self.flags[slots] &= self._kept

    def _differs_from_heads(self, observation: Rows) -> Mask:
        heads = self.slots(self.heads)
        differs: Mask = np.zeros(self.num_envs, dtype=np.bool_)
        stored = self.observations.read(torch.from_numpy(heads))
        for name, value in observation:
            unequal = stored[name] != torch.as_tensor(value)
            differs |= unequal.reshape(self.num_envs, -1).any(dim=1).numpy(force=True)
        return differs

    def _step(self, observation: Rows) -> None:
        """Advance all heads by one row and write there what is acted on next."""
        columns = self.columns
        if self._common_head is None:
            self._heads += 1
            self._head_slots = slots = self.slots(self._heads)
            columns.slots["flags"][slots] = 0
            if self._guard:
                self._retire((self._heads + self._guard)[:, None])
            for name, value in observation:
                columns.slots[name][slots] = value
            return
        self._common_head += 1
        row = self._common_head % self.num_rows
        columns.rows["flags"][row] = 0
        if self._guard:
            columns.rows["flags"][(row + self._guard) % self.num_rows] &= self._kept
        for name, value in observation:
            columns.rows[name][row] = value

    def _advance(self, envs: Positions | None = None) -> None:
        """Advance heads by one row, clearing what they come to; None advances all."""
        heads = self.heads.copy()
        if envs is None:
            envs = self._env
        heads[envs] += 1
        self.flags[self.slots(heads)[envs]] = 0
        self._set_heads(heads)
        if self._guard:
            self._retire((heads + self._guard)[:, None])

    def _write_heads(self, observation: Rows, envs: Positions | None = None) -> None:
        """Write some environments' rows of an observation to their heads; None writes all."""
        if envs is None:
            envs = self._env
        slots = self.slots(self.heads)[envs]
        for name, value in observation:
            self.columns.slots[name][slots] = value[envs]

    def _set_heads(self, heads: Positions) -> None:
        first = int(heads[0])
        self._common_head: int | None = first if (heads == first).all() else None
        self._heads = heads
        self._head_slots = self.slots(heads)


def needed_before(stacks: FrameStacks | None, tiles: SequenceTiles | None) -> int:
    """Return how many rows before a row that is drawn are read with it."""
    frames = 0 if stacks is None else stacks.size - 1
    return frames + (0 if tiles is None else tiles.burn_in)
