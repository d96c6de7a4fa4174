"""The storage contract: where transitions go, and where batches come from."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

import torch
from torch import Tensor

from rl_core.batch import Rollout, Trajectory, Transition
from rl_core.env import GoalFunctions
from rl_core.errors import ConfigError, DataError, nearest
from rl_core.types import Json, Observation, StateDict

DataSlice = Mapping[str, Tensor]
"""Consecutive rows of a storage by column name; what workers exchange. Most are `(L, B, ...)`."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape and dtype of one entry of a column.

    Attributes:
        shape: without time and environment axes.
        dtype: of the tensor.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class StorageSpec:
    """All that a storage must know to allocate itself.

    Attributes:
        observation: one spec, or one per key of a dict observation.
        action: of the actor-space action.
        num_envs: how many environments step together.
        state_sizes: size of each recurrent state by name; empty when feed-forward.
        extras: what the algorithm's acting step adds, by name.
        device: where batches must be.
        goal_functions: ask the environments how goals are rewarded; they answer None where they
            have no goals. None where nobody can be asked.
        scales_rewards: rewards are not the environment's own, but scaled.
    """

    observation: TensorSpec | Mapping[str, TensorSpec]
    action: TensorSpec
    num_envs: int
    state_sizes: Mapping[str, int]
    extras: Mapping[str, TensorSpec]
    device: torch.device
    goal_functions: Callable[[], GoalFunctions | None] | None = None
    scales_rewards: bool = False


OBSERVATION_COLUMN = "observation"
"""The column of a plain observation, and the prefix ``observation/`` of a dict's."""


def observation_columns(
    observation: TensorSpec | Mapping[str, TensorSpec], prefix: str = OBSERVATION_COLUMN
) -> dict[str, TensorSpec]:
    """Name the columns an observation is stored in."""
    if isinstance(observation, TensorSpec):
        return {prefix: observation}
    return {f"{prefix}/{key}": spec for key, spec in observation.items()}


def check_slice(
    data: DataSlice, expected: Mapping[str, tuple[tuple[int, ...], torch.dtype]]
) -> None:
    """Compare the columns of a slice with what a storage expects.

    Args:
        data: what another storage's ``get_data_slice`` returned.
        expected: shape, leading axes included, and dtype of each column.

    Raises:
        DataError: when a column is missing, or has another shape or dtype.
    """
    for name, (shape, dtype) in expected.items():
        given = data.get(name)
        if given is None:
            raise DataError(f"data slice lacks column '{name}'")
        if given.dtype != dtype or given.shape != shape:
            raise DataError(
                f"data slice column '{name}': expected {dtype} of shape {shape}, got "
                f"{given.dtype} of {tuple(given.shape)}"
            )


def join_observation(
    columns: Mapping[str, Tensor], prefix: str = OBSERVATION_COLUMN
) -> Observation:
    """Rebuild an observation from its columns."""
    if prefix in columns:
        return columns[prefix]
    start = prefix + "/"
    return {
        name.removeprefix(start): column
        for name, column in columns.items()
        if name.startswith(start)
    }


BatchT = TypeVar("BatchT", covariant=True)


class Storage(ABC, Generic[BatchT]):
    """Keeps transitions and makes batches of them; it holds data, not estimators.

    A subclass says how to allocate, insert, choose indices, gather and reset. What is concrete
    here is the same for every storage.

    Attributes:
        batch_type: the batch dataclass that `generate_batches` yields.
        n_step: rewards in a replayed transition, at most.
    """

    batch_type: ClassVar[type]
    n_step: int = 1

    @property
    @abstractmethod
    def spec(self) -> StorageSpec | None:
        """What `allocate` was given last; None before."""

    @abstractmethod
    def allocate(self, spec: StorageSpec, generator: torch.Generator) -> None:
        """Make room for the data of one run.

        Args:
            spec: what will be inserted.
            generator: draws every random index; lives on the CPU.

        Raises:
            ConfigError: when the storage's options contradict the spec.
        """

    @abstractmethod
    def insert_transition(self, transition: Transition) -> None:
        """Take in one step of all environments.

        It goes on from the step that was inserted before it, in environments where no episode
        begins, and in a storage that was restored from the newest step it was saved with. It does
        not after a slice, a `reset` or a `cut`: no window, sequence or bootstrap may lead across.
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
            Blocks of shape `(K, N)`: K minibatches of N indices each. Negative entries pad the
            last minibatch and must get mask 0. A storage whose sampling depends on what the
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
        """Return how many steps of all environments are stored."""

    @abstractmethod
    def get_data_slice(self, start: int, end: int) -> DataSlice:
        """Copy the steps from ``start`` up to ``end`` of every column.

        The column `ORIGIN`, or those below it, say which storage this is, and which of its steps
        these are. Steps go on being counted when the storage is emptied.
        """

    @abstractmethod
    def insert_data_slice(self, data: DataSlice) -> None:
        """Append rows that `get_data_slice` of a like storage returned.

        They go on from the newest ones here only where these are of a slice of the same storage,
        which ended where this one begins. Anything else is cut, whatever the observations are.

        Raises:
            DataError: when columns are missing, of other shape or dtype, or of unequal length.
        """

    @abstractmethod
    def state_dict(self) -> StateDict:
        """Return the data, the cursors and the generator's state."""

    @abstractmethod
    def load_state_dict(self, state: StateDict) -> None:
        """Take over a state returned by `state_dict`.

        A run that is resumed goes on from the newest step; whoever does not, says so by `cut`.
        """

    @property
    def is_allocated(self) -> bool:
        """Whether `allocate` was called."""
        return self.spec is not None

    @property
    def num_envs(self) -> int:
        """Environments that step together, as `allocate` was told; 0 before."""
        return 0 if self.spec is None else self.spec.num_envs

    @classmethod
    def options_to_read(cls, options: Mapping[str, Json]) -> Mapping[str, Json]:
        """Return the options of a storage that only reads what one with others saved.

        Its environment, its devices and its directories may not be there, so an option that asks
        for them is left out; by default none is.

        Args:
            options: as in a recipe.
        """
        return options

    @property
    def rollout_steps(self) -> int | None:
        """Steps of all environments after which a rollout is complete; None for replay."""
        return None

    @property
    def gives_sequences(self) -> bool:
        """Whether replayed batches are sequences, for actors with a memory; False by default."""
        return False

    @property
    def steps_per_sample(self) -> int:
        """Steps of an environment in each sample of a batch, burn-in included; 1 by default.

        Sequences have more, and the graph of a recurrent network grows with them. A rollout storage
        knows it once it is allocated.
        """
        return 1

    @property
    def needs_td_errors(self) -> bool:
        """Whether `after_gradients` wants ``td_error``, to draw by; False by default."""
        return False

    def rollout(self) -> Rollout:
        """Return the stored data as one rollout, for an on-policy algorithm to prepare.

        Raises:
            ConfigError: when this storage does not keep rollouts.
        """
        raise ConfigError(f"{type(self).__name__} does not keep rollouts")

    def trajectories(self) -> Iterator[Trajectory]:
        """Yield what is stored, one environment after the other, as others may take it over.

        Raises:
            ConfigError: when this storage does not keep what happened.
        """
        raise ConfigError(f"{type(self).__name__} gives no trajectories; replay storages do")

    @property
    def num_transitions(self) -> int:
        """How many transitions are stored, of all environments together.

        Raises:
            ConfigError: when this storage does not keep what happened.
        """
        return sum(map(len, self.trajectories()))

    def attach(self, columns: Mapping[str, Tensor]) -> None:
        """Add the columns an algorithm prepared, each `(T, B, ...)`, to the batches to come.

        Raises:
            ConfigError: when this storage does not keep rollouts.
        """
        raise ConfigError(f"{type(self).__name__} takes no prepared columns: {sorted(columns)}")

    def set_progress(self, progress: float) -> None:
        """Move what is scheduled to a point of the run; nothing by default.

        Args:
            progress: fraction of the run that is over, in [0, 1].
        """

    def note_returns(self, returns: Sequence[float]) -> None:
        """Take in how training goes; nothing by default.

        Args:
            returns: of the training episodes that ended since the last call, oldest first, in the
                environment's own rewards.
        """

    def new_observations(self) -> tuple[Observation, Tensor]:
        """Return what was inserted since the last call, for running statistics.

        Only storages that replay are asked; a rollout is new as a whole.

        Returns:
            Observations `(*batch, ...)`, and which of them count, `(*batch)`, bool.

        Raises:
            ConfigError: when this storage does not tell; it goes with actors that keep no running
                statistics.
        """
        raise ConfigError(
            f"{type(self).__name__} does not tell what is new in it; give the actor no running "
            "statistics (normalize_observations=False)"
        )

    def cut(self) -> None:
        """Note that what is inserted next does not go on from what is stored.

        Nothing by default; a storage that looks ahead or back keeps a `Continuity` that notes it.
        """

    def before_gradients(self) -> None:
        """Do what is needed once before the batches of an update are drawn."""

    def after_gradients(self, batch: object, info: Mapping[str, Tensor]) -> None:
        """Learn from a gradient step, such as new priorities.

        Args:
            batch: what `generate_batches` yielded.
            info: what the gradient step answered for it.
        """

    def check_batches(
        self,
        num_minibatches: int | None,
        minibatch_size: int | None,
        min_samples: int = 1,
    ) -> None:
        """Refuse batches that can never be made; asked when a run is set up.

        Args:
            num_minibatches: see `generate_batches`.
            minibatch_size: likewise.
            min_samples: how many the smallest minibatch of a rollout must have.

        Raises:
            ConfigError: when the sizes contradict each other or what the storage will hold.
        """
        return

    def after_update(self) -> None:
        """Do what is needed once after an update; on-policy storages forget their data."""

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

    def get_all_buffer_data(self) -> DataSlice:
        """Copy all rows of every column."""
        return self.get_data_slice(0, len(self))

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

    def live_parameters(self) -> Mapping[str, float]:
        """Return the parameters that may change while running; none by default."""
        return {}

    def metrics(self) -> Mapping[str, float]:
        """Return what is worth logging, by name; the live parameters by default."""
        return self.live_parameters()

    def set_live_parameter(self, name: str, value: float) -> None:
        """Set one of `live_parameters`; the name is known to be right."""
        raise ConfigError(f"{type(self).__name__} has no live parameter '{name}'")


AnyStorage: TypeAlias = Storage[Any]
"""A storage of whatever batches; collector and trainer treat all alike."""
