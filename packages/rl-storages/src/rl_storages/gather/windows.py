"""Transitions of one or more steps, gathered from a ring of rows.

A batch has the reward of each step, `(N, n)`; `rl_core.returns.n_step_target` sums them.
"""

from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch import Tensor

from rl_core.batch import ReplayBatch
from rl_core.storage import OBSERVATION_COLUMN
from rl_core.types import Array, Observation
from rl_storages.gather.hindsight import NewGoals, Relabeler, Rewards
from rl_storages.replay.flags import ENDED, TERMINATED, VALID, Flags, Mask, Positions
from rl_storages.replay.ring import ReplayRing
from rl_storages.transitions import names_below

_GROUP_BYTES = 2**20
"""Batches of a block are gathered together up to this size, which fits into a CPU cache."""

_SMALL_ROW = 1024
"""Up to so many bytes, NumPy reads rows of a column faster than PyTorch."""


class WindowGather:
    """Turns slots into transitions of up to n steps.

    A window ends with its episode, where the stored data breaks off, and at the newest row.

    Args:
        ring: what is gathered from.
        n_step: n.
        relabeler: gives transitions other goals; None leaves them theirs.
    """

    def __init__(self, ring: ReplayRing, n_step: int, relabeler: Relabeler | None = None) -> None:
        self._ring = ring
        self._relabeler = relabeler
        self._n_step = n_step
        observations = ring.observations
        columns: dict[str, Array | Tensor] = {
            name: column if column[0].nbytes > _SMALL_ROW else ring.columns.slots[name]
            for name, column in ring.columns.by_slot.items()
        }
        # Frame stacks are rebuilt from their frames instead of copied.
        self._rebuilt = None if observations.stacks is None else observations
        plain = {} if self._rebuilt else {name: columns[name] for name in observations.plain}
        self._copied = {"action": columns["action"], **plain}
        self._keys = names_below(f"{OBSERVATION_COLUMN}/", observations.names)
        self._extras = names_below("extras/", columns)
        self._copied |= {name: columns[name] for name in self._extras.values()}
        self._followed = {f"next_{name}": column for name, column in plain.items()}
        self._offsets = np.arange(n_step)[:, None] * ring.num_envs
        gathered = sum(c[0].nbytes for c in (*self._copied.values(), *self._followed.values()))
        if observations.stacks is not None:
            gathered += 2 * observations.stacks.nbytes
        self._group = max(_GROUP_BYTES // gathered, 1)

    def __call__(self, slots: Tensor, weights: Tensor) -> Iterator[ReplayBatch]:
        """Gather batches.

        Args:
            slots: of transitions, shape `(K, N)`.
            weights: of each, shape `(K, N)`.
        """
        num_batches, size = slots.shape
        if num_batches == 1:
            yield self._batch(self._columns(slots.view(-1), weights.view(-1)))
            return
        together = min(max(self._group // size, 1), num_batches)
        for k in range(0, num_batches, together):
            columns = self._columns(
                slots[k : k + together].view(-1), weights[k : k + together].view(-1)
            )
            parts = {name: torch.split(column, size) for name, column in columns.items()}
            for pieces in zip(*parts.values(), strict=True):
                yield self._batch(dict(zip(parts, pieces, strict=True)))

    def _batch(self, columns: Mapping[str, Tensor]) -> ReplayBatch:
        return ReplayBatch(
            observation=self._observation(columns),
            action=columns["action"],
            reward=columns["reward"],
            num_steps=columns["num_steps"],
            terminated=columns["terminated"],
            next_observation=self._observation(columns, "next_"),
            weight=columns["weight"],
            mask=columns["mask"],
            index=columns["index"],
            extras={key: columns[name] for key, name in self._extras.items()},
        )

    def _observation(self, columns: Mapping[str, Tensor], prefix: str = "") -> Observation:
        if not self._keys:
            return columns[prefix + OBSERVATION_COLUMN]
        return {key: columns[prefix + name] for key, name in self._keys.items()}

    def _columns(self, slots: Tensor, weight: Tensor) -> dict[str, Tensor]:
        """Gather the columns of a batch, `(N, ...)`."""
        ring = self._ring
        place: Positions = slots.numpy()
        size = len(place)
        if self._n_step == 1:
            reward = ring.reward.take(place)[:, None]
            num_steps = np.ones(size, dtype=np.int64)
            last_flags = ring.flags.take(place)
        else:
            reward, num_steps, last_flags = self._windows(place)
        terminated = (last_flags & TERMINATED).view(np.bool_)  # bit 0
        new = None
        if self._relabeler is not None:
            new = self._relabeler.relabel(place, num_steps, self._n_step)
            if new is not None:
                _judge(new, reward, num_steps, terminated)
        steps = ring.num_envs if self._n_step == 1 else num_steps * ring.num_envs
        following = place + steps
        following %= ring.num_slots
        index = np.empty((size, 2), dtype=np.int64)
        index[:, 0] = place
        index[:, 1] = ring.generations(place)
        columns = {
            "reward": torch.from_numpy(reward),
            "num_steps": torch.from_numpy(num_steps),
            "terminated": torch.from_numpy(terminated),
            "weight": weight,
            "mask": torch.from_numpy(np.ones(size, np.float32)),
            "index": torch.from_numpy(index),
        }
        columns |= _read(self._copied, place)
        columns |= _read(self._followed, following)
        if self._rebuilt is not None:
            columns |= self._rebuilt.read(slots)
            later = self._rebuilt.read(torch.from_numpy(following))
            columns |= {f"next_{name}": column for name, column in later.items()}
        if self._relabeler is not None and new is not None:
            self._relabeler.write(columns, new)
        return columns

    def _windows(self, slots: Positions) -> tuple[Rewards, Positions, Flags]:
        """Return rewards `(N, n)`, the number of steps and the flags of the last one, `(N,)`."""
        ring = self._ring
        rows = (slots + self._offsets) % ring.num_slots
        flags = ring.flags.take(rows)
        goes_on = ((flags[:-1] & ENDED) == 0) & ((flags[1:] & VALID) != 0)
        inside = np.logical_and.accumulate(goes_on)
        more = inside.sum(0)
        reward = np.ascontiguousarray(ring.reward.take(rows).T)
        reward[:, 1:][~inside.T] = 0.0
        last_flags = flags[more, np.arange(len(slots))]
        return reward, more + 1, last_flags


def _read(columns: Mapping[str, Array | Tensor], place: Positions) -> dict[str, Tensor]:
    """Read the rows of some slots, `(N,)`, of columns by slot."""
    found: dict[str, Tensor] = {}
    slots: Tensor | None = None  # which all tensors share
    for name, column in columns.items():
        if isinstance(column, np.ndarray):
            found[name] = torch.from_numpy(column.take(place, 0))
            continue
        if slots is None:
            slots = torch.from_numpy(place).to(column.device)
        found[name] = column.index_select(0, slots)
    return found


def _judge(new: NewGoals, reward: Rewards, num_steps: Positions, terminated: Mask) -> None:
    """Recompute windows for their new goals.

    A window ends earlier where the new goal would have terminated the episode. Where only the old
    goal terminated it, the window counts as truncated; any other termination stays.

    Args:
        new: for some of the windows.
        reward: shape `(N, n)`; written to, as are the others.
        num_steps: shape `(N,)`.
        terminated: shape `(N,)`.
    """
    which = new.which
    reward[which] = new.reward.T
    if new.ends is not None:
        steps, is_end = new.cut(num_steps[None, which])
        num_steps[which], terminated[which] = steps[0], is_end[0]
        reward[np.arange(reward.shape[1]) >= num_steps[:, None]] = 0.0
