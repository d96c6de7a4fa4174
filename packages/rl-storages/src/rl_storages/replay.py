"""The replay storage of off-policy algorithms."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from rl_core.batch import ReplayBatch, Trajectory, Transition
from rl_core.errors import ConfigError, DeviceError
from rl_core.goals import GoalFunction, GoalFunctions
from rl_core.seeding import generator_state, set_generator_state
from rl_core.stateful import StateReader
from rl_core.storage import (
    DataSlice,
    Storage,
    StorageSpec,
    join_observation,
    observation_columns,
)
from rl_core.types import Observation, StateDict, map_observation
from rl_storages._columns import Columns, replay_columns
from rl_storages._hindsight import Relabeller, checked_functions
from rl_storages._memory import available_bytes, bytes_per_entry, check_fits
from rl_storages._newest import NewestSampler
from rl_storages._priorities import PrioritizedSampler
from rl_storages._ring import ReplayRing
from rl_storages._samplers import IndexSampler, UniformSampler
from rl_storages._slices import checked_num_rows, copy_slice
from rl_storages._trajectories import ring_trajectories
from rl_storages._windows import WindowGather
from rl_storages.hindsight import HindsightConfig
from rl_storages.prioritized import PrioritizedConfig
from rl_storages.recent import RecentConfig


class ReplayBuffer(Storage[ReplayBatch]):
    """Keep the newest transitions of all environments, and draw from all of them.

    Each observation is stored once, in its own dtype: the next observation of a row is the
    following row's. Of each environment there are ``ceil(size / num_envs) + 1`` rows: one per
    step, one per episode for its last observation, and one for the observation that is acted on
    next. So when episodes are short, somewhat fewer than ``size`` transitions are kept.

    Args:
        size: transitions over all environments.
        n_step: rewards in a transition, at most: fewer where the episode ended, where the stored
            data breaks off, and for the newest transitions.
        prioritized: how to draw what surprised most more often; None draws all alike.
        recent: how to draw from the newest transitions only; None draws from all.
        hindsight: how to relabel goals; None leaves them as they were.
        her_function: how goals are rewarded, where the environment has no ``compute_reward`` or
            another one is wanted: of achieved goals `(N, ...)`, desired goals and an empty info it
            answers rewards `(N,)`. `GoalFunctions` say besides where episodes end.
        data_device: where the data is kept, such as ``"cpu"`` beside a GPU that has too little
            memory; None keeps it where batches go.
        mmap_dir: an existing directory in which the data is kept in files, for more of it than
            there is memory. They are removed at the end; checkpoints hold the data anyway.

    Raises:
        ConfigError: when a number is out of range, or options contradict each other.
    """

    batch_type: ClassVar[type] = ReplayBatch

    def __init__(
        self,
        size: int = 1_000_000,
        *,
        n_step: int = 1,
        prioritized: PrioritizedConfig | None = None,
        recent: RecentConfig | None = None,
        hindsight: HindsightConfig | None = None,
        her_function: GoalFunction | GoalFunctions | None = None,
        data_device: str | None = None,
        mmap_dir: str | None = None,
    ) -> None:
        for name, value in (("size", size), ("n_step", n_step)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"storage.{name} must be at least 1, got {value!r}")
        self.size = size
        self.n_step = n_step
        self.prioritized = prioritized
        self.recent = recent
        self.hindsight = hindsight
        self.her_function = her_function
        if her_function is not None and hindsight is None:
            raise ConfigError(
                "her_function rewards relabelled goals, but none are; give storage.hindsight too"
            )
        self.data_device = data_device
        self.mmap_dir = mmap_dir
        self._generator = torch.Generator()
        self._spec: StorageSpec | None = None

    @property
    def uses_objects(self) -> bool:
        """Whether it has a function of the user's own, which no recipe can name."""
        return self.her_function is not None

    @property
    def spec(self) -> StorageSpec | None:
        """What `allocate` was given last."""
        return self._spec

    @property
    def num_transitions(self) -> int:
        """How many transitions of all environments can be drawn."""
        return 0 if self._spec is None else self._ring.num_transitions()

    @property
    def nbytes(self) -> int:
        """What the data takes when the buffer is full."""
        return 0 if self._spec is None else self._ring.columns.nbytes

    def allocate(self, spec: StorageSpec, generator: torch.Generator) -> None:
        """Reserve memory, which takes up room only as it is used; see `Storage.allocate`.

        Raises:
            ConfigError: when the data will not fit, or ``size`` is too small for so many
                environments.
            DeviceError: when the data's device is not there.
        """
        num_rows = self._checked_num_rows(spec.num_envs)
        device = self._checked_device(spec.device)
        directory = self._checked_directory(device)
        specs = replay_columns(spec)
        goals = None
        if self.hindsight is not None:
            goals = checked_functions(spec, self.hindsight, self.her_function)
        self._spec = None
        check_fits(
            num_rows,
            bytes_per_entry(specs),
            available_bytes(device, directory),
            where=f"disk in {directory}" if directory else f"memory on {device}",
            num_envs=spec.num_envs,
        )
        columns = Columns(specs, num_rows, spec.num_envs, device, directory)
        names = tuple(observation_columns(spec.observation))
        self._ring: ReplayRing = ReplayRing(columns, num_rows, spec.num_envs, names)
        self._sampler = self._make_sampler(self._ring, generator)
        self._relabeller = (
            None
            if self.hindsight is None or goals is None
            else Relabeller(self._ring, generator, self.hindsight, goals)
        )
        self._gather = WindowGather(self._ring, self.n_step, self._relabeller)
        self._generator = generator
        self._spec = spec

    def insert_transition(self, transition: Transition) -> None:
        """Take in one step of all environments.

        Where an episode begins although the one before had not ended, that one is cut: its last
        transitions look ahead no further, and bootstrap from its true next observation.

        Raises:
            ConfigError: when nothing was allocated.
            DataError: when a column is missing, or has another shape or dtype than was allocated.
        """
        if self._spec is None:
            raise self._not_allocated()
        self._ring.insert(transition)

    def sample_indices(
        self, num_mini_batch: int | None, mini_batch_size: int | None
    ) -> Iterator[Tensor]:
        """Draw with replacement.

        Args:
            num_mini_batch: how many batches.
            mini_batch_size: transitions in each; may be more than there are.

        Yields:
            Slots, `(K, N)`.

        Raises:
            ConfigError: when one of the numbers is missing, or there is no transition yet.
        """
        self._allocated()
        for name, value in (
            ("num_mini_batch", num_mini_batch),
            ("mini_batch_size", mini_batch_size),
        ):
            if value is None or value < 1:
                raise ConfigError(
                    f"{name} must be at least 1, got {value}: a replay buffer has no epochs, it "
                    "draws num_mini_batch batches of mini_batch_size transitions"
                )
        assert num_mini_batch is not None
        assert mini_batch_size is not None
        yield from self._sampler.blocks(num_mini_batch, mini_batch_size)

    def gather(self, indices: Tensor) -> Iterator[ReplayBatch]:
        """Make one batch per row of the block."""
        device = self._allocated().device
        for batch in self._gather(indices, self._sampler.weights(indices)):
            yield _moved(batch, device)

    def trajectories(self) -> Iterator[Trajectory]:
        """Yield the transitions of each environment, cut where episodes end or break off."""
        self._allocated()
        yield from ring_trajectories(self._ring)

    def new_observations(self) -> tuple[Observation, Tensor]:
        """Return what was acted on since the last call, as far as it is stored.

        Returns:
            Observations `(N, ...)`, and `(N,)` true: all of them count.
        """
        device = self._allocated().device
        slots = torch.from_numpy(self._ring.new_transitions()).to(self._ring.columns.device)
        columns = self._ring.columns.by_slot
        observation = join_observation(
            {
                name: columns[name].index_select(0, slots).to(device)
                for name in self._ring.observation_names
            }
        )
        return observation, torch.ones(len(slots), dtype=torch.bool, device=device)

    def after_gradients(self, batch: object, info: Mapping[str, Tensor]) -> None:
        """Learn priorities, where transitions have them."""
        if isinstance(batch, ReplayBatch):
            self._sampler.learn(batch, info)

    def note_returns(self, returns: Sequence[float]) -> None:
        """Move eta by the returns of training episodes, where `RecentConfig` says so."""
        self._allocated()
        self._sampler.note_returns(returns)

    def metrics(self) -> Mapping[str, float]:
        """Return the live parameters, and by what they move."""
        self._allocated()
        return self._sampler.metrics()

    def set_progress(self, progress: float) -> None:
        """Move schedules to a fraction of the run."""
        self._allocated()
        self._sampler.set_progress(progress)

    def live_parameters(self) -> Mapping[str, float]:
        """Return the parameters that may change while running."""
        self._allocated()
        return self._sampler.live_parameters()

    def set_live_parameter(self, name: str, value: float) -> None:
        """Set one of `live_parameters`."""
        self._sampler.set_live_parameter(name, value)

    def reset(self) -> None:
        """Forget the data, keep the memory."""
        self._allocated()
        self._ring.reset()
        self._sampler.reset()
        if self._relabeller is not None:
            self._relabeller.begin_anew()

    def __len__(self) -> int:
        """Return how many steps are stored of the environment with the most of them.

        It looks at the flags of all rows; see `num_transitions` for all environments together.
        """
        return 0 if self._spec is None else int(self._ring.step_counts().max())

    def get_data_slice(self, start: int, end: int) -> DataSlice:
        """Copy steps with their successors, counted from the oldest that is stored.

        Environments are aligned at the newest step. Of one that has overwritten more of its
        oldest steps than another, because its episodes were shorter, those are missing.

        Raises:
            ConfigError: when the steps are not all stored.
        """
        self._allocated()
        length = len(self)
        if not 0 <= start <= end <= length:
            raise ConfigError(f"steps {start} to {end} are not within the {length} stored ones")
        return copy_slice(self._ring, start, end, length)

    def insert_data_slice(self, data: DataSlice) -> None:
        """Append the steps of a slice.

        Where its first step does not go on from the newest one here, that one is cut.

        Raises:
            DataError: when columns are missing, of other shape or dtype, or of unequal length.
        """
        self._allocated()
        num_rows = checked_num_rows(self._ring, data)
        self._ring.append(data, num_rows)

    def state_dict(self) -> StateDict:
        """Return all rows, priorities and the generator's state."""
        self._allocated()
        return {
            "ring": self._ring.state_dict(),
            "sampler": self._sampler.state_dict(),
            "generator": generator_state(self._generator),
        }

    def load_state_dict(self, state: StateDict) -> None:
        """Take over a state returned by `state_dict`; the storage must be allocated.

        Raises:
            CheckpointError: when it does not fit this storage.
        """
        self._allocated()
        saved = StateReader(state, "storage")
        saved.expect(("ring", "sampler", "generator"))
        self._ring.load_state_dict(saved.tree("ring"))
        self._sampler.load_state_dict(saved.tree("sampler"))
        set_generator_state(self._generator, saved.tensor("generator"))
        if self._relabeller is not None:
            self._relabeller.begin_anew()

    def _make_sampler(self, ring: ReplayRing, generator: torch.Generator) -> IndexSampler:
        if self.prioritized is not None:
            return PrioritizedSampler(ring, generator, self.prioritized, self.recent)
        if self.recent is not None:
            return NewestSampler(ring, generator, self.recent)
        return UniformSampler(ring, generator)

    def _allocated(self) -> StorageSpec:
        if self._spec is None:
            raise self._not_allocated()
        return self._spec

    def _not_allocated(self) -> ConfigError:
        return ConfigError("the replay buffer is not allocated yet; a Trainer does it")

    def _checked_num_rows(self, num_envs: int) -> int:
        num_rows = -(-self.size // num_envs) + 1
        if num_rows < self.n_step + 2:
            raise ConfigError(
                f"storage.size={self.size} is too small for {num_envs} environments and "
                f"n_step={self.n_step}; it must be at least {self.n_step * num_envs + 1}"
            )
        return num_rows

    def _checked_device(self, default: torch.device) -> torch.device:
        if self.data_device is None:
            return default
        try:
            device = torch.device(self.data_device)
            torch.empty(0, device=device)
        except (RuntimeError, AssertionError) as error:
            raise DeviceError(
                f"storage.data_device={self.data_device!r} is not there: {error}; use 'cpu'"
            ) from error
        return device

    def _checked_directory(self, device: torch.device) -> Path | None:
        if self.mmap_dir is None:
            return None
        directory = Path(self.mmap_dir)
        if not directory.is_dir():
            raise ConfigError(f"storage.mmap_dir: {directory} is not an existing directory")
        if device.type != "cpu":
            raise ConfigError(
                f"storage.mmap_dir keeps data in files, but it is to be on {device}; set "
                "storage.data_device to 'cpu'"
            )
        return directory


def _moved(batch: ReplayBatch, device: torch.device) -> ReplayBatch:
    """Bring a batch of transitions to where it is learned from."""
    if device.type == "cpu" == batch.action.device.type:
        return batch

    def move(part: Tensor) -> Tensor:
        return part.to(device)

    return ReplayBatch(
        observation=map_observation(move, batch.observation),
        action=move(batch.action),
        reward=move(batch.reward),
        num_steps=move(batch.num_steps),
        terminated=move(batch.terminated),
        next_observation=map_observation(move, batch.next_observation),
        weight=move(batch.weight),
        mask=move(batch.mask),
        key=move(batch.key),
        extras={name: move(part) for name, part in batch.extras.items()},
    )
