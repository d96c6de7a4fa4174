"""Which critics are made for discrete actions: what they answer, and whether they are noisy."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from rl_algos_offpolicy.critics.distributional import (
    CategoricalReturns,
    QuantileReturns,
    ReturnDistribution,
)
from rl_core.config import check_choice, check_owners, check_ranges
from rl_core.errors import ConfigError

ReturnKind = Literal["none", "categorical", "quantile"]
"""What critics know of returns: what to expect, probabilities of given returns, or quantiles."""

_OWNERS = {
    "num_atoms": ("distribution", ("categorical",)),
    "value_range": ("distribution", ("categorical",)),
    "num_quantiles": ("distribution", ("quantile",)),
    "noisy_sigma": ("noisy", (True,)),
}
"""Which option with which value each other option belongs to."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CriticConfig:
    """Options of critics that a greedy policy follows.

    Attributes:
        distribution: the critics learn the distribution of returns.
        num_atoms: how many returns a categorical distribution tells apart; None takes 51.
        value_range: smallest and largest of them, in scaled rewards; None takes -10 and 10.
        num_quantiles: how many a quantile distribution has; None takes 200.
        noisy: all layers of the critics have noisy weights to explore by.
        noisy_sigma: how much noise there is at first, σ₀; None takes 0.5.

    Raises:
        ConfigError: when a value is out of range, or an option belongs to what is not chosen.
    """

    distribution: ReturnKind = "none"
    num_atoms: int | None = None
    value_range: tuple[float, float] | None = None
    num_quantiles: int | None = None
    noisy: bool = False
    noisy_sigma: float | None = None

    def __post_init__(self) -> None:
        check_choice(self, "distribution", get_args(ReturnKind))
        check_ranges(self, positive=("noisy_sigma",), counts=("num_quantiles",))
        check_owners(self, _OWNERS)
        if self.num_atoms is not None and self.num_atoms < 2:
            raise ConfigError(f"num_atoms must be at least 2, got {self.num_atoms}")
        if self.value_range is not None:
            _check_value_range(self.value_range)

    @property
    def returns(self) -> ReturnDistribution | None:
        """A new distribution of returns, or None where critics answer expected returns."""
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


def _check_value_range(value_range: tuple[float, float]) -> None:
    numbers = [n for n in value_range if isinstance(n, int | float) and math.isfinite(n)]
    if len(value_range) != 2 or len(numbers) != 2 or numbers[0] >= numbers[1]:
        raise ConfigError(
            f"value_range must be two finite numbers, the smaller first, got {value_range}"
        )
