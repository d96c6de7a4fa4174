"""Seeds of vector environments, derived from one seed."""

import numpy as np

from rl_core.errors import ConfigError


def spread_seed(seed: int, num_envs: int) -> list[int]:
    """Derive one seed per environment.

    Neighbouring seeds give unrelated lists, unlike ``seed + i``, where the second environment of
    seed 0 is the first of seed 1. The first ``k`` seeds do not depend on ``num_envs``.

    Args:
        seed: at least 0.
        num_envs: the number of seeds.

    Returns:
        Different numbers below 2^31, which every simulator's own seed can hold.

    Raises:
        ConfigError: if the seed is negative.
    """
    seeds: dict[int, None] = {}  # in order, without duplicates
    for child in np.random.SeedSequence(checked_seed(seed)).spawn(num_envs):
        candidate = int(child.generate_state(1)[0]) >> 1
        while candidate in seeds:
            candidate = (candidate + 1) % 2**31
        seeds[candidate] = None
    return list(seeds)


def resumed_seed(seed: int, steps: int) -> int:
    """Derive the seed with which environments go on after a resume at some step."""
    return int(np.random.SeedSequence([seed, steps]).generate_state(1)[0])


def checked_seed(seed: int) -> int:
    """Return a seed as a plain number.

    Raises:
        ConfigError: if it is not a whole number, or negative.
    """
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise ConfigError(f"seed={seed!r}; expected a whole number of at least 0")
    return int(seed)
