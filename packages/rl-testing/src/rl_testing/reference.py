"""Slow and obvious storages: the oracle for fast ones, and enough for tests of everything else."""

from collections.abc import Iterator, Mapping
from typing import ClassVar

import torch
from torch import Tensor

from rl_core.batch import PREPARED_COLUMNS, Rollout, RolloutBatch, Transition
from rl_core.errors import CheckpointError, ConfigError, DataError
from rl_core.seeding import generator_state, set_generator_state
from rl_core.stateful import StateReader
from rl_core.storage import DataSlice, Storage, StorageSpec, join_observation
from rl_core.types import StateDict
from rl_testing._rows import (
    Places,
    Row,
    below,
    breaks_off,
    restored_rows,
    rows_of_slice,
    rows_of_transition,
    slice_of_rows,
    stack,
    stack_steps,
)


class ReferenceRolloutStorage(Storage[RolloutBatch]):
    """A rollout storage of Python lists: one list of rows per environment, nothing preallocated.

    It stores each observation several times and copies row by row, so it is for tests only.

    Args:
        num_steps: rows per rollout, T.
        sequence_length: rows per sequence of a recurrent actor, a divisor of ``num_steps``; None
            takes whole rollouts.

    Raises:
        ConfigError: when ``num_steps`` is below 1, or ``sequence_length`` does not divide it.
    """

    batch_type: ClassVar[type] = RolloutBatch

    def __init__(self, num_steps: int = 8, sequence_length: int | None = None) -> None:
        if num_steps < 1:
            raise ConfigError(f"storage.num_steps must be at least 1, got {num_steps}")
        self.num_steps = num_steps
        self.sequence_length = num_steps if sequence_length is None else sequence_length
        if self.sequence_length < 1 or num_steps % self.sequence_length:
            raise ConfigError(
                f"storage.sequence_length={sequence_length} does not divide {num_steps}"
            )
        self._spec: StorageSpec | None = None
        self._generator = torch.Generator()
        self._rows: list[list[Row]] = []

    @property
    def spec(self) -> StorageSpec | None:
        """What `allocate` was given last."""
        return self._spec

    @property
    def rollout_steps(self) -> int:
        """Rows per rollout."""
        return self.num_steps

    @property
    def steps_per_sample(self) -> int:
        """The length of a recurrent actor's sequences, or 1 without memory; once allocated.

        Raises:
            ConfigError: when nothing was allocated.
        """
        return self.sequence_length if self._allocated().state_sizes else 1

    def allocate(self, spec: StorageSpec, generator: torch.Generator) -> None:
        """Remember what will be inserted."""
        self._spec = spec
        self._generator = generator
        self._places = Places(spec.num_envs)
        self.reset()

    def insert_transition(self, transition: Transition) -> None:
        """Take in one row of each environment.

        Raises:
            ConfigError: when the rollout is full or nothing was allocated.
            DataError: when a column has another shape or dtype than was allocated, or when a
                recurrent rollout would go on in the middle of another episode.
        """
        spec = self._allocated()
        if len(self) == self.num_steps:
            raise ConfigError(f"the rollout is full after {self.num_steps} steps; reset it first")
        self._append(rows_of_transition(transition, spec))

    def sample_indices(
        self, num_mini_batch: int | None, mini_batch_size: int | None
    ) -> Iterator[Tensor]:
        """Shuffle samples, or sequences when recurrent, and deal them out to minibatches.

        Raises:
            ConfigError: when the sizes contradict each other or the rollout.
        """
        spec = self._allocated()
        length = self.steps_per_sample
        units = len(self) * spec.num_envs // length
        if (num_mini_batch is None) == (mini_batch_size is None):
            raise ConfigError("give just one of num_mini_batch and mini_batch_size")
        if num_mini_batch is None:
            assert mini_batch_size is not None
            if not length <= mini_batch_size <= len(self) * spec.num_envs:
                raise ConfigError(f"mini_batch_size={mini_batch_size} does not fit the rollout")
            num_mini_batch = -(-units // (mini_batch_size // length))
        if num_mini_batch > units:
            raise ConfigError(f"num_mini_batch={num_mini_batch} is more than the rollout has")
        batches: list[list[int]] = [[] for _ in range(num_mini_batch)]
        for place, unit in enumerate(torch.randperm(units, generator=self._generator).tolist()):
            batches[place % num_mini_batch].append(unit)
        longest = max(len(batch) for batch in batches)
        yield torch.tensor([batch + [-1] * (longest - len(batch)) for batch in batches])

    def gather(self, indices: Tensor) -> Iterator[RolloutBatch]:
        """Make one batch per row of the block.

        Raises:
            ConfigError: when no advantages were attached.
        """
        spec = self._allocated()
        if any(name not in self._rows[0][0].prepared for name in PREPARED_COLUMNS):
            raise ConfigError(f"attach the prepared columns first: {', '.join(PREPARED_COLUMNS)}")
        for chosen in indices.tolist():
            units = [max(unit, 0) for unit in chosen]  # padding borrows a row and is masked
            if spec.state_sizes:
                batch = stack([self._sequence(*divmod(unit, spec.num_envs)) for unit in units], 1)
            else:
                batch = stack([self._sample(*divmod(unit, spec.num_envs)) for unit in units], 0)
            counts = torch.tensor([unit >= 0 for unit in chosen], device=spec.device)
            yield RolloutBatch(
                observation=join_observation(batch),
                action=batch["action"],
                log_prob=batch["log_prob"],
                value=batch["value"],
                advantage=batch["advantage"],
                value_target=batch["value_target"],
                mask=(batch["valid"] & counts).to(torch.float32),
                episode_start=batch["episode_start"],
                state={name: batch[f"state/{name}"][0] for name in spec.state_sizes},
                extras=below("extras/", batch),
            )

    def rollout(self) -> Rollout:
        """Stack all rows.

        Raises:
            ConfigError: when rows are missing.
        """
        spec = self._allocated()
        if len(self) < self.num_steps:
            raise ConfigError(f"the rollout has {len(self)} of {self.num_steps} steps")
        columns = stack_steps([[row.columns for row in rows] for rows in self._rows])
        finals = []
        for env, rows in enumerate(self._rows):
            for step, row in enumerate(rows):
                if step + 1 < len(rows) and breaks_off(row, rows[step + 1]):
                    columns["truncated"][step, env] = True
                if columns["truncated"][step, env]:
                    finals.append((step, env, row.successor))
        last = stack([rows[-1].next_observation for rows in self._rows], 0)
        nothing = {name: column[:0] for name, column in last.items()}
        return Rollout(
            observation=join_observation(columns),
            next_observation=join_observation(last),
            action=columns["action"],
            reward=columns["reward"],
            terminated=columns["terminated"],
            truncated=columns["truncated"],
            valid=columns["valid"],
            episode_start=columns["episode_start"],
            state={name: columns[f"state/{name}"][0] for name in spec.state_sizes},
            final_index=torch.tensor(
                [(step, env) for step, env, _ in finals], dtype=torch.int64, device=spec.device
            ).reshape(-1, 2),
            final_observation=join_observation(
                stack([successor for _, _, successor in finals], 0) if finals else nothing
            ),
            extras=below("extras/", columns),
        )

    def attach(self, columns: Mapping[str, Tensor]) -> None:
        """Add prepared columns, each `(T, B, ...)`; names beyond a batch's fields go to extras.

        Raises:
            DataError: when a column has another leading shape than the rollout.
        """
        shape = (len(self), self._allocated().num_envs)
        for name, column in columns.items():
            if column.shape[:2] != shape:
                raise DataError(
                    f"prepared column '{name}': expected leading shape {shape}, got "
                    f"{tuple(column.shape)}"
                )
            key = name if name in PREPARED_COLUMNS else f"extras/{name}"
            for env, rows in enumerate(self._rows):
                for step, row in enumerate(rows):
                    row.prepared[key] = column[step, env]

    def after_update(self) -> None:
        """Forget the rollout that was learned from."""
        self.reset()

    def cut(self) -> None:
        """Let what is inserted next begin anew."""
        self._allocated()
        self._places.cut()

    def reset(self) -> None:
        """Start a new rollout."""
        self._rows = [[] for _ in range(0 if self._spec is None else self._spec.num_envs)]

    def __len__(self) -> int:
        """Return how many rows are stored."""
        return len(self._rows[0]) if self._rows else 0

    def get_data_slice(self, start: int, end: int) -> DataSlice:
        """Copy rows; every column is `(L, B, ...)`.

        Raises:
            ConfigError: when the rows are not all stored.
        """
        spec = self._allocated()
        if not 0 <= start <= end <= len(self):
            raise ConfigError(f"rows {start} to {end} are not within the {len(self)} stored ones")
        held = [rows[start:end] for rows in self._rows]
        return slice_of_rows(held, spec, self._places.storage)

    def insert_data_slice(self, data: DataSlice) -> None:
        """Append the rows of a slice.

        Raises:
            DataError: when columns are missing, of other shape or dtype, or too long, or when a
                recurrent rollout would go on in the middle of another episode.
        """
        spec = self._allocated()
        added = rows_of_slice(data, spec)
        if len(self) + len(added[0]) > self.num_steps:
            raise DataError(f"data slice of {len(added[0])} rows does not fit")
        self._append(added)

    def state_dict(self) -> StateDict:
        """Return the stored rows and the generator's state."""
        return {
            "data": dict(slice_of_rows(self._rows, self._allocated())),
            "places": self._places.state_dict(),
            "generator": generator_state(self._generator),
        }

    def load_state_dict(self, state: StateDict) -> None:
        """Take over a state returned by `state_dict`; the storage must be allocated.

        Raises:
            CheckpointError: when the rows do not fit this storage.
        """
        spec = self._allocated()
        saved = StateReader(state, "storage")
        added = restored_rows(saved.tensors("data"), spec)
        if len(added[0]) > self.num_steps:
            raise CheckpointError(f"{len(added[0])} rows are saved; expected {self.num_steps}")
        self._rows = added
        self._places.load_state_dict(saved.tree("places"))
        set_generator_state(self._generator, saved.tensor("generator"))

    def _append(self, added: list[list[Row]]) -> None:
        """Add rows to those of each environment, if they may follow on these."""
        recurrent = self._allocated().state_sizes
        for env, (rows, new) in enumerate(zip(self._rows, added, strict=True)):
            goes_on = not new or self._places.follows(new, env)
            if recurrent and rows and not goes_on and not new[0].columns["episode_start"]:
                raise DataError("a recurrent rollout cannot go on in the middle of another episode")
        self._places.number(added)
        for rows, new in zip(self._rows, added, strict=True):
            rows += new

    def _allocated(self) -> StorageSpec:
        if self._spec is None:
            raise ConfigError("the storage is not allocated yet")
        return self._spec

    def _sequence(self, number: int, env: int) -> dict[str, Tensor]:
        first = number * self.sequence_length
        return stack([self._sample(first + t, env) for t in range(self.sequence_length)], 0)

    def _sample(self, step: int, env: int) -> dict[str, Tensor]:
        row = self._rows[env][step]
        return {**row.columns, **row.prepared}
