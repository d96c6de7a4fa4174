"""Options of a replay buffer's draws: priorities, recent experience, hindsight, sequences."""

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Interval

from rl_core.config import Config, Count, Fraction, NonNegative, ScheduledFraction
from rl_core.errors import ConfigError
from rl_storages.sampling.sum_tree import LARGEST_ERROR


@dataclass(frozen=True, kw_only=True, slots=True)
class PrioritizedConfig(Config):
    """Options of prioritised draws.

    Attributes:
        alpha: how much priorities count; 0 draws all transitions alike.
        beta: how much weights make up for it, or a schedule such as ``linear(0.4, 1.0)``; 1 makes
            up for all of it.
        epsilon: added to every error; priorities are single-precision numbers, hence the bound.
        default_error: error of transitions that were not learned from yet; None takes the largest
            so far, which is 1 in the beginning.
        eta: share of the largest error in that of a sequence, the rest being the mean; None takes
            0.9. It needs ``sequences``.

    Raises:
        ConfigError: when a value is out of range.
    """

    alpha: Fraction = 0.6
    beta: ScheduledFraction = 0.4
    epsilon: Annotated[float, Interval(ge=0, le=LARGEST_ERROR)] = 1e-6
    default_error: Annotated[float, Interval(gt=0, le=LARGEST_ERROR)] | None = None
    eta: Fraction | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class RecentConfig(Config):
    """Options of draws from the newest transitions.

    Attributes:
        eta: how fast the windows of the batches shrink; 1 does not shrink them.
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

    eta: Annotated[float, Interval(gt=0, le=1)] = 0.996
    cmin: Count = 5000
    period: Annotated[int, Ge(2)] | None = 1000
    update_eta: bool = False

    def __post_init__(self) -> None:
        Config.__post_init__(self)
        if self.update_eta and self.eta == 1.0:
            raise ConfigError(
                "update_eta moves eta between its own value and 1, so eta=1.0 could not move; set "
                "storage.recent.eta below 1, such as 0.996, or leave storage.recent.update_eta out"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class HindsightConfig(Config):
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
    k: NonNegative = 4.0
    achieved_goal: str = "achieved_goal"
    desired_goal: str = "desired_goal"

    def __post_init__(self) -> None:
        Config.__post_init__(self)
        if self.achieved_goal == self.desired_goal:
            raise ConfigError(
                f"achieved_goal and desired_goal are both '{self.desired_goal}'; expected two "
                "entries of the observation"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class SequenceConfig(Config):
    """Options of replayed sequences, for networks with a memory.

    A sequence is ``length`` consecutive transitions of one episode. The first of them, its
    *burn-in*, only bring the memory up to date and are not learned from; they are the last ones
    of the sequence before. So every transition is learned from in just one sequence.

    Attributes:
        length: transitions in a sequence, burn-in included.
        overlap: share of them that is burn-in, in [0, 1): ``int(overlap * length)`` transitions.

    Raises:
        ConfigError: when a value is out of range, or no transition is left to learn from.
    """

    length: Count = 40
    overlap: Annotated[float, Interval(ge=0, lt=1)] = 0.5

    @property
    def burn_in(self) -> int:
        """Transitions before those that are learned from."""
        return int(self.overlap * self.length)

    @property
    def learned(self) -> int:
        """Transitions that are learned from, T of a batch."""
        return self.length - self.burn_in
