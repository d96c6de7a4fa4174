"""What an algorithm returns that evaluates in its own way."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EvaluatedEpisodes:
    """Episodes of a stage of `Algorithm.custom_evaluation`.

    Attributes:
        returns: of each episode.
        lengths: how many steps each has; empty where that is not known.
        successes: whether each succeeded, of those of which the environment reports it.
    """

    returns: Sequence[float]
    lengths: Sequence[int] = ()
    successes: Sequence[bool] = ()
