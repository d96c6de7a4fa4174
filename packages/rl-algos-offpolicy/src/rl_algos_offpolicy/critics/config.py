"""Which critics are made for discrete actions: what they learn, and whether they are noisy."""

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge

from rl_algos_offpolicy.critics.distributional import (
    CategoricalReturns,
    QuantileReturns,
    ReturnDistribution,
)
from rl_core.config import Config, Count, Needs, Positive
from rl_core.errors import ConfigError

ReturnKind = Literal["none", "categorical", "quantile"]
"""What critics learn of the return: its expectation, probabilities of given returns, quantiles."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CriticConfig(Config):
    """Options of critics that a greedy policy follows.

    Attributes:
        distribution: what the critics learn of the return: ``none`` its expectation,
            ``categorical`` the probabilities of given returns, ``quantile`` its quantiles.
        num_atoms: number of atoms (given returns) of ``categorical``; None takes 51.
        value_range: smallest and largest atom of ``categorical``, in scaled rewards; None takes -10
            and 10.
        num_quantiles: number of quantiles of ``quantile``; None takes 200.
        noisy: explore by noisy weights in all layers of the critics.
        noisy_sigma: initial size of the noise on the weights, σ₀; None takes 0.5.

    Raises:
        ConfigError: when a value is out of range, or an option belongs to what is not chosen.
    """

    distribution: ReturnKind = "none"
    num_atoms: Annotated[int | None, Ge(2), Needs("distribution", "categorical")] = None
    value_range: Annotated[tuple[float, float] | None, Needs("distribution", "categorical")] = None
    num_quantiles: Annotated[Count | None, Needs("distribution", "quantile")] = None
    noisy: bool = False
    noisy_sigma: Annotated[Positive | None, Needs("noisy", True)] = None

    def __post_init__(self) -> None:
        Config.__post_init__(self)
        if self.value_range is not None and self.value_range[0] >= self.value_range[1]:
            raise ConfigError(
                f"value_range must have the smaller number first, got {self.value_range}"
            )

    @property
    def returns(self) -> ReturnDistribution | None:
        """A new distribution of returns, or None where critics learn expected returns."""
        if self.distribution == "categorical":
            low, high = (-10.0, 10.0) if self.value_range is None else self.value_range
            return CategoricalReturns(51 if self.num_atoms is None else self.num_atoms, low, high)
        if self.distribution == "quantile":
            return QuantileReturns(200 if self.num_quantiles is None else self.num_quantiles)
        return None

    @property
    def sigma(self) -> float | None:
        """σ₀ of noisy layers, or None where they are plain."""
        if not self.noisy:
            return None
        return 0.5 if self.noisy_sigma is None else self.noisy_sigma
