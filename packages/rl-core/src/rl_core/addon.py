"""Extra terms in the policy loss of any algorithm that has one."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from rl_core.actor import Actor
from rl_core.batch import ReplayBatch, RolloutBatch
from rl_core.nn.distributions import Distribution


class PolicyLossAddOn(nn.Module, ABC):
    """A term added to the policy loss.

    As a module it may own parameters; they are learned with the group that names ``add_ons``
    and saved in its checkpoints.
    """

    def setup(self, actor: Actor, device: torch.device) -> None:
        """Get ready, once, before training; the default does nothing.

        Args:
            actor: the one being trained.
            device: where batches will be.
        """

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
