"""The replay storage of off-policy algorithms."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, ClassVar

import torch
from annotated_types import Interval
from torch import Tensor

from rl_core.batch import ReplayBatch, Trajectory, Transition
from rl_core.config import Count, Needs, checked_arguments
from rl_core.env import GoalFunctions
from rl_core.env.goals import GoalFunction
from rl_core.errors import ConfigError
from rl_core.seeding import generator_state, set_generator_state
from rl_core.stateful import StateReader
from rl_core.storage import (
    OBSERVATION_COLUMN,
    DataSlice,
    IndexSampler,
    Storage,
    StorageSpec,
    join_observation,
    observation_columns,
)
from rl_core.types import Json, Observation, StateDict
from rl_storages.config import HindsightConfig, PrioritizedConfig, RecentConfig, SequenceConfig
from rl_storages.gather.hindsight import Relabeller, checked_functions, goal_columns
from rl_storages.gather.sequence_starts import SequenceTiles
from rl_storages.gather.sequences import SequenceGather
from rl_storages.gather.windows import WindowGather
from rl_storages.replay.columns import Columns, replay_columns
from rl_storages.replay.frames import FrameStacks, check_known, stacked_columns
from rl_storages.replay.memory import check_fits, moved, row_needs
from rl_storages.replay.options import (
    check_combination,
    checked_device,
    checked_directory,
    no_batches,
    not_allocated,
    rows_per_env,
)
from rl_storages.replay.ring import ReplayRing
from rl_storages.replay.slices import checked_num_rows, copy_slice
from rl_storages.replay.trajectories import ring_trajectories
from rl_storages.sampling.choice import bytes_to_draw, make_sampler
from rl_storages.sampling.recent import check_period


class ReplayBuffer(Storage[ReplayBatch]):
    """Keep the newest transitions of all environments, and draw from all of them.

    Each observation is stored once, in its own dtype: the next observation of a row is the
    following row's. Of each environment there are ``ceil(size / num_envs) + 1`` rows: one per
    step, one per episode for its last observation, and one for the observation that is acted on
    next. So when episodes are short, somewhat fewer than ``size`` transitions are kept. Stacks of
    frames and sequences take some further rows, so that ``size`` transitions can still be drawn
    with what came before them.

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
        sequences: draw sequences of transitions, with the recurrent states stored beside them, for
            actors with a memory; None draws single transitions, and stores no states.
        frame_stack: the observation, or each image of a dict, is a stack of so many frames along
            its first axis, of which only the newest is stored; None stores observations whole.
        unstacked: entries of a dict that are stored whole, even where they look like stacks; goals
            in hindsight are anyway.
        data_device: where the data is kept, such as ``"cpu"`` beside a GPU that has too little
            memory; None keeps it where batches go.
        mmap_dir: an existing directory on the disk where the data is kept in files, for more of it
            than there is memory. They have no names, and are gone when the process is, however it
            ends; checkpoints hold the data anyway.
        sampler: your own rule of which rows are drawn, in place of ``prioritized`` and ``recent``.

    Raises:
        ConfigError: when a number is out of range, or options contradict each other.
    """

    batch_type: ClassVar[type] = ReplayBatch

    @checked_arguments("storage")
    def __init__(
        self,
        size: Count = 1_000_000,
        *,
        n_step: Count = 1,
        prioritized: PrioritizedConfig | None = None,
        recent: RecentConfig | None = None,
        hindsight: HindsightConfig | None = None,
        her_function: Annotated[GoalFunction | GoalFunctions | None, Needs("hindsight")] = None,
        sequences: SequenceConfig | None = None,
        frame_stack: Annotated[int, Interval(ge=2, le=255)] | None = None,
        unstacked: Annotated[Sequence[str], Needs("frame_stack")] = (),
        data_device: str | None = None,
        mmap_dir: str | None = None,
        sampler: IndexSampler | None = None,
    ) -> None:
        check_combination(size, prioritized, recent, sequences)
        if sampler is not None and (prioritized is not None or recent is not None):
            raise ConfigError(
                "storage.sampler replaces prioritized and recent, which are samplers too; leave "
                "one out"
            )
        self.size = size
        self.n_step = n_step
        self.prioritized = prioritized
        self.recent = recent
        self.hindsight = hindsight
        self.her_function = her_function
        self.sequences = sequences
        self.frame_stack = frame_stack
        self.unstacked = tuple(unstacked)
        self.data_device = data_device
        self.mmap_dir = mmap_dir
        self.sampler = sampler
        self._sampler = sampler or make_sampler(prioritized, recent)
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

    @classmethod
    def options_to_read(cls, options: Mapping[str, Json]) -> Mapping[str, Json]:
        """Leave out where the data lies, and goals in hindsight, which the environment rewards.

        Goals go on being stored as they were.
        """
        elsewhere = {"hindsight", "data_device", "mmap_dir"}
        kept = {name: value for name, value in options.items() if name not in elsewhere}
        hindsight, unstacked = options.get("hindsight"), options.get("unstacked") or ()
        if isinstance(options.get("frame_stack"), int) and isinstance(hindsight, Mapping):
            goals = [str(hindsight.get(name, name)) for name in ("achieved_goal", "desired_goal")]
            assert isinstance(unstacked, Sequence)
            kept["unstacked"] = [*unstacked, *goals]
        return kept

    def check_batches(
        self,
        num_minibatches: int | None,
        minibatch_size: int | None,
        min_samples: int = 1,
    ) -> None:
        """Refuse windows that shrink over the batches of an update which has a single one."""
        if self.recent is not None:
            check_period(self.recent, num_minibatches or 1)

    @property
    def gives_sequences(self) -> bool:
        """Whether ``sequences`` was given."""
        return self.sequences is not None

    @property
    def steps_per_sample(self) -> int:
        """The length of ``sequences``, or 1 without."""
        return 1 if self.sequences is None else self.sequences.length

    @property
    def needs_td_errors(self) -> bool:
        """Whether the sampler learns from them."""
        return self._sampler.needs_td_errors

    @property
    def num_transitions(self) -> int:
        """How many transitions are stored that can be drawn, alone or within a sequence.

        With ``sequences`` the oldest few of each environment count too, of which the sequence is
        no longer there as a whole.
        """
        return 0 if self._spec is None else self._ring.num_transitions()

    @property
    def nbytes(self) -> int:
        """What the data takes when the buffer is full, with all that is kept to draw from it."""
        if self._spec is None:
            return 0
        return self._ring.columns.nbytes + self._bytes_to_draw(self._ring.num_slots)

    def allocate(self, spec: StorageSpec, generator: torch.Generator) -> None:
        """Reserve memory, which takes up room only as it is used; see `Storage.allocate`.

        Raises:
            ConfigError: when the data will not fit, or ``size`` is too small for so many
                environments.
            DeviceError: when the data's device is not there.
        """
        goals: tuple[str, ...] = ()
        functions = None
        if self.hindsight is not None:
            goals = goal_columns(self.hindsight)
            functions = checked_functions(spec, self.hindsight, self.her_function)
        tiles = None if self.sequences is None else SequenceTiles(self.sequences, spec.num_envs)
        self._spec = None
        self._ring = self._make_ring(spec, goals, tiles)
        self._sampler.attach(self._ring, generator)
        self._relabeller = None
        if self.hindsight is not None and functions is not None:
            self._relabeller = Relabeller(self._ring, generator, self.hindsight, functions)
        self._gather: WindowGather | SequenceGather = (
            WindowGather(self._ring, self.n_step, self._relabeller)
            if tiles is None
            else SequenceGather(self._ring, self.n_step, tiles, self._relabeller)
        )
        self._generator = generator
        self._spec = spec

    def insert_transition(self, transition: Transition) -> None:
        """Take in one step of all environments.

        Where an episode begins although the one before had not ended, and after slices, `reset`
        and `cut`, that one is cut: its last transitions look ahead no further, and bootstrap from
        its true next observation.

        Raises:
            ConfigError: when nothing was allocated.
            DataError: when a column is missing, or has another shape or dtype than was allocated.
        """
        if self._spec is None:
            raise not_allocated()
        self._ring.writer.insert(transition)

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
        self._allocated()
        if not num_minibatches or not minibatch_size or num_minibatches < 1 or minibatch_size < 1:
            raise no_batches(num_minibatches, minibatch_size)
        size = -(-minibatch_size // self._ring.learned)
        yield from self._sampler.draw(num_minibatches, size)

    def gather(self, indices: Tensor) -> Iterator[ReplayBatch]:
        """Make one batch per row of the block."""
        device = self._allocated().device
        for batch in self._gather(indices, self._sampler.weights(indices)):
            yield moved(batch, device)

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
        slots = torch.from_numpy(self._ring.new_transitions())
        columns = self._ring.observations.read(slots)
        observation = join_observation({name: part.to(device) for name, part in columns.items()})
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

    def cut(self) -> None:
        """Cut the newest transitions off from what is inserted next."""
        self._allocated()
        self._ring.writer.continuity.cut()

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

        Unless it goes on where another slice of the same storage ended that was inserted before
        it, the newest transitions here are cut. Observations are not compared.

        Raises:
            DataError: when columns are missing, of other shape or dtype, or of unequal length.
        """
        self._allocated()
        num_rows = checked_num_rows(self._ring, data)
        self._ring.writer.append(data, num_rows)

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

    def _make_ring(
        self, spec: StorageSpec, goals: tuple[str, ...], tiles: SequenceTiles | None
    ) -> ReplayRing:
        """Reserve memory for rows, after seeing that there is enough."""
        num_envs, frame_stack = spec.num_envs, self.frame_stack
        observation = observation_columns(spec.observation)
        stacked = {}
        if frame_stack is not None:
            whole = [f"{OBSERVATION_COLUMN}/{name}" for name in self.unstacked]
            check_known(whole, observation)
            stacked = stacked_columns(observation, frame_stack, (*goals, *whole))
        num_rows = rows_per_env(self.size, num_envs, self.n_step, self.sequences, frame_stack)
        device = checked_device(self.data_device, spec.device)
        directory = checked_directory(self.mmap_dir, device)
        specs = replay_columns(spec, stacked=stacked, with_state=self.gives_sequences)
        num_slots = num_rows * num_envs
        beside = -(-self._bytes_to_draw(num_slots) // num_slots)
        needs = row_needs(specs, beside, device, directory)
        check_fits(needs, size=self.size, num_rows=num_rows, num_envs=num_envs)
        columns = Columns(specs, num_rows, num_envs, device, directory, stacked)
        stacks = None
        if frame_stack is not None:
            stacks = FrameStacks(columns, tuple(stacked), frame_stack, num_envs)
        return ReplayRing(
            columns, num_rows, num_envs, tuple(observation), stacks=stacks, tiles=tiles
        )

    def _bytes_to_draw(self, num_slots: int) -> int:
        return bytes_to_draw(num_slots, self.prioritized, self.recent, self.hindsight)

    def _allocated(self) -> StorageSpec:
        if self._spec is None:
            raise not_allocated()
        return self._spec
