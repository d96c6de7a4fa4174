"""What an algorithm says of itself."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Generic, TypeVar

from torch import Tensor, nn

from rl_core.algorithm.defaults import DefaultRecipe, EnvSpec
from rl_core.algorithm.schedule import UpdateSchedule
from rl_core.batch import Rollout
from rl_core.errors import ConfigError
from rl_core.gradients import LossOutput, Noise, ParameterGroup, TargetNetwork
from rl_core.storage import Storage
from rl_core.types import StateDict

BatchT = TypeVar("BatchT")


class Definition(ABC, Generic[BatchT]):
    """What a subclass of `Algorithm` says of itself; its abstract members have no default."""

    @property
    @abstractmethod
    def schedule(self) -> UpdateSchedule:
        """How collection and gradient steps take turns."""

    @abstractmethod
    def loss(self, batch: BatchT, noise: Noise) -> LossOutput:
        """Compute the loss: tensors in, tensors out, no branch on a tensor's value.

        Tensors of the algorithm's own that it reads, such as buffers, are changed in place and
        never replaced: compiled code keeps the ones that it saw first, as it keeps numbers.

        Args:
            batch: the data.
            noise: what `draw_update_noise` drew for this step.
        """

    @classmethod
    @abstractmethod
    def default_recipe(cls, env: EnvSpec) -> DefaultRecipe:
        """Say by name which actor and storage the algorithm wants for an environment."""

    def prepare(self, rollout: Rollout) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
        """Estimate advantages and targets of a rollout with the behaviour's weights.

        Args:
            rollout: `(T, B, ...)`.

        Returns:
            Columns to attach, each `(T, B, ...)`, at least those of a `RolloutBatch`; and 0-dim
            metrics by path.
        """
        raise ConfigError(f"{type(self).__name__} does not learn from rollouts")

    def make_modules(self) -> Mapping[str, nn.Module]:
        """Make what else the loss uses, such as target networks, by name; nothing by default.

        It is called once, with actor, config, schedules and ``hyper`` at hand.
        """
        return {}

    def parameter_groups(self) -> tuple[ParameterGroup, ...]:
        """Say which parameters are learned, and how; the default is Adam over everything."""
        return (ParameterGroup(name="actor", modules=("actor", "add_ons")),)

    def target_networks(self) -> tuple[TargetNetwork, ...]:
        """Say which modules follow which groups; none by default."""
        return ()

    def constant_modules(self) -> tuple[str, ...]:
        """Name modules, such as ``actor.critics``, that the loss leaves alone; none by default."""
        return ()

    def draw_update_noise(self, batch: BatchT) -> Noise:
        """Draw the random numbers of one gradient step from ``self.generator``; none by default."""
        return {}

    @property
    def collects(self) -> bool:
        """Whether it learns from what acting brings.

        If not, environments are only evaluated in, and a run's steps are gradient steps:
        ``schedule.update_every`` of them in each update.
        """
        return True

    def check_storage(self, storage: Storage[BatchT]) -> None:
        """Refuse a storage that cannot be learned from as configured; asked when a run is set up.

        That it gives batches of the right type, and sequences where the actor has a memory, is
        known already.

        Args:
            storage: not allocated yet.

        Raises:
            ConfigError: when options of the two contradict each other.
        """
        return

    def before_epochs(self, storage: Storage[BatchT]) -> Mapping[str, Tensor]:
        """Do what an update does once, before its gradient steps; nothing by default.

        Args:
            storage: prepared already; `whole_batch` takes all of it.

        Returns:
            0-dim metrics by path.
        """
        return {}

    def after_epochs(self, storage: Storage[BatchT]) -> Mapping[str, Tensor]:
        """Do what an update does once, after its gradient steps; nothing by default.

        Args:
            storage: which still holds what the steps learned from.

        Returns:
            0-dim metrics by path.
        """
        return {}

    def more_state(self) -> StateDict:
        """Return what a subclass keeps beyond modules and hyper-parameters; nothing by default."""
        return {}

    def load_more_state(self, state: StateDict) -> None:
        """Take over what `more_state` returned."""
