"""Options of prioritised draws."""

from dataclasses import dataclass

from rl_core.ranges import check_ranges
from rl_core.schedules import Schedule


@dataclass(frozen=True, kw_only=True, slots=True)
class PrioritizedConfig:
    """Options of prioritised draws.

    Attributes:
        alpha: how much priorities count, in [0, 1]; 0 draws all transitions alike.
        beta: how much weights make up for it, in [0, 1], or a schedule such as
            ``linear(0.4, 1.0)``; 1 makes up for all of it.
        epsilon: added to every error, at least 0.
        default_error: error of transitions that were not learned from yet; None takes the
            largest so far, which is 1 in the beginning.
        eta: share of the largest error in that of a sequence, in [0, 1], the rest being the mean;
            None takes 0.9. It needs ``sequences``.

    Raises:
        ConfigError: when a value is out of range.
    """

    alpha: float = 0.6
    beta: float | Schedule = 0.4
    epsilon: float = 1e-6
    default_error: float | None = None
    eta: float | None = None

    def __post_init__(self) -> None:
        check_ranges(
            self,
            unit=("alpha", "beta", "eta"),
            not_negative=("epsilon",),
            positive=("default_error",),
        )
