"""The rows of a rollout: memory `(T, B, ...)`, what is written into it, and what follows."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from rl_core.batch import Rollout, Transition
from rl_core.errors import DataError
from rl_core.storage import (
    ORIGIN,
    DataSlice,
    EpisodeBoundaries,
    StorageSpec,
    TensorSpec,
    check_slice,
    join_observation,
    observation_columns,
)
from rl_core.types import Array, ArrayLike, to_flags
from rl_storages.transitions import Rows, TransitionFitter

_FLAGS = ("terminated", "truncated", "valid", "episode_start")


class RolloutRows:
    """Rows in memory that is allocated once.

    Each observation is stored once: the successor of a row is the next row, and only where an
    episode ended inside a step is its true final observation kept apart.

    Args:
        spec: what a row consists of.
        num_steps: rows there is room for, T.

    Attributes:
        spec: as given.
        count: how many rows are written.
        boundaries: knows what goes on from the newest row.
    """

    def __init__(self, spec: StorageSpec, num_steps: int) -> None:
        scalar = TensorSpec((), torch.float32)
        flag = TensorSpec((), torch.bool)
        observations = observation_columns(spec.observation)
        columns = {
            **observations,
            "action": spec.action,
            "reward": scalar,
            **dict.fromkeys(_FLAGS, flag),
            **{f"state/{n}": TensorSpec((s,), torch.float32) for n, s in spec.state_sizes.items()},
            **{f"extras/{name}": extra for name, extra in spec.extras.items()},
        }
        self.spec = spec
        self._columns = {
            name: torch.zeros(
                (num_steps, spec.num_envs, *column.shape), dtype=column.dtype, device=spec.device
            )
            for name, column in columns.items()
        }
        self.count = 0
        self.boundaries = EpisodeBoundaries(spec.num_envs)
        self._num_steps = num_steps
        self._arrays: dict[str, Array] = (
            {name: column.numpy() for name, column in self._columns.items()}
            if spec.device.type == "cpu"
            else {}
        )
        # Where rows are written, by column, and how many of them are in the columns.
        self._memory: dict[str, Tensor] = dict(self._columns) if self._arrays else {}
        self._num_moved = 0
        self._next_observation = {
            name: torch.zeros_like(self._columns[name][0]) for name in observations
        }
        self._unwritten_next: Rows = []
        # Pieces: row and environment `(k, 2)`, and the true last observation of episodes cut there.
        self._finals: list[tuple[Tensor, dict[str, Tensor]]] = []
        written = self._arrays or self._columns
        expected = {n: (tuple(column.shape[1:]), column.dtype) for n, column in written.items()}
        self._fitter = TransitionFitter(expected, spec.num_envs, tuple(observations))

    @property
    def columns(self) -> Mapping[str, Tensor]:
        """All rows by column, each `(T, B, ...)`; such as ``state/...`` and ``extras/...``."""
        if self._num_moved < self.count:
            new = slice(self._num_moved, self.count)
            for name, memory in self._memory.items():
                if memory is not self._columns[name]:
                    self._columns[name][new] = memory[new]
            self._num_moved = self.count
        return self._columns

    def clear(self) -> None:
        """Forget all rows."""
        self.boundaries.forget(self.count)
        self.count = self._num_moved = 0
        self._finals = []

    def insert(self, transition: Transition) -> None:
        """Write one more row; there must be room for it.

        Raises:
            DataError: when a column is missing or has another shape or dtype, or when a recurrent
                rollout would go on in the middle of another episode; nothing is written.
        """
        row, fit = self.count, self._fitter
        values = fit.observation("observation", transition.observation)
        values += fit.values(transition)
        values += [(name, fit.fit(name, getattr(transition, name))) for name in _FLAGS]
        following = fit.observation("next_observation", transition.next_observation)
        last = transition.final_observation
        final = None if last is None else fit.observation("final_observation", last)
        starts = to_flags(transition.episode_start)
        if np.count_nonzero(starts) or self.boundaries.is_pending:
            self._cut(torch.from_numpy(starts), self.boundaries.breaks())
            self.boundaries.inserted()
        if self._arrays:
            for name, value in values:
                self._arrays[name][row] = value
        else:
            for name, value in values:
                tensor = torch.as_tensor(value)
                self._memory_for(name, tensor)[row] = tensor
        if final is not None:  # needed where an episode was cut, never where it terminated
            envs = torch.from_numpy(np.flatnonzero(to_flags(transition.truncated)))
            self._keep_finals(row, envs, dict(final))
        self._unwritten_next = following
        self.count += 1

    def as_rollout(self) -> Rollout:
        """Return all rows, without copying the columns; memory must be full."""
        columns = self.columns
        final_index, finals = self._all_finals()
        return Rollout(
            observation=join_observation(columns),
            next_observation=join_observation(self._following()),
            action=columns["action"],
            reward=columns["reward"],
            terminated=columns["terminated"],
            truncated=columns["truncated"],
            valid=columns["valid"],
            episode_start=columns["episode_start"],
            state={name: columns[f"state/{name}"][0] for name in self.spec.state_sizes},
            final_index=final_index,
            final_observation=join_observation(finals),
            extras={name: columns[f"extras/{name}"] for name in self.spec.extras},
        )

    def get_slice(self, start: int, end: int) -> DataSlice:
        """Copy rows; `final_index` counts from ``start``, `next/...` follows row ``end - 1``."""
        data = {name: column[start:end].clone() for name, column in self.columns.items()}
        data[ORIGIN] = self.boundaries.origin(start)
        for name, last in self._following().items():
            following = self.columns[name][end] if end < self.count else last
            data[f"next/{name}"] = following.clone()
        rows, finals = self._all_finals()
        inside = (rows[:, 0] >= start) & (rows[:, 0] < end)
        data["final_index"] = rows[inside] - torch.tensor([start, 0], device=rows.device)
        data |= {f"final/{name}": column[inside] for name, column in finals.items()}
        return data

    def insert_slice(self, data: DataSlice) -> int:
        """Append the rows of a slice.

        Returns:
            How many there were.

        Raises:
            DataError: when columns are missing, of other shape or dtype, or too long, or when a
                recurrent rollout would go on in the middle of another episode.
        """
        length, origin = self._checked_length(data), self.boundaries.checked_origin(data)
        if length == 0:
            return 0
        start = self.count
        self._cut(data["episode_start"][0].cpu(), self.boundaries.breaks_before(origin))
        for name, column in self.columns.items():
            column[start : start + length].copy_(data[name])
        for name, last in self._next_observation.items():
            last.copy_(data[f"next/{name}"])
        self._unwritten_next = []
        device = self.spec.device
        index = data["final_index"].to(device) + torch.tensor([start, 0], device=device)
        names = self._next_observation
        finals = {name: data[f"final/{name}"].to(device, copy=True) for name in names}
        self._finals.append((index, finals))
        self.count = self._num_moved = start + length
        self.boundaries.appended(origin, torch.full((self.spec.num_envs,), length))
        return length

    def _memory_for(self, name: str, first: Tensor) -> Tensor:
        """Return where rows of a column are written, as its first one decides.

        Those from the host are moved to a GPU later: many at once cost as much as one.
        """
        if name not in self._memory:
            memory = self._columns[name]
            if first.device != memory.device:
                memory = torch.empty(memory.shape, dtype=memory.dtype, pin_memory=True)
            self._memory[name] = memory
        return self._memory[name]

    def _following(self) -> dict[str, Tensor]:
        """Return what follows the last row, by column; copied only when it is asked for."""
        for name, value in self._unwritten_next:
            self._next_observation[name].copy_(torch.as_tensor(value))
        self._unwritten_next = []
        return self._next_observation

    def _cut(self, starts: Tensor, breaks: Tensor) -> None:
        """Truncate the episodes of the newest row, as far as they do not go on in the next one.

        Args:
            starts: where an episode begins in the next row, shape `(B,)`.
            breaks: where it is not known to go on from this one, shape `(B,)`.
        """
        if self.count == 0:
            return
        if self.spec.state_sizes and (breaks & ~starts).any():
            raise DataError(
                "a recurrent rollout cannot go on in the middle of another episode; insert slices "
                "of one collector in their order, or whole rollouts"
            )
        last = self.count - 1
        newest = self._columns if last < self._num_moved else self._memory
        goes_on = newest["valid"][last] & ~newest["terminated"][last]
        goes_on = goes_on.to(self.spec.device)
        # Truncated ones too, whose last observation the next row was to bring; some brought it.
        for index, _ in reversed(self._finals):  # in the order of rows
            is_newest = index[:, 0] == last
            if not is_newest.any():
                break
            goes_on[index[is_newest, 1]] = False
        envs = ((starts | breaks).to(goes_on.device) & goes_on).nonzero().flatten()
        if len(envs):
            self.columns["truncated"][last, envs] = True
            self._keep_finals(last, envs, self._following())

    def _checked_length(self, data: DataSlice) -> int:
        """Return how many rows a slice has, after comparing all of it with the allocation.

        Raises:
            DataError: when it does not fit, or holds what no rollout can.
        """
        length, count = (
            len(data[name]) if name in data and data[name].dim() else 0
            for name in ("reward", "final_index")
        )
        expected = {
            name: ((length, *column.shape[1:]), column.dtype)
            for name, column in self.columns.items()
        }
        expected["final_index"] = ((count, 2), torch.int64)
        for name, last in self._next_observation.items():
            expected[f"next/{name}"] = (tuple(last.shape), last.dtype)
            expected[f"final/{name}"] = ((count, *last.shape[1:]), last.dtype)
        check_slice(data, expected)
        for name, (_, dtype) in expected.items():
            if dtype is torch.bool and (data[name].view(torch.uint8) > 1).any():
                raise DataError(f"data slice column '{name}': neither true nor false")
        index, end = data["final_index"].cpu(), torch.tensor([length, self.spec.num_envs])
        if ((index < 0) | (index >= end)).any():
            raise DataError(
                f"data slice column 'final_index': beyond the {length} rows of "
                f"{self.spec.num_envs} environments"
            )
        if self.count + length > self._num_steps:
            raise DataError(
                f"data slice of {length} rows does not fit: {self.count} of {self._num_steps} used"
            )
        return length

    def _keep_finals(self, row: int, envs: Tensor, final: Mapping[str, ArrayLike]) -> None:
        """Keep the final observations `(B, ...)` of some environments, `(k,)`, at one row."""
        if len(envs) == 0:
            return
        envs = envs.to(self.spec.device)
        index = torch.stack([torch.full_like(envs, row), envs], dim=1)
        device = envs.device
        finals = {name: torch.as_tensor(value).to(device)[envs] for name, value in final.items()}
        self._finals.append((index, finals))

    def _all_finals(self) -> tuple[Tensor, dict[str, Tensor]]:
        """Return row and environment of all final observations, `(K, 2)`, and their columns."""
        nothing = {name: column[:0] for name, column in self._next_observation.items()}
        index = torch.zeros((0, 2), dtype=torch.int64, device=self.spec.device)
        indices, observations = zip((index, nothing), *self._finals, strict=True)
        columns = {name: torch.cat([piece[name] for piece in observations]) for name in nothing}
        return torch.cat(indices), columns
