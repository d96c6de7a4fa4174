"""Sequences of transitions, gathered from a ring of rows."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rl_core.batch import ReplayBatch, SequenceStart
from rl_core.storage import columns_below, join_observation
from rl_storages.gather.hindsight import NewGoals, Relabeler, Rewards
from rl_storages.replay.flags import (
    ENDED,
    EPISODE_START,
    TERMINATED,
    VALID,
    Mask,
    Positions,
    SequenceStarts,
)
from rl_storages.replay.ring import ReplayRing

Counts = npt.NDArray[np.int64]


@dataclass(slots=True)
class Segments:
    """The rows of N sequences, as they are stored.

    Each sequence has W rows of burn-in, T to learn from, and the n after these::

        |-- W: burn-in --|---- T: learned from ----|-- n --|

    Rows before the episode repeat its first row, and rows after it repeat the last one.

    Attributes:
        slots: shape `(W + T + n, N)`.
        num_burn_in: rows of burn-in that are stored, shape `(N,)`.
        length: transitions that follow them without a break, up to T + n - 1, shape `(N,)`.
        terminated: of the transitions after the burn-in, shape `(T + n - 1, N)`.
        reward: of the same, shape `(T + n - 1, N)`, zeros beyond ``length``.
        observation: each column `(W + T + n, N, ...)`.
        new_goals: what some of the sequences pursue instead; None where none does. Rewards and
            observations are those of the new goals.
    """

    slots: Positions
    num_burn_in: Counts
    length: Counts
    terminated: Mask
    reward: Rewards
    observation: dict[str, Tensor]
    new_goals: NewGoals | None = None


class SequenceGather:
    """Turns the slots with which sequences begin into batches of them.

    A sequence ends where the next one begins, with its episode, where the stored data breaks off,
    and at the newest row. Windows of n steps may look into the next sequence of the episode.

    Goals are relabeled in `Segments`, before windows are computed. Rows beyond the end of an
    episode that a new goal would have terminated are still learned from, as they are where single
    transitions are drawn.

    Args:
        ring: what is gathered from.
        n_step: n.
        sequence_starts: how sequences are cut.
        relabeler: gives sequences other goals; None leaves them theirs.
    """

    def __init__(
        self,
        ring: ReplayRing,
        n_step: int,
        sequence_starts: SequenceStarts,
        relabeler: Relabeler | None = None,
    ) -> None:
        self._ring = ring
        self._n_step = n_step
        self._relabeler = relabeler
        self._learned = sequence_starts.learned
        self._burn_in = sequence_starts.burn_in
        columns = ring.columns.by_slot
        self._copied = {
            name: columns[name]
            for name in columns
            if name == "action" or name.startswith("extras/")
        }
        self._states = columns_below("state/", columns)

    def __call__(self, slots: Tensor, weights: Tensor) -> Iterator[ReplayBatch]:
        """Gather batches.

        Args:
            slots: with which sequences begin that are learned from, shape `(K, N)`.
            weights: of each, shape `(K, N)`.
        """
        for first, weight in zip(slots, weights, strict=True):
            read = self._read(first.numpy())
            if self._relabeler is not None:
                self._relabel(read, self._relabeler)
            yield self._batch(read, weight)

    def _read(self, first: Positions) -> Segments:
        """Find how long sequences are, and read their observations and rewards."""
        ring = self._ring
        num_ahead = self._learned + self._n_step
        back = np.arange(self._burn_in, 0, -1)[:, None]
        flags = ring.flags.take((first - back * ring.num_envs) % ring.num_slots)
        is_there = np.logical_and.accumulate(((flags & VALID) > 0)[::-1])
        num_burn_in = is_there.sum(0)
        ahead = np.arange(num_ahead)[:, None]
        rows = (first + ahead * ring.num_envs) % ring.num_slots
        flags = ring.flags.take(rows)
        goes_on = ((flags[:-2] & ENDED) == 0) & ((flags[1:-1] & VALID) != 0)
        length = 1 + np.logical_and.accumulate(goes_on).sum(0)
        reward = ring.reward.take(rows[:-1])
        reward[ahead[:-1] >= length] = 0.0
        steps = np.concatenate([np.maximum(-back, -num_burn_in), np.minimum(ahead, length)])
        slots = (first + steps * ring.num_envs) % ring.num_slots
        flat = ring.observations.read(torch.from_numpy(slots.ravel()))
        observation = {
            name: column.view(*slots.shape, *column.shape[1:]) for name, column in flat.items()
        }
        terminated = (flags[:-1] & TERMINATED) > 0
        return Segments(slots, num_burn_in, length, terminated, reward, observation)

    def _relabel(self, read: Segments, relabeler: Relabeler) -> None:
        """Assign one new goal to each of some sequences, in all rows from the burn-in on."""
        first = read.slots[self._burn_in]
        new = relabeler.relabel(first, read.length, len(read.reward))
        if new is not None:
            read.new_goals = new
            read.reward[:, new.which] = new.reward
            relabeler.write(read.observation, new, axis=1)

    def _batch(self, read: Segments, weight: Tensor) -> ReplayBatch:
        """Split burn-in, sequence and following rows, and compute the windows of each row."""
        ring, begin, end = self._ring, self._burn_in, self._burn_in + self._learned
        first = read.slots[begin]
        step = np.arange(self._learned)[:, None]
        is_there = step < read.length
        num_steps = np.clip(read.length - step, 1, self._n_step)
        terminated = np.take_along_axis(read.terminated, step + num_steps - 1, 0)
        rewards = np.lib.stride_tricks.sliding_window_view(read.reward, self._n_step, axis=0).copy()
        new = read.new_goals
        if new is not None and new.ends is not None:
            which = new.which
            num_steps[:, which], terminated[:, which] = new.cut(num_steps[:, which])
            rewards[np.arange(self._n_step) >= num_steps[..., None]] = 0.0
        acted = (first + np.minimum(step, read.length - 1) * ring.num_envs) % ring.num_slots
        index = torch.from_numpy(acted.ravel()).to(ring.columns.device)
        copied = {
            name: column.index_select(0, index).view(*acted.shape, *column.shape[1:])
            for name, column in self._copied.items()
        }
        return ReplayBatch(
            observation=join_observation({n: c[begin:end] for n, c in read.observation.items()}),
            action=copied.pop("action"),
            reward=torch.from_numpy(rewards),
            num_steps=torch.from_numpy(num_steps),
            terminated=torch.from_numpy(terminated & is_there),
            next_observation=join_observation({n: c[end:] for n, c in read.observation.items()}),
            weight=weight.expand(self._learned, -1).contiguous(),
            mask=torch.from_numpy(is_there.astype(np.float32)),
            index=torch.from_numpy(np.stack([first, ring.generations(first)], 1)),
            start=self._start(read),
            extras=columns_below("extras/", copied),
        )

    def _start(self, read: Segments) -> SequenceStart:
        """Return the state stored with the first row, or zero where its episode began.

        It is also there where an episode boundary cuts the burn-in short.
        """
        ring, size = self._ring, len(read.num_burn_in)
        is_whole = read.num_burn_in == self._burn_in
        begins = (ring.flags.take(read.slots[0]) & EPISODE_START) > 0
        starts = np.zeros((self._burn_in + 1, size), dtype=np.bool_)
        starts[self._burn_in - read.num_burn_in, np.arange(size)] = ~is_whole | begins
        device = ring.columns.device
        index = torch.from_numpy(read.slots[0]).to(device)
        step = np.arange(-self._burn_in, len(read.reward))[:, None]
        there = step.clip(-read.num_burn_in, read.length - 1)
        acted = (read.slots[self._burn_in] + there * ring.num_envs) % ring.num_slots
        action = self._copied["action"].index_select(0, torch.from_numpy(acted.ravel()).to(device))
        keep = torch.from_numpy((~begins).astype(np.float32)).to(device).unsqueeze(1)
        return SequenceStart(
            state={
                name: column.index_select(0, index) * keep for name, column in self._states.items()
            },
            burn_in=join_observation(
                {name: c[: self._burn_in] for name, c in read.observation.items()}
            ),
            action=action.view(*acted.shape, *action.shape[1:]),
            episode_start=torch.from_numpy(starts),
        )
