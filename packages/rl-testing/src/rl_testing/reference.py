"""A slow and obvious storage of rollouts: the oracle for fast ones, and enough for small runs."""

from collections.abc import Iterator, Mapping
from itertools import pairwise

import torch
from torch import Tensor

from rl_core.batch import PREPARED_COLUMNS, Rollout, RolloutBatch, Transition
from rl_core.errors import ConfigError, DataError
from rl_core.storage import HasRollouts, StorageSpec, columns_below
from rl_testing._rows import Row, RowStorage, assembled


class ReferenceRolloutStorage(RowStorage[RolloutBatch], HasRollouts):
    """A rollout storage of Python lists: one list of rows per environment, nothing preallocated.

    It stores each observation several times and copies row by row, so it is for tests only.

    Args:
        num_steps: rows per rollout, T.
        sequence_length: rows per sequence of a recurrent actor, a divisor of ``num_steps``; None
            takes whole rollouts.

    Raises:
        ConfigError: when ``num_steps`` is below 1, or ``sequence_length`` does not divide it.
    """

    def __init__(self, num_steps: int = 8, sequence_length: int | None = None) -> None:
        super().__init__()
        if num_steps < 1:
            raise ConfigError(f"storage.num_steps must be at least 1, got {num_steps}")
        self.num_steps = self.rollout_steps = num_steps
        self.sequence_length = num_steps if sequence_length is None else sequence_length
        if self.sequence_length < 1 or num_steps % self.sequence_length:
            raise ConfigError(
                f"storage.sequence_length={sequence_length} does not divide {num_steps}"
            )
        self._prepared: dict[str, Tensor] = {}

    def allocate(self, spec: StorageSpec, generator: torch.Generator) -> None:
        """Remember what will be inserted."""
        super().allocate(spec, generator)
        self.steps_per_sample = self.sequence_length if spec.state_sizes else 1

    def insert_transition(self, transition: Transition) -> None:
        """Take in one row of each environment.

        Raises:
            ConfigError: when the rollout is full or nothing was allocated.
            DataError: when a column has another shape or dtype than was allocated, or when a
                recurrent rollout would go on in the middle of another episode.
        """
        if len(self) == self.num_steps:
            raise ConfigError(f"the rollout is full after {self.num_steps} steps; reset it first")
        super().insert_transition(transition)

    def sample_indices(
        self, num_minibatches: int | None, minibatch_size: int | None
    ) -> Iterator[Tensor]:
        """Shuffle samples, or sequences when recurrent, and deal them out to minibatches.

        Raises:
            ConfigError: when the sizes contradict each other or the rollout.
        """
        samples = len(self) * self.check_allocated().num_envs
        length = self.steps_per_sample
        units = samples // length
        if (num_minibatches is None) == (minibatch_size is None):
            raise ConfigError("give just one of num_minibatches and minibatch_size")
        if num_minibatches is None:
            assert minibatch_size is not None
            if not length <= minibatch_size <= samples:
                raise ConfigError(f"minibatch_size={minibatch_size} does not fit the rollout")
            num_minibatches = -(-units // (minibatch_size // length))
        if not 1 <= num_minibatches <= units:
            raise ConfigError(f"num_minibatches={num_minibatches} for {units} samples or sequences")
        order = torch.randperm(units, generator=self.generator).tolist()
        batches = [order[first::num_minibatches] for first in range(num_minibatches)]
        longest = len(batches[0])
        yield torch.tensor([batch + [-1] * (longest - len(batch)) for batch in batches])

    def gather(self, indices: Tensor) -> Iterator[RolloutBatch]:
        """Make one batch per row of the block.

        Raises:
            ConfigError: when no advantages were attached.
        """
        spec = self.check_allocated()
        if not self._prepared.keys() >= set(PREPARED_COLUMNS):
            raise ConfigError(f"attach the prepared columns first: {', '.join(PREPARED_COLUMNS)}")
        columns = {**self._slice(self._rows), **self._prepared}
        for chosen in indices:
            units = chosen.clamp(min=0)  # padding borrows a row and is masked
            first, env = units // spec.num_envs * self.steps_per_sample, units % spec.num_envs
            steps = first + torch.arange(self.steps_per_sample)[:, None]
            batch = {name: column[steps, env] for name, column in columns.items()}
            first_states = {f"state/{name}": batch[f"state/{name}"][0] for name in spec.state_sizes}
            if not spec.state_sizes:
                batch = {name: column[0] for name, column in batch.items()}
            mask = (batch["valid"] & (chosen >= 0).to(spec.device)).to(torch.float32)
            yield assembled(RolloutBatch, {**batch, **first_states, "mask": mask})

    def rollout(self) -> Rollout:
        """Stack all rows.

        Raises:
            ConfigError: when rows are missing.
        """
        spec = self.check_allocated()
        if len(self) < self.num_steps:
            raise ConfigError(f"the rollout has {len(self)} of {self.num_steps} steps")
        columns = dict(self._slice(self._rows))
        for env, rows in enumerate(self._rows):
            for step, (row, following) in enumerate(pairwise(rows)):
                if row.breaks_off(following):
                    columns["truncated"][step, env] = True
        columns["final_index"] = columns["truncated"].nonzero()
        steps, envs = columns["final_index"].unbind(1)
        for name, part in columns_below("successor/", columns).items():
            columns[f"final_{name}"] = part[steps, envs]
        for name, part in columns_below("next/", columns).items():
            columns[f"next_{name}"] = part[-1]
        for name in spec.state_sizes:
            columns[f"state/{name}"] = columns[f"state/{name}"][0]
        return assembled(Rollout, columns)

    def attach(self, columns: Mapping[str, Tensor]) -> None:
        """Add prepared columns, each `(T, B, ...)`; names beyond a batch's fields go to extras.

        Raises:
            DataError: when a column has another leading shape than the rollout.
        """
        shape = (len(self), self.check_allocated().num_envs)
        for name, column in columns.items():
            if column.shape[:2] != shape:
                raise DataError(
                    f"prepared column '{name}': expected leading shape {shape}, got "
                    f"{tuple(column.shape)}"
                )
            self._prepared[name if name in PREPARED_COLUMNS else f"extras/{name}"] = column

    def after_update(self) -> None:
        """Forget the rollout that was learned from."""
        self.reset()

    def reset(self) -> None:
        """Start a new rollout."""
        super().reset()
        self._prepared = {}

    def _share(self) -> int:
        return self.num_steps

    def _insert(self, added: list[list[Row]]) -> None:
        if len(self) + len(added[0]) > self.num_steps:
            raise DataError(f"data slice of {len(added[0])} rows does not fit")
        recurrent = self.check_allocated().state_sizes
        for env, (rows, new) in enumerate(zip(self._rows, added, strict=True)):
            goes_on = not new or self._places.follows(new, env)
            if recurrent and rows and not goes_on and not new[0].columns["episode_start"]:
                raise DataError("a recurrent rollout cannot go on in the middle of another episode")
        super()._insert(added)
