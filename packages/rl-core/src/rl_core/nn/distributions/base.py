"""The interface of distributions over actions."""

from abc import ABC, abstractmethod
from typing import ClassVar, Self

from torch import Tensor

from rl_core.errors import DataError
from rl_core.nn.distributions.noise import NoiseKind


class Distribution(ABC):
    """A distribution over actions, with batch axes `(*batch)` and one event per batch entry.

    Attributes:
        noise_kind: the noise that `sample` takes.
    """

    __slots__ = ()
    noise_kind: ClassVar[NoiseKind]

    @abstractmethod
    def sample(self, noise: Tensor) -> Tensor:
        """Turn noise into actions.

        Args:
            noise: shape of the parameters, `(*batch, n)`, from `draw_noise`.

        Returns:
            Shape `(*batch, *event)`; differentiable in the parameters where actions are real.
        """

    @abstractmethod
    def sample_with_log_prob(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Turn noise into actions, and compute their log-probabilities.

        Args:
            noise: shape of the parameters, `(*batch, n)`, from `draw_noise`.

        Returns:
            Actions `(*batch, *event)` and their log-probability or log-density `(*batch,)`.
        """

    @abstractmethod
    def mode(self) -> Tensor:
        """Return the action of a deterministic policy, shape `(*batch, *event)`."""

    @abstractmethod
    def log_prob(self, action: Tensor) -> Tensor:
        """Return the log-probability or log-density, shape `(*batch,)`.

        Args:
            action: shape `(*batch, *event)`.
        """

    @abstractmethod
    def entropy(self) -> Tensor:
        """Return the entropy in nats, shape `(*batch,)`."""

    @abstractmethod
    def kl_divergence(self, other: Self) -> Tensor:
        """Return KL(self || other) in nats, shape `(*batch,)`.

        Args:
            other: of the same class.

        Raises:
            DataError: if it is of another class.
        """

    def _check_same_class(self, other: "Distribution") -> None:
        if type(self) is not type(other):
            raise DataError(
                f"KL divergence of {type(self).__name__} and {type(other).__name__}; expected two "
                "of the same class"
            )
