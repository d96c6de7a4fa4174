"""The interface of action heads."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from rl_core.errors import ConfigError
from rl_core.nn.distributions import Distribution, NoiseKind


class ActionHead(nn.Module, ABC):
    """Turns features into a distribution over actions.

    The actor's action is what the distribution samples: log-probabilities refer to it, and storages
    keep it. The environment's action is derived from it.

    Attributes:
        noise_kind: the noise that the distribution turns into samples.
        noise_shape: event shape of that noise.
        action_shape: event shape of the actor's action.
        action_dtype: of the actor's action.
    """

    noise_kind: NoiseKind
    noise_shape: tuple[int, ...]
    action_shape: tuple[int, ...]
    action_dtype: torch.dtype

    @abstractmethod
    def forward(self, features: Tensor, mask: Tensor | None = None) -> Distribution:
        """Return the distribution.

        Args:
            features: shape `(*batch, F)`.
            mask: shape `(*batch, *noise_shape)`, bool, True where an action is allowed; only
                heads of categorical actions take one.

        Raises:
            ConfigError: if the head does not support masks and gets one.
        """

    @abstractmethod
    def to_env_action(self, action: Tensor) -> Tensor:
        """Map the actor's actions to the environment's.

        Args:
            action: shape `(*batch, *action_shape)`.

        Returns:
            Shape `(*batch, *space.shape)`, in the space's dtype and inside its bounds.
        """

    @abstractmethod
    def from_env_action(self, env_action: Tensor) -> Tensor:
        """Map the environment's actions, such as those of a data set, to the actor's.

        Args:
            env_action: shape `(*batch, *space.shape)`, inside the space.

        Returns:
            Shape `(*batch, *action_shape)`, in `action_dtype`, which `to_env_action` maps back.
        """

    def _refuse_mask(self, mask: Tensor | None) -> None:
        if mask is not None:
            raise ConfigError(
                f"{type(self).__name__} does not support action masks; they are for Discrete and "
                "MultiDiscrete action spaces: leave it out of the observation"
            )
