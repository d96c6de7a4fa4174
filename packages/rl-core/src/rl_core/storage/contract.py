"""The storage contract: where transitions go, and where batches come from.

`Storage` is what every storage must be. What only some storages do has a class of its own in
`rl_core.storage.optional`, and `IndexSampler` chooses what a replay storage draws.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rl_core.batch import ReplayBatch, Transition
from rl_core.errors import ConfigError, nearest
from rl_core.stateful import StateFields, StateReader
from rl_core.storage.spec import StorageSpec
from rl_core.types import Json, Observation, StateDict

BatchT = TypeVar("BatchT", covariant=True)


class Storage(StateFields, ABC, Generic[BatchT]):
    """Keeps transitions and makes batches of them; it holds data, not estimators.

    A subclass writes `insert_transition`, `sample_indices`, `gather`, `reset` and `__len__`, makes
    room in `allocate`, and lists in ``state_fields`` which attributes a checkpoint holds. All else
    has a default.

    Attributes:
        batch_type: the batch dataclass that `generate_batches` yields.
        spec: what `allocate` was given last; None before.
        generator: draws every random index; on the CPU.
        rollout_steps: rows of a complete rollout, T: steps of each environment; None for replay.
        n_step: rewards in a replayed transition, at most.
        gives_sequences: replayed batches are sequences, for recurrent actors.
        steps_per_sample: steps of an environment in each sample, burn-in included. A rollout
            storage knows it once it is allocated.
        needs_td_errors: `after_gradients` needs ``td_error``, to draw by.
    """

    batch_type: ClassVar[type]
    spec: StorageSpec | None = None
    generator: torch.Generator
    rollout_steps: int | None = None
    n_step: int = 1
    gives_sequences: bool = False
    steps_per_sample: int = 1
    needs_td_errors: bool = False

    def allocate(self, spec: StorageSpec, generator: torch.Generator) -> None:
        """Make room for the data of one run.

        A subclass reserves its memory, then calls this.

        Args:
            spec: what will be inserted.
            generator: draws every random index; lives on the CPU.

        Raises:
            ConfigError: when the storage's options contradict the spec.
        """
        self.spec, self.generator = spec, generator

    @abstractmethod
    def insert_transition(self, transition: Transition) -> None:
        """Insert one step of all environments.

        It continues the step inserted before it in all environments where no episode begins, also
        in a storage that was restored from a checkpoint. After a slice, `reset` or
        `mark_boundary` it does not: no window, sequence or bootstrap may lead across.
        """

    @abstractmethod
    def sample_indices(
        self, num_minibatches: int | None, minibatch_size: int | None
    ) -> Iterator[Tensor]:
        """Choose the minibatches of one epoch.

        Args:
            num_minibatches: how many; None where a rollout is cut by ``minibatch_size``.
            minibatch_size: samples in each; None where a rollout is cut by ``num_minibatches``.

        Yields:
            Blocks of shape `(K, N)`: K minibatches of N indices each. Negative entries pad shorter
            minibatches and must get mask 0. A storage whose sampling depends on what the
            previous minibatch taught yields blocks of one.
        """

    @abstractmethod
    def gather(self, indices: Tensor) -> Iterator[BatchT]:
        """Turn a block of indices `(K, N)` into K batches."""

    @abstractmethod
    def reset(self) -> None:
        """Forget the data, keep the memory."""

    @abstractmethod
    def __len__(self) -> int:
        """Return how many steps are stored of the environment that has most."""

    def load_state_dict(self, state: StateDict) -> None:
        """Take over a state returned by `state_dict`; the storage must be allocated.

        A resumed run continues from the newest step; any other caller calls `mark_boundary` next.

        Raises:
            CheckpointError: when it does not fit this storage.
        """
        self.check_allocated()
        super().load_state_dict(state)

    def __getstate__(self) -> dict[str, object]:
        """Return what a copy or a pickle takes over.

        Raises:
            ConfigError: when it is allocated: its parts look at the same memory in several ways,
                and in a copy they would look at different memory.
        """
        if self.spec is not None:
            raise ConfigError(
                f"a {type(self).__name__} that is allocated can be neither copied nor pickled; "
                "save it, or the agent that it belongs to, and load that into a new one"
            )
        return self.__dict__

    def check_allocated(self) -> StorageSpec:
        """Return what `allocate` was given last.

        Raises:
            ConfigError: when nothing was allocated.
        """
        if self.spec is None:
            raise ConfigError(
                f"the {type(self).__name__} is not allocated yet; a Trainer does it, and in a loop "
                "of your own allocate(StorageSpec(...), generator)"
            )
        return self.spec

    @property
    def num_envs(self) -> int:
        """Number of environments that step together; 0 before `allocate`."""
        return 0 if self.spec is None else self.spec.num_envs

    def generate_batches(
        self, num_minibatches: int | None, minibatch_size: int | None, num_epochs: int = 1
    ) -> Iterator[BatchT]:
        """Yield the batches of one update.

        Args:
            num_minibatches: minibatches per epoch.
            minibatch_size: samples per minibatch; rollouts take just one of the two.
            num_epochs: passes over the data; replay storages draw anew each time.
        """
        for _ in range(num_epochs):
            for block in self.sample_indices(num_minibatches, minibatch_size):
                yield from self.gather(block)

    def check_batches(
        self, num_minibatches: int | None, minibatch_size: int | None, min_samples: int = 1
    ) -> None:
        """Refuse batches that can never be made; called when a run is set up.

        Args:
            num_minibatches: see `generate_batches`.
            minibatch_size: likewise.
            min_samples: how many the smallest minibatch of a rollout must have.

        Raises:
            ConfigError: when the sizes contradict each other or what the storage will hold.
        """

    def mark_boundary(self) -> None:
        """Mark an episode boundary: what is inserted next does not continue what is stored.

        Nothing by default; a storage that looks ahead or back keeps `EpisodeBoundaries`.
        """

    def new_observations(self) -> tuple[Observation, Tensor]:
        """Return what was inserted since the last call, for running statistics.

        Only replay storages are asked; a rollout is new as a whole.

        Returns:
            Observations `(*batch, ...)`, and which of them count, `(*batch)`, bool.

        Raises:
            ConfigError: when this storage does not tell.
        """
        raise ConfigError(
            f"{type(self).__name__} does not tell what is new in it; give the actor no running "
            "statistics (normalize_observations=False)"
        )

    def set_progress(self, progress: float) -> None:
        """Move schedules to a fraction of the run, in [0, 1]; nothing by default."""

    def note_returns(self, returns: Sequence[float]) -> None:
        """Note the returns of training episodes that ended, oldest first; nothing by default.

        Args:
            returns: in the environment's own rewards.
        """

    def before_gradients(self) -> None:
        """Do what is needed once before the batches of an update are drawn."""

    def after_gradients(self, batch: object, info: Mapping[str, Tensor]) -> None:
        """Note what a gradient step returned; prioritized replay sets new priorities here.

        A replay storage hands it on to its sampler; see `IndexSampler.after_gradients`.

        Args:
            batch: what `generate_batches` yielded.
            info: what the gradient step returned for it.
        """

    def after_update(self) -> None:
        """Do what is needed once after an update; on-policy storages forget their data."""

    @classmethod
    def options_to_read(cls, options: Mapping[str, Json]) -> Mapping[str, Json]:
        """Return the options of a storage that only reads what a storage with ``options`` saved.

        Its environment, its devices and its directories may not exist, so an option that needs
        them is left out; by default none is.
        """
        return options

    def live_parameters(self) -> Mapping[str, float]:
        """Return the parameters that may change while running; none by default."""
        return {}

    def set_live_parameter(self, name: str, value: float) -> None:
        """Set one of `live_parameters`; the name is known to be right."""
        raise ConfigError(f"{type(self).__name__} has no live parameter '{name}'")

    def update_storage_parameter(self, parameter_name: str, new_parameter_value: float) -> None:
        """Change a parameter while running.

        Raises:
            ConfigError: when the storage has no such parameter that may change.
        """
        known = self.live_parameters()
        if parameter_name not in known:
            hint = nearest(parameter_name, known)
            raise ConfigError(
                f"{type(self).__name__} has no live parameter '{parameter_name}'{hint}"
            )
        self.set_live_parameter(parameter_name, new_parameter_value)

    def metrics(self) -> Mapping[str, float]:
        """Return what is worth logging, by name; the live parameters by default."""
        return self.live_parameters()


AnyStorage: TypeAlias = Storage[Any]
"""A storage of whatever batches; collector and trainer treat all alike."""


Slots: TypeAlias = npt.NDArray[np.int64]
"""Numbers of rows."""


class ReplayRows(Protocol):
    """What a sampler sees of a replay buffer.

    The buffer has ``num_slots`` rows, the *slots*, numbered from 0; environment ``slot % num_envs``
    wrote them. A slot may be drawn when it holds a transition, or the first transition of a
    sequence; its row is overwritten when it is the oldest of its environment.

    Attributes:
        num_slots: rows of all environments.
        num_envs: how many environments.
        learned: transitions learned from in what is drawn, at most: 1, or those of a sequence.
        reward: of every slot, float32, environment units; kept up to date by the buffer.
    """

    num_slots: int
    num_envs: int
    learned: int
    reward: npt.NDArray[np.float32]

    def cursor(self) -> Any:
        """Return a mark of what has been inserted so far."""
        ...

    def changes_since(self, cursor: Any) -> tuple[Slots, Slots]:
        """Return the slots that can no longer be drawn since a mark, and those that are new.

        By time within each environment; grown sequences are new, and overwritten slots may be both.
        """
        ...

    def drawable(self) -> Slots:
        """Return all slots that may be drawn, in ascending order."""
        ...

    def ends_episode(self, slots: Slots) -> npt.NDArray[np.bool_]:
        """Return whether what may be drawn ends an episode, which was not left by a reset."""
        ...


class IndexSampler(ABC):
    """Chooses slots of a replay buffer; any sampler goes with n-step, hindsight and sequences.

    A subclass writes `draw`. It is registered in the entry-point group ``rl_core.samplers`` and
    given to a buffer as ``storage.sampler``, by its name and the arguments of its constructor.

    Attributes:
        rows: what it draws from; set by `attach`.
        generator: draws every random number; on the CPU.
        needs_td_errors: whether `after_gradients` wants ``info["td_error"]``.
    """

    needs_td_errors: ClassVar[bool] = False
    rows: ReplayRows
    generator: torch.Generator

    def attach(self, rows: ReplayRows, generator: torch.Generator) -> None:
        """Begin to draw from rows, which are empty."""
        self.rows = rows
        self.generator = generator
        self._cursor: Any = rows.cursor()

    @abstractmethod
    def draw(self, num_batches: int, size: int) -> Iterator[Tensor]:
        """Yield blocks `(K, N)` of slots that may be drawn, in all ``num_batches`` batches of N.

        A sampler whose draws depend on what the previous batch taught yields blocks of one.

        Raises:
            ConfigError: when nothing may be drawn; see `empty_storage_error`.
        """

    def changes(self) -> tuple[Slots, Slots]:
        """Return the slots that can no longer be drawn since the last call, and the new ones."""
        gone, new = self.rows.changes_since(self._cursor)
        self._cursor = self.rows.cursor()
        return gone, new

    def weights(self, slots: Tensor) -> Tensor:
        """Return the importance weights of K batches of slots, `(K, N)`, float32; 1 by default."""
        return torch.from_numpy(np.ones(slots.shape, np.float32))  # faster than torch.ones

    def after_gradients(self, batch: ReplayBatch, info: Mapping[str, Tensor]) -> None:
        """Take in what a gradient step returned; nothing by default."""
        return

    def note_returns(self, returns: Sequence[float]) -> None:
        """Take in the returns of training episodes that ended; nothing by default."""
        return

    def reset(self) -> None:
        """Forget what belongs to rows: the buffer is empty, or about to be filled anew."""
        self._cursor = self.rows.cursor()

    def set_progress(self, progress: float) -> None:
        """Move schedules to a fraction of the run; nothing by default."""
        return

    def live_parameters(self) -> Mapping[str, float]:
        """Return the parameters that may change while running; none by default."""
        return {}

    def set_live_parameter(self, name: str, value: float) -> None:
        """Set one of `live_parameters`."""
        raise ConfigError(f"{type(self).__name__} has no live parameter '{name}'")

    def metrics(self) -> Mapping[str, float]:
        """Return what is worth logging; the live parameters by default."""
        return self.live_parameters()

    def state_dict(self) -> StateDict:
        """Return what it knows beyond the rows; nothing by default."""
        return {}

    def load_state_dict(self, state: StateDict) -> None:
        """Take over a state returned by `state_dict`, after the rows took over theirs.

        By default all rows are new again: `changes` returns them at its next call.

        Raises:
            CheckpointError: when it is of another kind of sampler.
        """
        StateReader(state, "storage/sampler").expect(())
        self.reset()
        self._cursor = None


def empty_storage_error() -> ConfigError:
    """Return the error of a buffer that holds no transition."""
    return ConfigError(
        "the replay buffer holds no transition yet; collect some before drawing from it "
        "(algorithm.update_after)"
    )
