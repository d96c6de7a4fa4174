"""Chooses the action head that fits an action space."""

import gymnasium
from gymnasium import spaces

from rl_core.errors import SpaceError
from rl_core.nn.distributions.base import ActionHead
from rl_core.nn.distributions.bernoulli import BernoulliHead
from rl_core.nn.distributions.categorical import CategoricalHead, MultiCategoricalHead
from rl_core.nn.distributions.gaussian import GaussianHead, SquashedGaussianHead


def make_head(
    action_space: gymnasium.Space[object],
    in_features: int,
    *,
    squash: bool = False,
    state_dependent_std: bool = False,
    initial_log_std: float = 0.0,
    gain: float | None = 0.01,
) -> ActionHead:
    """Build the head that fits an action space.

    The three options for Gaussians apply to Box spaces only.

    Args:
        action_space: Discrete, MultiDiscrete, MultiBinary, or a Box of floating-point numbers.
        in_features: number of features.
        squash: squash and scale to the bounds instead of clipping; the standard deviation is
            then always an output of the network.
        state_dependent_std: the standard deviation is a network output instead of a parameter.
        initial_log_std: initial log standard deviation.
        gain: of the output layer's orthogonal weights; None leaves it as ``nn.Linear`` starts.

    Raises:
        SpaceError: if the space is none of these, or ``squash`` meets an infinite bound.
    """
    if isinstance(action_space, spaces.Discrete):
        return CategoricalHead(action_space, in_features, gain=gain)
    if isinstance(action_space, spaces.MultiDiscrete):
        return MultiCategoricalHead(action_space, in_features, gain=gain)
    if isinstance(action_space, spaces.MultiBinary):
        return BernoulliHead(action_space, in_features, gain=gain)
    if not isinstance(action_space, spaces.Box):
        raise SpaceError(
            f"action space {action_space} is not supported; expected Discrete, MultiDiscrete, "
            "MultiBinary or Box: wrap the environment so that its actions are one of these"
        )
    if squash:
        return SquashedGaussianHead(
            action_space, in_features, initial_log_std=initial_log_std, gain=gain
        )
    return GaussianHead(
        action_space,
        in_features,
        state_dependent_std=state_dependent_std,
        initial_log_std=initial_log_std,
        gain=gain,
    )
