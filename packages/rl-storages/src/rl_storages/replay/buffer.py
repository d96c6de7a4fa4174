"""The replay storage of off-policy algorithms."""

from collections.abc import Mapping, Sequence
from typing import Annotated

import torch
from annotated_types import Interval

from rl_core.config import Count, Needs, checked_arguments
from rl_core.env import GoalFunctions
from rl_core.env.goals import GoalFunction
from rl_core.errors import ConfigError
from rl_core.storage import OBSERVATION_COLUMN, IndexSampler, StorageSpec, observation_columns
from rl_core.types import Json, StateDict
from rl_storages.config import HindsightConfig, PrioritizedConfig, RecentConfig, SequenceConfig
from rl_storages.gather.hindsight import Relabeler, checked_functions, goal_columns
from rl_storages.gather.sequences import SequenceGather
from rl_storages.gather.windows import WindowGather
from rl_storages.replay.columns import Columns, replay_columns
from rl_storages.replay.episodes import Episodes
from rl_storages.replay.flags import SequenceStarts
from rl_storages.replay.frames import FrameStacks, check_known, stacked_columns
from rl_storages.replay.memory import (
    check_fits,
    checked_device,
    checked_directory,
    row_needs,
    rows_per_env,
)
from rl_storages.replay.ring import ReplayRing
from rl_storages.replay.storage import Gather, ReplayStorage
from rl_storages.sampling.index_layout import LayoutByTime
from rl_storages.sampling.prioritized import PrioritizedSampler
from rl_storages.sampling.recent import RecentSampler, check_period
from rl_storages.sampling.uniform import UniformSampler


class ReplayBuffer(ReplayStorage):
    """Keep the newest transitions of all environments, and sample from them.

    Each observation is stored once, in its own dtype: the next observation of a row is the
    following row's. Each environment has ``ceil(size / num_envs) + 1`` rows: one per step, one per
    episode for its last observation, and one for the current observation. So with short episodes,
    somewhat fewer than ``size`` transitions are kept. Frame stacks and sequences take some further
    rows, so that ``size`` transitions can still be drawn with what came before them.

    Args:
        size: maximum number of transitions, over all environments.
        n_step: maximum number of rewards in a transition. There are fewer where the episode ended,
            where the stored data breaks off, and for the newest transitions.
        prioritized: sample by priority; None samples uniformly.
        recent: sample from the newest transitions only; None samples from all.
        hindsight: relabel goals in hindsight; None leaves them unchanged.
        her_function: rewards goals where the environment has no ``compute_reward``, or in its
            place: for achieved goals `(N, ...)`, desired goals and an empty info it returns rewards
            `(N,)`. `GoalFunctions` also say where episodes end.
        sequences: sample sequences of transitions, with the recurrent states stored beside them,
            for recurrent actors; None samples single transitions and stores no states.
        frame_stack: number of frames in each observation, or in each image of a dict, along its
            first axis. Only the newest is stored; None stores observations whole.
        unstacked: keys of a dict that are stored whole even where they look like stacks. Goals of
            hindsight always are.
        data_device: device of the stored data, such as ``"cpu"`` beside a GPU with too little
            memory; None stores data where batches go.
        mmap_dir: existing directory for files that hold the data when there is more of it than
            memory. The files have no names, and are gone when the process is, however it ends;
            checkpoints hold the data anyway.
        sampler: your own rule of which rows are drawn, in place of ``prioritized`` and ``recent``.

    Raises:
        ConfigError: when a number is out of range, or options contradict each other.
    """

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
        if recent is not None and recent.cmin >= size:
            raise ConfigError(
                f"storage.recent.cmin={recent.cmin} is not below storage.size={size}, so that "
                "every batch would be drawn from the whole buffer; set storage.recent.cmin to "
                f"less, such as {max(size // 10, 1)}, or storage.size to more, or leave "
                "storage.recent out"
            )
        if sequences is None and prioritized is not None and prioritized.eta is not None:
            raise ConfigError(
                f"storage.prioritized.eta={prioritized.eta} is about sequences, and there are "
                "none; set storage.sequences too, or leave eta out"
            )
        if sampler is not None and (prioritized is not None or recent is not None):
            raise ConfigError(
                "storage.sampler replaces prioritized and recent, which are samplers too; leave "
                "one out"
            )
        drawn_by = _make_sampler(prioritized, recent) if sampler is None else sampler
        super().__init__(size, drawn_by, n_step)
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
        self.gives_sequences = sequences is not None
        self.steps_per_sample = 1 if sequences is None else sequences.length
        self._relabeler: Relabeler | None = None

    @property
    def uses_objects(self) -> bool:
        """Whether it has a function of the user's own, which no recipe can name."""
        return self.her_function is not None

    @classmethod
    def options_to_read(cls, options: Mapping[str, Json]) -> Mapping[str, Json]:
        """Leave out where the data lies, and goals in hindsight, which the environment rewards.

        Goals are still stored as they were.
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
        self, num_minibatches: int | None, minibatch_size: int | None, min_samples: int = 1
    ) -> None:
        """Refuse windows that shrink over the batches of an update which has a single one."""
        if self.recent is not None:
            check_period(self.recent, num_minibatches or 1)

    @property
    def nbytes(self) -> int:
        """What the data takes when the buffer is full, with all that is kept to draw from it."""
        if self.spec is None:
            return 0
        return self.ring.columns.nbytes + self._bytes_to_draw(self.ring.num_slots)

    def make_ring(self, spec: StorageSpec) -> ReplayRing:
        """Reserve memory for rows, after seeing that there is enough.

        Raises:
            ConfigError: when the data will not fit, or ``size`` is too small for so many
                environments.
            DeviceError: when the data's device is not there.
        """
        num_envs, frame_stack = spec.num_envs, self.frame_stack
        observation = observation_columns(spec.observation)
        stacked = {}
        if frame_stack is not None:
            whole = [f"{OBSERVATION_COLUMN}/{name}" for name in self.unstacked]
            check_known(whole, observation)
            goals = () if self.hindsight is None else goal_columns(self.hindsight)
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
        sequence_starts = (
            None if self.sequences is None else SequenceStarts(self.sequences, num_envs)
        )
        return ReplayRing(
            columns,
            num_rows,
            num_envs,
            tuple(observation),
            stacks=stacks,
            sequence_starts=sequence_starts,
        )

    def make_gather(
        self, ring: ReplayRing, spec: StorageSpec, generator: torch.Generator
    ) -> Gather:
        """Gather windows or sequences, with goals relabeled in hindsight if that was asked for."""
        self._relabeler = None
        if self.hindsight is not None:
            functions = checked_functions(spec, self.hindsight, self.her_function)
            is_own = self.her_function is None
            self._relabeler = Relabeler(ring, generator, self.hindsight, functions, is_own)
        if ring.sequence_starts is None:
            return WindowGather(ring, self.n_step, self._relabeler)
        return SequenceGather(ring, self.n_step, ring.sequence_starts, self._relabeler)

    def reset(self) -> None:
        """Forget the data, keep the memory."""
        super().reset()
        if self._relabeler is not None:
            self._relabeler.begin_anew()

    def load_state_dict(self, state: StateDict) -> None:
        """Take over a state returned by `state_dict`; see `Storage.load_state_dict`."""
        super().load_state_dict(state)
        if self._relabeler is not None:
            self._relabeler.begin_anew()

    def _bytes_to_draw(self, num_slots: int) -> int:
        """Return what is kept in memory beside a ring's columns to draw from them."""
        sizes = (
            (self.prioritized, PrioritizedSampler.bytes_for),
            (self.recent, LayoutByTime.bytes_for),
            (self.hindsight, Episodes.bytes_for),
        )
        return sum(bytes_for(num_slots) for config, bytes_for in sizes if config is not None)


def _make_sampler(
    prioritized: PrioritizedConfig | None, recent: RecentConfig | None
) -> IndexSampler:
    if prioritized is not None:
        return PrioritizedSampler(prioritized, recent)
    return UniformSampler() if recent is None else RecentSampler(recent)
