"""Options of prioritised draws."""

from dataclasses import dataclass

from rl_core.errors import ConfigError
from rl_core.ranges import check_ranges
from rl_core.schedules import Schedule
from rl_storages._sum_tree import LARGEST_ERROR


@dataclass(frozen=True, kw_only=True, slots=True)
class PrioritizedConfig:
    """Options of prioritised draws.

    Attributes:
        alpha: how much priorities count, in [0, 1]; 0 draws all transitions alike.
        beta: how much weights make up for it, in [0, 1], or a schedule such as
            ``linear(0.4, 1.0)``; 1 makes up for all of it.
        epsilon: added to every error, from 0 to 1e30.
        default_error: error of transitions that were not learned from yet, above 0 and at most
            1e30; None takes the largest so far, which is 1 in the beginning.
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
        for name in ("epsilon", "default_error"):
            value = getattr(self, name)
            if value is not None and value > LARGEST_ERROR:
                raise ConfigError(
                    f"{name} must be at most {LARGEST_ERROR:g}, got {value:g}: priorities are "
                    "single-precision numbers; set it to about the size of the errors"
                )
