"""The rollout storage of on-policy algorithms."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from rl_core.batch import PREPARED_COLUMNS, Rollout, RolloutBatch, Transition
from rl_core.config import Count, check_argument, checked_arguments
from rl_core.errors import CheckpointError, ConfigError, DataError, in_brief
from rl_core.stateful import StateReader
from rl_core.storage import ORIGIN, DataSlice, HasRollouts, HasSlices, StorageSpec
from rl_core.types import StateDict
from rl_storages.rollout.minibatches import minibatches, sequence_length_of, shuffled_block
from rl_storages.rollout.rows import RolloutRows


class RolloutStorage(HasRollouts, HasSlices[RolloutBatch]):
    """Keep the last ``num_steps`` steps of all environments, then start anew.

    Memory is allocated once, `(T, B, ...)`. Each observation is stored once: the successor of a
    row is the next row, and only where an episode ended inside a step is its true final
    observation kept apart. Minibatches are drawn without replacement: of single samples, or of
    sequences when the actor is recurrent. They are as equal as can be; the smaller ones are
    padded with one entry of mask 0, so that all have one shape.

    Sequences are cut from each environment's rows at every multiple of ``sequence_length``, and
    begin with the recurrent state that was there while acting. Episodes may end and begin inside
    them; gradients go no further back than their first row.

    Where rows do not go on from those before them, because episodes were left at a resume or
    slices do not follow on each other, the episodes in between count as truncated, with their true
    next observation.

    Args:
        num_steps: rows per rollout, T.
        sequence_length: rows per sequence of a recurrent actor, a divisor of ``num_steps``; None
            takes the largest divisor from 8 to 16, or else the smallest above 16.

    Raises:
        ConfigError: unless both are whole numbers of at least 1, and ``sequence_length`` divides
            ``num_steps``.
    """

    state_fields = ("generator",)

    @checked_arguments("storage")
    def __init__(self, num_steps: Count = 128, sequence_length: Count | None = None) -> None:
        self.num_steps = num_steps
        self.sequence_length = sequence_length
        self._length = sequence_length_of(num_steps, sequence_length)
        self.rollout_steps = num_steps
        self._rows: RolloutRows | None = None
        self._attached: dict[str, Tensor] = {}

    @property
    def is_full(self) -> bool:
        """Whether the rollout is complete."""
        return len(self) == self.num_steps

    def allocate(self, spec: StorageSpec, generator: torch.Generator) -> None:
        """Make room for one rollout; see `Storage.allocate`.

        Raises:
            ConfigError: when there is no memory for so many steps, or sequences are asked for
                and the actor is not recurrent.
        """
        if self.sequence_length is not None and not spec.state_sizes:
            raise ConfigError(
                f"storage.sequence_length={self.sequence_length}, but the actor is not "
                "recurrent and needs no sequences; leave it out, or use a recurrent actor"
            )
        try:
            self._rows = RolloutRows(spec, self.num_steps)
        except RuntimeError as error:
            raise ConfigError(
                f"storage.num_steps={self.num_steps}: there is no memory for so many steps of "
                f"{spec.num_envs} environments ({in_brief(error)}); use shorter rollouts"
            ) from error
        self._drawn_length = self._length if spec.state_sizes else None
        self.steps_per_sample = self._drawn_length or 1
        super().allocate(spec, generator)

    def insert_transition(self, transition: Transition) -> None:
        """Take in one row.

        Raises:
            ConfigError: when the rollout is full or nothing was allocated.
            DataError: when a column is missing, or has another shape or dtype than was allocated,
                or when a recurrent rollout would go on in the middle of another episode.
        """
        rows = self._allocated()
        if rows.count == self.num_steps:
            raise ConfigError(
                f"the rollout storage is full after {self.num_steps} steps; update from it, or "
                "reset it, before collecting more"
            )
        rows.insert(transition)
        self._attached = {}

    def sample_indices(
        self, num_minibatches: int | None, minibatch_size: int | None
    ) -> Iterator[Tensor]:
        """Shuffle the samples, or the sequences when recurrent, into one block.

        Raises:
            ConfigError: when the sizes contradict each other or the rollout.
        """
        rows = self._allocated()
        count = self._count_batches(num_minibatches, minibatch_size, rows.count)
        units = rows.count * rows.spec.num_envs // self.steps_per_sample
        yield shuffled_block(units, count, self.generator).to(rows.spec.device)

    def check_batches(
        self, num_minibatches: int | None, minibatch_size: int | None, min_samples: int = 1
    ) -> None:
        """Refuse sizes that a whole rollout does not have; see `Storage.check_batches`."""
        count = self._count_batches(num_minibatches, minibatch_size, self.num_steps)
        length = self.steps_per_sample
        samples = self.num_steps * self._allocated().spec.num_envs
        smallest = samples // length // count * length
        if smallest < min_samples:
            raise ConfigError(
                f"{count} minibatches of the rollout's {samples} samples leave only {smallest} in "
                f"the smallest, and the algorithm learns from {min_samples} at least; use fewer, "
                "larger minibatches"
            )

    def gather(self, indices: Tensor) -> Iterator[RolloutBatch]:
        """Make one batch per row of the block.

        Raises:
            ConfigError: when no advantages were attached.
        """
        rows = self._allocated()
        missing = [name for name in PREPARED_COLUMNS if name not in self._attached]
        if missing:
            raise ConfigError(f"attach the prepared columns first; missing: {', '.join(missing)}")
        columns = {
            name: column[: rows.count]
            for name, column in {**rows.columns, **self._attached}.items()
        }
        yield from minibatches(columns, indices, tuple(rows.spec.state_sizes), self._drawn_length)

    def rollout(self) -> Rollout:
        """Return the stored rows, without copying the columns.

        Raises:
            ConfigError: when nothing is stored, or the rows break off before the rollout's end.
        """
        rows = self._allocated()
        if not self.is_full:
            raise ConfigError(
                f"the rollout has {rows.count} of {self.num_steps} steps; collect the rest first"
            )
        return rows.as_rollout()

    def attach(self, columns: Mapping[str, Tensor]) -> None:
        """Add prepared columns, each `(T, B, ...)`; names beyond a batch's fields go to extras.

        Raises:
            DataError: when a column has another leading shape than the rollout.
        """
        rows = self._allocated()
        expected = (rows.count, rows.spec.num_envs)
        for name, column in columns.items():
            if column.shape[:2] != expected:
                raise DataError(
                    f"prepared column '{name}': expected leading shape {expected}, got "
                    f"{tuple(column.shape)}"
                )
            key = name if name in PREPARED_COLUMNS else f"extras/{name}"
            self._attached[key] = column

    def after_update(self) -> None:
        """Forget the rollout that was learned from."""
        self.reset()

    def mark_boundary(self) -> None:
        """Mark an episode boundary: episodes that run now count as truncated."""
        self._allocated().boundaries.mark()

    def reset(self) -> None:
        """Start a new rollout in the same memory."""
        self._attached = {}
        if self._rows is not None:
            self._rows.clear()

    def __len__(self) -> int:
        """Return how many rows are stored."""
        return 0 if self._rows is None else self._rows.count

    def get_data_slice(self, start: int, end: int) -> DataSlice:
        """Copy rows; `final_index` counts from ``start``, `next/...` follows row ``end - 1``.

        Raises:
            ConfigError: when the rows are not all stored.
        """
        rows = self._allocated()
        if not 0 <= start <= end <= rows.count:
            raise ConfigError(f"rows {start} to {end} are not within the {rows.count} stored ones")
        return rows.get_slice(start, end)

    def insert_data_slice(self, data: DataSlice) -> None:
        """Append the rows of a slice.

        Unless it goes on where another slice of the same storage ended that was inserted before
        it, running episodes are truncated. Observations are not compared.

        Raises:
            DataError: when columns are missing, of other shape or dtype, or too long, or when a
                recurrent rollout would go on in the middle of another episode.
        """
        if self._allocated().insert_slice(data):
            self._attached = {}

    def state_dict(self) -> StateDict:
        """Return the stored rows and the generator's state."""
        rows = self._allocated()
        data = dict(rows.get_slice(0, rows.count)) if rows.count else {}
        data.pop(ORIGIN, None)
        boundaries = rows.boundaries.state_dict()
        return {**super().state_dict(), "step": rows.count, "data": data, "boundaries": boundaries}

    def load_state_dict(self, state: StateDict) -> None:
        """Take over a state returned by `state_dict`; the storage must be allocated.

        Raises:
            CheckpointError: when the rows do not fit this storage.
        """
        rows = self._allocated()
        saved = StateReader(state, "storage")
        saved.expect((*self.state_fields, "step", "data", "boundaries"))
        step = saved.count("step")
        self.reset()
        if step:
            data = {**saved.tensors("data"), ORIGIN: rows.boundaries.origin(0)}
            try:
                rows.insert_slice(data)
            except DataError as error:
                raise CheckpointError(f"the saved rollout does not fit: {error}") from error
        if rows.count != step:
            raise CheckpointError(f"the saved rollout has {rows.count} rows; expected {step}")
        rows.boundaries.load_state_dict(saved.tree("boundaries"))
        self.load_fields(saved)

    def _count_batches(
        self, num_minibatches: int | None, minibatch_size: int | None, num_steps: int
    ) -> int:
        """Return how many minibatches one pass over rows makes.

        Args:
            num_minibatches: that number itself, or None.
            minibatch_size: samples in each, at most, in whole sequences; or None.
            num_steps: rows.

        Raises:
            ConfigError: when not just one of the two is given, it asks for more than there is, or
                not one sequence has room in a minibatch.
        """
        if (num_minibatches is None) == (minibatch_size is None):
            raise ConfigError("give just one of num_minibatches and minibatch_size")
        check_argument("num_minibatches", num_minibatches, Count | None)
        check_argument("minibatch_size", minibatch_size, Count | None)
        num_envs, length = self._allocated().spec.num_envs, self.steps_per_sample
        samples = num_steps * num_envs
        rollout = f"the rollout of {num_steps} steps x {num_envs} environments"
        if num_steps % length:
            raise ConfigError(
                f"{rollout} is not a whole number of sequences of {length} steps; collect the rest "
                "first"
            )
        units = samples // length
        if num_minibatches is not None:
            if num_minibatches > units:
                what = "samples" if self._drawn_length is None else f"sequences of {length} steps"
                raise ConfigError(
                    f"num_minibatches={num_minibatches} is more than the {units} {what} of "
                    f"{rollout}; use fewer minibatches, longer rollouts or more environments"
                )
            return num_minibatches
        assert minibatch_size is not None
        if minibatch_size > samples:
            raise ConfigError(
                f"minibatch_size={minibatch_size} is larger than the {samples} samples of "
                f"{rollout}; use smaller minibatches, longer rollouts or more environments"
            )
        if minibatch_size < length:
            raise ConfigError(
                f"minibatch_size={minibatch_size} has no room for one sequence of {length} steps; "
                f"use at least {length}, or another storage.sequence_length"
            )
        return -(-units // (minibatch_size // length))

    def _allocated(self) -> RolloutRows:
        self.check_allocated()
        assert self._rows is not None
        return self._rows
