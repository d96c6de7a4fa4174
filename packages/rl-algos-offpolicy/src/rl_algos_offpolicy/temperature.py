"""The temperature of soft policies: what their entropy is worth."""

import math

import torch
from torch import Tensor, nn

from rl_algos_offpolicy.actor import OffPolicyActor


class Temperature(nn.Module):
    """α, kept above zero by its logarithm where it is learned, and else exactly what it is given.

    Args:
        initial: where it starts.
        is_learned: whether it moves.

    Attributes:
        log: its logarithm, a parameter; there is none where it is fixed.
    """

    log: nn.Parameter
    fixed: Tensor

    def __init__(self, initial: float, is_learned: bool) -> None:
        super().__init__()
        self.is_learned = is_learned
        if is_learned:
            self.log = nn.Parameter(torch.tensor(math.log(initial)))
        else:
            self.register_buffer("fixed", torch.tensor(float(initial)))

    def forward(self) -> Tensor:
        """Return α, 0-dim, as a constant."""
        return self.log.detach().exp() if self.is_learned else self.fixed


def default_target_entropy(actor: OffPolicyActor) -> float:
    """Return minus the number of real actions, or 0.89 of the largest entropy of discrete ones."""
    if actor.is_discrete:
        return 0.89 * math.log(actor.num_actions)
    return -float(actor.action_spec.shape[0])
