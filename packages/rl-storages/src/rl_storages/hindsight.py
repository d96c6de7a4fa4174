"""Options of goals relabelled in hindsight."""

from dataclasses import dataclass
from typing import Literal

from rl_core.errors import ConfigError
from rl_core.ranges import check_choice, check_ranges

STRATEGIES = ("final", "future", "episode", "random")


@dataclass(frozen=True, kw_only=True, slots=True)
class HindsightConfig:
    """Options of goals relabelled in hindsight.

    Attributes:
        strategy: which achieved goal becomes the desired one: ``"final"``, what the episode ended
            with; ``"future"``, one that it achieved with this transition or later; ``"episode"``,
            any of it; ``"random"``, any of all that is stored.
        k: relabelled transitions for each one as it was: a share of k / (k + 1) of what is drawn.
        achieved_goal: the observation's entry with the goal achieved so far.
        desired_goal: the observation's entry with the goal that is pursued.

    Raises:
        ConfigError: when a value is out of range, or both entries are the same.
    """

    strategy: Literal["final", "future", "episode", "random"] = "future"
    k: float = 4.0
    achieved_goal: str = "achieved_goal"
    desired_goal: str = "desired_goal"

    def __post_init__(self) -> None:
        check_ranges(self, not_negative=("k",))
        check_choice(self, "strategy", STRATEGIES)
        if self.achieved_goal == self.desired_goal:
            raise ConfigError(
                f"achieved_goal and desired_goal are both '{self.desired_goal}'; expected two "
                "entries of the observation"
            )
