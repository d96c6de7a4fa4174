"""The rollout storage of on-policy algorithms."""

from collections.abc import Iterator, Mapping
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from rl_core.batch import PREPARED_COLUMNS, Rollout, RolloutBatch, Transition
from rl_core.errors import CheckpointError, ConfigError, DataError
from rl_core.seeding import generator_state, set_generator_state
from rl_core.stateful import StateReader
from rl_core.storage import (
    DataSlice,
    Storage,
    StorageSpec,
    TensorSpec,
    check_slice,
    join_observation,
    observation_columns,
)
from rl_core.types import Array, ArrayLike, ArrayObservation, StateDict
from rl_storages._finals import FinalObservations
from rl_storages._minibatches import count_minibatches, sequence_length_of, shuffled_block

_FLAGS = ("terminated", "truncated", "valid", "episode_start")


class RolloutStorage(Storage[RolloutBatch]):
    """Keep the last ``num_steps`` steps of all environments, then start anew.

    Memory is allocated once, `(T, B, ...)`. Each observation is stored once: the successor of a
    row is the next row, and only where an episode ended inside a step is its true final
    observation kept apart. Minibatches are drawn without replacement: of single samples, or of
    sequences when the actor is recurrent. They are as equal as can be; the smaller ones are
    padded with one entry of mask 0, so that all have one shape.

    Sequences are cut from each environment's rows at every multiple of ``sequence_length``, and
    begin with the recurrent state that was there while acting. Episodes may end and begin inside
    them; gradients go no further back than their first row.

    Where rows do not go on from those before them, after a resume or between slices of different
    origin, the episodes in between count as truncated, with their true next observation.

    Args:
        num_steps: rows per rollout, T.
        sequence_length: rows per sequence of a recurrent actor, a divisor of ``num_steps``; None
            takes 16, or the whole rollout where that is no multiple of 16.

    Raises:
        ConfigError: when ``num_steps`` is below 1, or ``sequence_length`` does not divide it.
    """

    batch_type: ClassVar[type] = RolloutBatch

    def __init__(self, num_steps: int = 128, sequence_length: int | None = None) -> None:
        if num_steps < 1:
            raise ConfigError(f"storage.num_steps must be at least 1, got {num_steps}")
        self.num_steps = num_steps
        self.sequence_length = sequence_length
        self._length = sequence_length_of(num_steps, sequence_length)
        self._spec: StorageSpec | None = None
        self._generator = torch.Generator()
        self._columns: dict[str, Tensor] = {}
        self._arrays: dict[str, Array] = {}
        self._attached: dict[str, Tensor] = {}
        self._next_observation: dict[str, Tensor] = {}
        self._unwritten_next: ArrayObservation | None = None
        self._finals = FinalObservations({})
        self._step = 0
        self._may_be_seam = False

    @property
    def spec(self) -> StorageSpec | None:
        """What `allocate` was given last."""
        return self._spec

    @property
    def rollout_steps(self) -> int:
        """Rows per rollout."""
        return self.num_steps

    @property
    def is_full(self) -> bool:
        """Whether the rollout is complete."""
        return self._step == self.num_steps

    def allocate(self, spec: StorageSpec, generator: torch.Generator) -> None:
        """Make room for one rollout; see `Storage.allocate`."""
        if self.sequence_length is not None and not spec.state_sizes:
            raise ConfigError(
                f"storage.sequence_length={self.sequence_length}, but the actor has no memory "
                "that would need sequences; leave it out, or use a recurrent actor"
            )
        self._spec = spec
        self._generator = generator
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
        self._columns = {
            name: torch.zeros(
                (self.num_steps, spec.num_envs, *column.shape),
                dtype=column.dtype,
                device=spec.device,
            )
            for name, column in columns.items()
        }
        self._arrays = (
            {name: column.numpy() for name, column in self._columns.items()}
            if spec.device.type == "cpu"
            else {}
        )
        self._next_observation = {
            name: torch.zeros_like(self._columns[name][0]) for name in observations
        }
        self._finals = FinalObservations(
            {name: column[:0] for name, column in self._next_observation.items()}
        )
        self.reset()

    def insert_transition(self, transition: Transition) -> None:
        """Take in one row.

        Raises:
            ConfigError: when the rollout is full or nothing was allocated.
        """
        spec = self._allocated()
        if self.is_full:
            raise ConfigError(
                f"the rollout storage is full after {self.num_steps} steps; update from it, or "
                "reset it, before collecting more"
            )
        row = self._step
        self._write_observation(row, transition.observation)
        self._write("action", row, transition.action)
        self._write("reward", row, transition.reward)
        self._write("terminated", row, transition.terminated)
        self._write("truncated", row, transition.truncated)
        self._write("valid", row, transition.valid)
        self._write("episode_start", row, transition.episode_start)
        for name in spec.state_sizes:
            self._write(f"state/{name}", row, transition.state[name])
        for name in spec.extras:
            self._write(f"extras/{name}", row, transition.extras[name])
        if self._may_be_seam:
            self._cut_seam(row)
        if transition.final_observation is not None:
            self._keep_final(row, transition)
        self._unwritten_next = transition.next_observation
        self._attached = {}
        self._step += 1

    def sample_indices(
        self, num_mini_batch: int | None, mini_batch_size: int | None
    ) -> Iterator[Tensor]:
        """Shuffle the samples, or the sequences when recurrent, into one block.

        Raises:
            ConfigError: when the sizes contradict each other or the rollout.
        """
        spec = self._allocated()
        length = self._length if spec.state_sizes else None
        count = count_minibatches(
            num_mini_batch,
            mini_batch_size,
            num_steps=self._step,
            num_envs=spec.num_envs,
            sequence_length=length,
        )
        units = self._step * spec.num_envs // (length or 1)
        yield shuffled_block(units, count, self._generator).to(spec.device)

    def gather(self, indices: Tensor) -> Iterator[RolloutBatch]:
        """Make one batch per row of the block.

        Raises:
            ConfigError: when no advantages were attached.
        """
        spec = self._allocated()
        missing = [name for name in PREPARED_COLUMNS if name not in self._attached]
        if missing:
            raise ConfigError(f"attach the prepared columns first; missing: {', '.join(missing)}")
        rows = self._rows(indices.clamp(min=0))

        def take(column: Tensor) -> tuple[Tensor, ...]:
            taken = column[: self._step].flatten(0, 1).index_select(0, rows.flatten())
            return taken.view(*rows.shape, *column.shape[2:]).unbind(0)

        columns = {
            name: take(column)
            for name, column in {**self._columns, **self._attached}.items()
            if name not in ("reward", "terminated", "truncated") and not name.startswith("state/")
        }
        counts = (indices >= 0).to(torch.float32).unbind(0)
        first = rows[:, 0].flatten()
        states = {
            name: self._columns[f"state/{name}"].flatten(0, 1).index_select(0, first)
            for name in spec.state_sizes
        }
        states = {name: state.view(*indices.shape, -1) for name, state in states.items()}
        extras = {
            name.removeprefix("extras/"): parts
            for name, parts in columns.items()
            if name.startswith("extras/")
        }
        for k in range(len(indices)):
            yield RolloutBatch(
                observation=join_observation({n: parts[k] for n, parts in columns.items()}),
                action=columns["action"][k],
                log_prob=columns["log_prob"][k],
                value=columns["value"][k],
                advantage=columns["advantage"][k],
                value_target=columns["value_target"][k],
                mask=columns["valid"][k] * counts[k],
                episode_start=columns["episode_start"][k],
                state={name: state[k] for name, state in states.items()},
                extras={name: parts[k] for name, parts in extras.items()},
            )

    def _rows(self, indices: Tensor) -> Tensor:
        """Find the rows of samples `(K, N)`, or of sequences, `(K, L, N)`, among all `T * B`."""
        spec = self._allocated()
        if not spec.state_sizes:
            return indices
        sequence, env = indices // spec.num_envs, indices % spec.num_envs
        step = torch.arange(self._length, device=indices.device).unsqueeze(1)
        return (sequence.unsqueeze(1) * self._length + step) * spec.num_envs + env.unsqueeze(1)

    def rollout(self) -> Rollout:
        """Return the stored rows, without copying the columns.

        Raises:
            ConfigError: when nothing is stored, or the rows break off before the rollout's end.
        """
        spec = self._allocated()
        if not self.is_full:
            raise ConfigError(
                f"the rollout has {self._step} of {self.num_steps} steps; collect the rest first"
            )
        columns = self._columns
        return Rollout(
            observation=join_observation(columns),
            next_observation=join_observation(self._following()),
            action=columns["action"],
            reward=columns["reward"],
            terminated=columns["terminated"],
            truncated=columns["truncated"],
            valid=columns["valid"],
            episode_start=columns["episode_start"],
            state={name: columns[f"state/{name}"][0] for name in spec.state_sizes},
            final_index=self._finals.index,
            final_observation=join_observation(self._finals.observations),
            extras={name: columns[f"extras/{name}"] for name in spec.extras},
        )

    def attach(self, columns: Mapping[str, Tensor]) -> None:
        """Add prepared columns, each `(T, B, ...)`; names beyond a batch's fields go to extras.

        Raises:
            DataError: when a column has another leading shape than the rollout.
        """
        spec = self._allocated()
        for name, column in columns.items():
            if column.shape[:2] != (self._step, spec.num_envs):
                raise DataError(
                    f"prepared column '{name}': expected leading shape "
                    f"{(self._step, spec.num_envs)}, got {tuple(column.shape)}"
                )
            key = name if name in PREPARED_COLUMNS else f"extras/{name}"
            self._attached[key] = column

    def after_update(self) -> None:
        """Forget the rollout that was learned from."""
        self.reset()

    def reset(self) -> None:
        """Start a new rollout in the same memory."""
        self._step = 0
        self._may_be_seam = False
        self._attached = {}
        self._unwritten_next = None
        self._finals.clear()

    def __len__(self) -> int:
        """Return how many rows are stored."""
        return self._step

    def get_data_slice(self, start: int, end: int) -> DataSlice:
        """Copy rows; `final_index` counts from ``start``, `next/...` follows row ``end - 1``.

        Raises:
            ConfigError: when the rows are not all stored.
        """
        self._allocated()
        if not 0 <= start <= end <= self._step:
            raise ConfigError(f"rows {start} to {end} are not within the {self._step} stored ones")
        data = {name: column[start:end].clone() for name, column in self._columns.items()}
        for name, last in self._following().items():
            following = self._columns[name][end] if end < self._step else last
            data[f"next/{name}"] = following.clone()
        rows = self._finals.index
        inside = (rows[:, 0] >= start) & (rows[:, 0] < end)
        data["final_index"] = rows[inside] - torch.tensor([start, 0], device=rows.device)
        for name, finals in self._finals.observations.items():
            data[f"final/{name}"] = finals[inside]
        return data

    def insert_data_slice(self, data: DataSlice) -> None:
        """Append the rows of a slice.

        Raises:
            DataError: when columns are missing, of other shape or dtype, or too long, or when a
                recurrent rollout would go on in the middle of another episode.
        """
        device = self._allocated().device
        length = self._checked_length(data)
        if length == 0:
            return
        start = self._step
        for name, column in self._columns.items():
            column[start : start + length].copy_(data[name])
        self._cut_seam(start)
        for name, last in self._next_observation.items():
            last.copy_(data[f"next/{name}"])
        self._unwritten_next = None
        index = data["final_index"].to(device) + torch.tensor([start, 0], device=device)
        self._finals.extend(index, {name: data[f"final/{name}"] for name in self._next_observation})
        self._attached = {}
        self._step += length
        self._may_be_seam = True

    def state_dict(self) -> StateDict:
        """Return the stored rows and the generator's state."""
        return {
            "step": self._step,
            "data": dict(self.get_data_slice(0, self._step)) if self._step else {},
            "generator": generator_state(self._generator),
        }

    def load_state_dict(self, state: StateDict) -> None:
        """Take over a state returned by `state_dict`; the storage must be allocated.

        Raises:
            CheckpointError: when the rows do not fit this storage.
        """
        self._allocated()
        saved = StateReader(state, "storage")
        self.reset()
        if saved.integer("step"):
            try:
                self.insert_data_slice(saved.tensors("data"))
            except DataError as error:
                raise CheckpointError(f"the saved rollout does not fit: {error}") from error
        set_generator_state(self._generator, saved.tensor("generator"))

    def _allocated(self) -> StorageSpec:
        if self._spec is None:
            raise ConfigError("the rollout storage is not allocated yet; a Trainer does it")
        return self._spec

    def _following(self) -> dict[str, Tensor]:
        """Return what follows the last row, by column; copied only when it is asked for."""
        if self._unwritten_next is not None:
            for name, value in _named(self._unwritten_next).items():
                self._next_observation[name].copy_(torch.as_tensor(value))
            self._unwritten_next = None
        return self._next_observation

    def _cut_seam(self, row: int) -> None:
        """Truncate the episodes of the row before, as far as they do not go on in this one."""
        self._may_be_seam = False
        if row == 0:
            return
        columns, following = self._columns, self._following()
        elsewhere = columns["episode_start"][row].clone()
        for name, expected in following.items():
            differs = columns[name][row] != expected
            elsewhere |= differs.view(len(elsewhere), -1).any(dim=1)
        if self._allocated().state_sizes and (elsewhere & ~columns["episode_start"][row]).any():
            raise DataError(
                "a recurrent rollout cannot go on in the middle of another episode; insert slices "
                "of one collector in their order, or whole rollouts"
            )
        last = row - 1
        goes_on = (
            columns["valid"][last] & ~columns["terminated"][last] & ~columns["truncated"][last]
        )
        envs = (elsewhere & goes_on).nonzero().flatten()
        columns["truncated"][last, envs] = True
        self._finals.add(last, envs, {name: rows[envs] for name, rows in following.items()})

    def _checked_length(self, data: DataSlice) -> int:
        """Return how many rows a slice has, after comparing all of it with the allocation."""
        length, count = (
            len(data[name]) if name in data else 0 for name in ("reward", "final_index")
        )
        expected = {
            name: ((length, *column.shape[1:]), column.dtype)
            for name, column in self._columns.items()
        }
        expected["final_index"] = ((count, 2), torch.int64)
        for name, last in self._next_observation.items():
            expected[f"next/{name}"] = (tuple(last.shape), last.dtype)
            expected[f"final/{name}"] = ((count, *last.shape[1:]), last.dtype)
        check_slice(data, expected)
        if self._step + length > self.num_steps:
            raise DataError(
                f"data slice of {length} rows does not fit: {self._step} of {self.num_steps} used"
            )
        return length

    def _write(self, name: str, row: int, value: ArrayLike) -> None:
        if self._arrays:
            self._arrays[name][row] = value.cpu().numpy() if isinstance(value, Tensor) else value
        else:
            self._columns[name][row].copy_(torch.as_tensor(value))

    def _write_observation(self, row: int, observation: ArrayObservation) -> None:
        if isinstance(observation, Mapping):
            for key, value in observation.items():
                self._write(f"observation/{key}", row, value)
        else:
            self._write("observation", row, observation)

    def _keep_final(self, row: int, transition: Transition) -> None:
        """Keep the final observations of rows that were cut; a terminated one is never needed."""
        assert transition.final_observation is not None
        cut = np.flatnonzero(np.asarray(torch.as_tensor(transition.truncated).cpu()))
        if len(cut) == 0:
            return
        device = self._allocated().device
        envs = torch.as_tensor(cut, device=device)
        finals = _named(transition.final_observation)
        self._finals.add(
            row, envs, {name: torch.as_tensor(v).to(device)[envs] for name, v in finals.items()}
        )


def _named(observation: ArrayObservation) -> dict[str, ArrayLike]:
    if isinstance(observation, Mapping):
        return {f"observation/{key}": value for key, value in observation.items()}
    return {"observation": observation}
