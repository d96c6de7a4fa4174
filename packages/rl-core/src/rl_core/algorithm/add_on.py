"""Extra terms in the policy loss of any algorithm that has one."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn

from rl_core.actor import Actor
from rl_core.batch import ReplayBatch, Rollout, RolloutBatch
from rl_core.nn.distributions import Distribution
from rl_core.types import Observation, StateDict


@dataclass(frozen=True, slots=True)
class PreparedRollout:
    """What an add-on makes of a rollout before the algorithm estimates advantages.

    Attributes:
        rollout: what is learned from, such as one with other rewards.
        columns: what batches carry in their extras for the add-on, each `(T, B, ...)`.
        metrics: 0-dim, by path.
    """

    rollout: Rollout
    columns: Mapping[str, Tensor] = field(default_factory=dict)
    metrics: Mapping[str, Tensor] = field(default_factory=dict)


class PolicyLossAddOn(nn.Module, ABC):
    """A term added to the policy loss.

    As a module it may own parameters; they are learned with the group that names ``add_ons``
    and saved in its checkpoints. One that is registered as a plug-in can be named in recipes.

    Attributes:
        batch_types: the batches it can read; an algorithm that learns from others refuses it.
        is_taken: whether an algorithm has set it up; no other one takes it then.
    """

    batch_types: ClassVar[tuple[type, ...]] = (RolloutBatch, ReplayBatch)
    is_taken: bool = False

    def setup(self, actor: Actor, device: torch.device) -> None:
        """Get ready, once, before training; the default does nothing.

        Args:
            actor: the one being trained.
            device: where batches will be.
        """

    def prepare(self, rollout: Rollout, generator: torch.Generator) -> PreparedRollout:
        """Look at a fresh rollout, once, before it is learned from; the default leaves it as it is.

        Args:
            rollout: `(T, B, ...)`.
            generator: the algorithm's, for random numbers.
        """
        return PreparedRollout(rollout)

    @abstractmethod
    def compute_loss_term(
        self,
        batch: RolloutBatch | ReplayBatch,
        distribution: Distribution,
        info: Mapping[str, Tensor],
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return the term to add, and metrics.

        Args:
            batch: the minibatch.
            distribution: the current policy's, at the batch's observations.
            info: what the loss has computed so far, each 0-dim.

        Returns:
            A 0-dim term, and 0-dim metrics by path.
        """

    @property
    def warm_up_steps(self) -> int:
        """Environment transitions with random actions that it wants to see before training."""
        return 0

    def observe(self, observation: Observation) -> None:
        """Look at observations `(N, ...)` of the warm-up; the default does nothing."""

    @property
    def uses_objects(self) -> bool:
        """Whether it was given objects that no recipe can name."""
        return False

    @property
    def loaded_actors(self) -> Mapping[str, Actor]:
        """Actors that it read from other runs, by directory; none by default.

        The recipe records them, so that a run is loaded without those runs. The constructor of an
        add-on that has some takes a `load_actor` (an `ActorLoader`) to read them with.
        """
        return {}

    def more_state(self) -> StateDict:
        """Return what it keeps beyond parameters and buffers; nothing by default."""
        return {}

    def load_more_state(self, state: StateDict) -> None:
        """Take over what `more_state` returned."""
