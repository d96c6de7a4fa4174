"""Replay rows in memory: the base of replay storages, ours and others'."""

from collections.abc import Iterator, Mapping, Sequence
from numbers import Integral
from typing import ClassVar, Protocol

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from rl_core.batch import ReplayBatch, Trajectory, Transition
from rl_core.config import Count, checked_arguments
from rl_core.errors import ConfigError
from rl_core.storage import (
    DataSlice,
    HasSlices,
    HasTrajectories,
    IndexSampler,
    StorageSpec,
    join_observation,
    observation_columns,
)
from rl_core.types import Observation
from rl_storages.gather.windows import WindowGather
from rl_storages.replay.columns import Columns, replay_columns
from rl_storages.replay.memory import rows_per_env
from rl_storages.replay.ring import ReplayRing
from rl_storages.replay.slices import checked_num_rows, copy_slice, ring_trajectories


class Gather(Protocol):
    """Turns slots into batches."""

    def __call__(self, slots: Tensor, weights: Tensor) -> Iterator[ReplayBatch]:
        """Gather K batches.

        Args:
            slots: shape `(K, N)`.
            weights: of each, shape `(K, N)`.
        """
        ...


class ReplayStorage(HasTrajectories[ReplayBatch], HasSlices[ReplayBatch]):
    """Keeps the newest transitions of all environments in rings of rows.

    This is the base of a replay storage of your own: it inserts, draws, gathers windows of n
    steps, saves and restores. Override what should differ, most often `gather`, `make_gather` or
    `insert_transition`. If only the choice of rows should differ, write an `IndexSampler`.

    Args:
        size: transitions over all environments.
        sampler: chooses what is drawn.
        n_step: rewards in a transition, at most.

    Raises:
        ConfigError: when a number is below 1.
    """

    batch_type: ClassVar[type] = ReplayBatch
    state_fields = ("ring", "_sampler", "generator")

    @checked_arguments("storage")
    def __init__(self, size: Count, sampler: IndexSampler, n_step: Count = 1) -> None:
        self.size = size
        self.n_step = n_step
        self.needs_td_errors = sampler.needs_td_errors
        self._sampler = sampler
        self._ring: ReplayRing | None = None

    @property
    def ring(self) -> ReplayRing:
        """The rows.

        Raises:
            ConfigError: when nothing was allocated.
        """
        if self._ring is None:
            self.check_allocated()
        assert self._ring is not None
        return self._ring

    def make_ring(self, spec: StorageSpec) -> ReplayRing:
        """Reserve memory for rows.

        Raises:
            ConfigError: when ``size`` is too small for the environments.
        """
        num_rows = rows_per_env(self.size, spec.num_envs, self.n_step)
        columns = Columns(replay_columns(spec), num_rows, spec.num_envs, spec.device)
        names = tuple(observation_columns(spec.observation))
        return ReplayRing(columns, num_rows, spec.num_envs, names)

    def make_gather(
        self, ring: ReplayRing, spec: StorageSpec, generator: torch.Generator
    ) -> Gather:
        """Return what turns drawn rows into batches; windows of n steps by default."""
        return WindowGather(ring, self.n_step)

    def allocate(self, spec: StorageSpec, generator: torch.Generator) -> None:
        """Reserve memory, which takes up room only as it is used; see `Storage.allocate`."""
        self.spec = self._ring = None
        ring = self.make_ring(spec)
        self._sampler.attach(ring, generator)
        self._gather = self.make_gather(ring, spec, generator)
        self._is_on_cpu = ring.columns.device.type == "cpu" == spec.device.type
        self._ring = ring
        super().allocate(spec, generator)

    def insert_transition(self, transition: Transition) -> None:
        """Insert one step of all environments.

        Where an episode begins although the one before had not ended, and after slices, `reset`
        and `mark_boundary`, an episode boundary lies between: the last transitions before it look
        ahead no further, and bootstrap from their true next observation.

        Raises:
            ConfigError: when nothing was allocated.
            DataError: when a column is missing, or has another shape or dtype than was allocated.
        """
        self.ring.writer.insert(transition)

    def sample_indices(
        self, num_minibatches: int | None, minibatch_size: int | None
    ) -> Iterator[Tensor]:
        """Draw with replacement.

        Args:
            num_minibatches: how many batches.
            minibatch_size: transitions in each; may be more than there are. There are as many
                sequences as hold so many, where they are not cut short.

        Yields:
            Slots, `(K, N)`; of sequences, those of the first transition that is learned from.

        Raises:
            ConfigError: when one of the numbers is missing, or there is no transition yet.
        """
        learned = self.ring.learned
        for name, value in (
            ("num_minibatches", num_minibatches),
            ("minibatch_size", minibatch_size),
        ):
            # Integral includes int, which is asked for first because that is cheaper.
            if not isinstance(value, int | Integral) or value < 1:
                raise ConfigError(
                    f"{name} must be a whole number of at least 1, got {value}: a replay buffer "
                    "has no epochs, it draws num_minibatches batches of minibatch_size transitions"
                )
        assert num_minibatches is not None
        assert minibatch_size is not None
        yield from self._sampler.draw(num_minibatches, -(-minibatch_size // learned))

    def gather(self, indices: Tensor) -> Iterator[ReplayBatch]:
        """Make one batch per row of the block."""
        batches = self._gather(indices, self._sampler.weights(indices))
        if self._is_on_cpu:
            return batches
        device = self.check_allocated().device

        def move(part: Tensor) -> Tensor:
            return part.to(device)

        # Some parts are on the CPU wherever the data is.
        return (tree_map_only(Tensor, move, batch) for batch in batches)

    def trajectories(self) -> Iterator[Trajectory]:
        """Yield the transitions of each environment, split at episode boundaries."""
        return ring_trajectories(self.ring)

    @property
    def num_transitions(self) -> int:
        """Number of stored transitions, of all environments together."""
        return 0 if self.spec is None else self.ring.num_transitions()

    def new_observations(self) -> tuple[Observation, Tensor]:
        """Return what was acted on since the last call, as far as it is stored.

        Returns:
            Observations `(N, ...)`, and `(N,)` true: all of them count.
        """
        device = self.check_allocated().device
        slots = torch.from_numpy(self.ring.new_transitions())
        columns = self.ring.observations.read(slots)
        observation = join_observation({name: part.to(device) for name, part in columns.items()})
        return observation, torch.ones(len(slots), dtype=torch.bool, device=device)

    def after_gradients(self, batch: object, info: Mapping[str, Tensor]) -> None:
        """Pass what a gradient step returned to the sampler, which may set new priorities."""
        if isinstance(batch, ReplayBatch):
            self._sampler.after_gradients(batch, info)

    def note_returns(self, returns: Sequence[float]) -> None:
        """Pass the returns of training episodes to the sampler."""
        self.check_allocated()
        self._sampler.note_returns(returns)

    def set_progress(self, progress: float) -> None:
        """Move schedules to a fraction of the run."""
        self.check_allocated()
        self._sampler.set_progress(progress)

    def live_parameters(self) -> Mapping[str, float]:
        """Return the sampler's parameters that may change while running."""
        self.check_allocated()
        return self._sampler.live_parameters()

    def set_live_parameter(self, name: str, value: float) -> None:
        """Set one of `live_parameters`."""
        self._sampler.set_live_parameter(name, value)

    def metrics(self) -> Mapping[str, float]:
        """Return the sampler's metrics."""
        self.check_allocated()
        return self._sampler.metrics()

    def mark_boundary(self) -> None:
        """Mark an episode boundary after the newest transitions."""
        self.ring.writer.boundaries.mark()

    def reset(self) -> None:
        """Forget the data, keep the memory."""
        self.ring.reset()
        self._sampler.reset()

    def __len__(self) -> int:
        """Return how many steps are stored of the environment with the most of them.

        It looks at the flags of all rows; see `num_transitions` for all environments together.
        """
        return 0 if self.spec is None else int(self.ring.step_counts().max())

    def get_data_slice(self, start: int, end: int) -> DataSlice:
        """Copy steps with their successors, counted from the oldest that is stored.

        Environments are aligned at the newest step. Of one that has overwritten more of its
        oldest steps than another, because its episodes were shorter, those are missing.

        Raises:
            ConfigError: when the steps are not all stored.
        """
        length = len(self)
        if not 0 <= start <= end <= length:
            raise ConfigError(f"steps {start} to {end} are not within the {length} stored ones")
        return copy_slice(self.ring, start, end, length)

    def insert_data_slice(self, data: DataSlice) -> None:
        """Append the steps of a slice; see `HasSlices.insert_data_slice`.

        Raises:
            DataError: when columns are missing, of other shape or dtype, or of unequal length.
        """
        num_rows = checked_num_rows(self.ring, data)
        self.ring.writer.append(data, num_rows)
