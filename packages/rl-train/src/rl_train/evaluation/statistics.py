"""Statistics of few noisy scores: interquartile mean and stratified bootstrap interval.

Source: Agarwal et al. 2021, https://arxiv.org/abs/2108.13264.
"""

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from rl_core.errors import ConfigError, DataError
from rl_core.types import Array

FloatArray: TypeAlias = npt.NDArray[np.float64]
"""A NumPy array of dtype float64."""

Statistic: TypeAlias = Callable[[FloatArray], FloatArray]
"""A function that reduces the last axis: `(..., n)` to `(...)`."""

_MOST_DRAWS = 2**21


def in_words(*numbers: float) -> tuple[str, ...]:
    """Write numbers with the decimals that show three digits of the largest, one at least."""
    largest = max((abs(number) for number in numbers if math.isfinite(number)), default=0.0)
    decimals = max(1, 2 - math.floor(math.log10(largest))) if largest > 0.0 else 1
    return tuple(f"{number:.{decimals}f}" for number in numbers)


def interquartile_mean(values: Array) -> FloatArray:
    """Average the middle half: drop a quarter of the values from each end.

    When the number of values n is not a multiple of 4, ``int(0.25 * n)`` values are dropped from
    each end, and the rest count in full.

    Args:
        values: shape `(..., n)`; the last axis is reduced.

    Returns:
        Shape `(...)`; 0-dim for a plain vector.

    Raises:
        DataError: when there is no value, or one is NaN.

    Source:
        Agarwal et al. 2021, https://arxiv.org/abs/2108.13264, section 4.3.
    """
    values = np.asarray(values, dtype=np.float64)
    if values.ndim == 0 or values.shape[-1] == 0:
        raise DataError(f"got shape {values.shape}; expected at least one value to average")
    ordered = np.sort(values, axis=-1)
    # NaN sorts to the end, where it would be dropped unnoticed.
    if np.isnan(ordered[..., -1]).any():
        raise DataError("a value is NaN; leave it out, or find the run that made it")
    size = ordered.shape[-1]
    cut = int(0.25 * size)
    return np.asarray(ordered[..., cut : size - cut].mean(axis=-1))


def stratified_bootstrap_interval(
    values_by_stratum: Sequence[Array],
    statistic: Statistic,
    num_resamples: int = 2000,
    confidence: float = 0.95,
    *,
    generator: np.random.Generator,
) -> tuple[float, float]:
    """Estimate a confidence interval of a statistic by the percentile bootstrap.

    Each resample draws as many values from every stratum as it has, with replacement, and pools
    them. Strata are groups that the experiment fixed, such as tasks or seeds; with one stratum
    this is the ordinary bootstrap.

    Args:
        values_by_stratum: one vector per stratum, each `(n_i,)`, finite.
        statistic: a function that reduces the last axis, such as `interquartile_mean`.
        num_resamples: number of resamples (>= 1).
        confidence: probability that the interval covers, in (0, 1).
        generator: draws the resamples.

    Returns:
        Lower and upper end of the interval.

    Raises:
        ConfigError: when ``num_resamples`` or ``confidence`` is out of range, or the statistic
            does not reduce the last axis.
        DataError: when there is no stratum, or one is empty, not a vector, or not finite.

    Source:
        Agarwal et al. 2021, https://arxiv.org/abs/2108.13264, section 4.1.
    """
    if num_resamples < 1:
        raise ConfigError(f"num_resamples must be at least 1, got {num_resamples}")
    if not 0.0 < confidence < 1.0:
        raise ConfigError(f"confidence must be inside (0, 1), got {confidence}")
    strata = [_as_stratum(values, index) for index, values in enumerate(values_by_stratum)]
    if not strata:
        raise DataError("got no stratum; expected at least one vector of values")
    per_block = max(1, _MOST_DRAWS // sum(map(len, strata)))  # bounds the memory of a block
    estimates: list[FloatArray] = []
    for first in range(0, num_resamples, per_block):
        rows = min(per_block, num_resamples - first)
        resamples = np.concatenate(
            [v[generator.integers(len(v), size=(rows, len(v)))] for v in strata], axis=1
        )
        estimate = np.asarray(statistic(resamples))
        if estimate.shape != (rows,):
            raise ConfigError(
                f"the statistic returned shape {estimate.shape} for {resamples.shape}; expected "
                f"({rows},): it must reduce the last axis only, as np.mean(x, axis=-1) does"
            )
        estimates.append(estimate)
    tail = 0.5 * (1.0 - confidence)
    low, high = np.quantile(np.concatenate(estimates), [tail, 1.0 - tail])
    return float(low), float(high)


def _as_stratum(values: Array, index: int) -> FloatArray:
    stratum = np.asarray(values, dtype=np.float64)
    if stratum.ndim != 1 or len(stratum) == 0:
        raise DataError(
            f"stratum {index} has shape {stratum.shape}; expected a vector of at least one value"
        )
    if not np.isfinite(stratum).all():
        raise DataError(f"stratum {index} has a value that is not finite; leave it out")
    return stratum
