"""Options of draws that emphasise recent experience."""

from dataclasses import dataclass

from rl_core.errors import ConfigError
from rl_core.ranges import check_ranges


@dataclass(frozen=True, kw_only=True, slots=True)
class RecentConfig:
    """Options of draws from the newest transitions.

    Attributes:
        eta: how fast the windows of the batches shrink, in (0, 1]; 1 does not.
        cmin: no window has fewer transitions, as far as there are so many; below the buffer's
            size.
        period: over how many batches the windows shrink, before they begin anew with the largest.
            Batches are counted across updates, so it means the same whether an update has one
            batch or a thousand. None takes the batches of each update, which must then be more
            than one.
        update_eta: move eta by the returns of the last episodes, between this eta while they rise
            and 1 while they fall.

    Raises:
        ConfigError: when a value is out of range, or eta could not move although it should.
    """

    eta: float = 0.996
    cmin: int = 5000
    period: int | None = 1000
    update_eta: bool = False

    def __post_init__(self) -> None:
        check_ranges(self, positive=("eta",), unit=("eta",), counts=("cmin", "period"))
        if self.period == 1:
            raise ConfigError("period=1 leaves each batch the smallest window; give 2 or more")
        if self.update_eta and self.eta == 1.0:
            raise ConfigError(
                "update_eta moves eta between its own value and 1, so eta=1.0 could not move; set "
                "storage.recent.eta below 1, such as 0.996, or leave storage.recent.update_eta out"
            )
