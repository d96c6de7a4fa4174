"""What chooses actions, where that is a network."""

from torch import Tensor, nn

from rl_algos_offpolicy.recurrent import NetworkInputs, RecurrentInputs
from rl_core.nn.distributions import Distribution
from rl_core.nn.heads import ActionHead
from rl_core.nn.torso import Torso
from rl_core.types import Observation


class Policy(nn.Module):
    """A trunk and an action head.

    Args:
        trunk: features of the observation, with a recurrent core or without.
        head: distribution over actions.
    """

    state_name = "policy"

    def __init__(self, trunk: Torso, head: ActionHead) -> None:
        super().__init__()
        self.trunk = trunk
        self.head = head

    @property
    def is_recurrent(self) -> bool:
        """Whether there is a recurrent core."""
        return self.trunk.memory is not None

    def forward(self, inputs: NetworkInputs) -> Distribution:
        """Return the distribution over actions at inputs with any batch axes."""
        if isinstance(inputs, RecurrentInputs):
            assert self.trunk.memory is not None
            features, _ = self.trunk.memory.step(inputs.features, inputs.state)
        else:
            features, _ = self.trunk(inputs, None, None)
        distribution: Distribution = self.head(features)
        return distribution

    def step(
        self, observation: Observation, state: Tensor | None, episode_start: Tensor | None
    ) -> tuple[Distribution, Tensor | None]:
        """Return the distribution, and the state after each step; see `Torso`."""
        features, after = self.trunk(observation, state, episode_start)
        return self.head(features), after

    def encode(self, observation: Observation) -> Tensor:
        """Compute what goes into the recurrent core."""
        return self.trunk.encode(observation)

    def advance(
        self, features: Tensor, action: Tensor, state: Tensor, episode_start: Tensor | None
    ) -> Tensor:
        """Return the states after each row; the policy's core sees no actions."""
        assert self.trunk.memory is not None
        _, states = self.trunk.memory(features, state, episode_start)
        after: Tensor = states
        return after
