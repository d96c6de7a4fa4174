"""What only some storages do; ``isinstance`` tells whether a storage does it.

A storage that subclasses one of these works wherever it is needed: `HasRollouts` with on-policy
algorithms, `HasTrajectories` with demonstrations, `HasSlices` where storages send each other data.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping

from torch import Tensor

from rl_core.batch import Rollout, RolloutBatch, Trajectory
from rl_core.storage.contract import BatchT, Storage
from rl_core.storage.spec import DataSlice


class HasRollouts(Storage[RolloutBatch]):
    """A storage of rollouts, which on-policy algorithms prepare before they learn from them."""

    batch_type = RolloutBatch
    rollout_steps: int

    @abstractmethod
    def rollout(self) -> Rollout:
        """Return the stored rows as one rollout.

        Raises:
            ConfigError: when the rollout is not complete.
        """

    @abstractmethod
    def attach(self, columns: Mapping[str, Tensor]) -> None:
        """Add the columns that an algorithm prepared, each `(T, B, ...)`, to the batches to come.

        Raises:
            DataError: when a column has another leading shape than the rollout.
        """


class HasTrajectories(Storage[BatchT]):
    """A storage that still knows what happened, such as one that replays transitions."""

    @abstractmethod
    def trajectories(self) -> Iterator[Trajectory]:
        """Yield what is stored as pieces of episodes, one environment after the other."""

    @property
    def num_transitions(self) -> int:
        """Number of stored transitions, of all environments together."""
        return sum(map(len, self.trajectories()))


class HasSlices(Storage[BatchT]):
    """A storage that can send its steps to another one of the same kind."""

    @abstractmethod
    def get_data_slice(self, start: int, end: int) -> DataSlice:
        """Copy the steps from ``start`` up to ``end`` of every column.

        The column `ORIGIN`, or those below it, tell which storage this is, and which of its steps
        these are. Steps continue to be counted when the storage is emptied.

        Raises:
            ConfigError: when the steps are not all stored.
        """

    @abstractmethod
    def insert_data_slice(self, data: DataSlice) -> None:
        """Append rows that `get_data_slice` of a similar storage returned.

        They continue the newest rows only if these are of a slice of the same storage which ended
        where this one begins. Otherwise an episode boundary lies between, whatever the
        observations are.

        Raises:
            DataError: when columns are missing, of other shape or dtype, or of unequal length.
        """

    def get_all_buffer_data(self) -> DataSlice:
        """Copy all rows of every column."""
        return self.get_data_slice(0, len(self))
