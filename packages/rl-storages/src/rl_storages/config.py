"""Options of a replay buffer's draws: priorities, recent experience, hindsight, sequences."""

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Interval

from rl_core.config import Config, Count, Fraction, NonNegative, ScheduledFraction
from rl_core.errors import ConfigError
from rl_storages.sampling.sum_tree import LARGEST_ERROR


@dataclass(frozen=True, kw_only=True, slots=True)
class PrioritizedConfig(Config):
    """Options of prioritized replay.

    Attributes:
        alpha: exponent of the priorities, in [0, 1]; 0 samples uniformly.
        beta: exponent of the importance weights, in [0, 1], or a schedule such as
            ``Linear(0.4, 1.0)``; 1 corrects the bias fully.
        epsilon: added to every error. The bound is that of single-precision priorities.
        default_error: error of transitions that no gradient step has seen yet; None takes the
            largest error so far, initially 1.
        eta: weight of the largest error in the error of a sequence; the rest is the mean. None
            takes 0.9. It needs ``sequences``.

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
    """Options of sampling from the newest transitions.

    Attributes:
        eta: how fast the windows shrink, in (0, 1]; 1 does not shrink them.
        cmin: smallest window, in transitions; less than the buffer's size.
        period: number of batches over which windows shrink, before they start again with the
            largest. Batches are counted across updates, so it means the same whether an update
            has one batch or a thousand. None takes the batches of each update, which must then be
            more than one.
        update_eta: adapt eta to the returns of the last episodes: it is this eta while they rise,
            and nears 1 while they fall.

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
    """Options of hindsight experience replay.

    Attributes:
        strategy: which achieved goal becomes the desired one: ``"final"``, the last of the
            episode; ``"future"``, that of this transition or a later one; ``"episode"``, any of the
            episode; ``"random"``, any that is stored.
        k: relabeled transitions per original one: a share of k / (k + 1) is relabeled.
        achieved_goal: key of the achieved goal in the observation.
        desired_goal: key of the desired goal in the observation.

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
    """Options of replayed sequences, for recurrent networks.

    A sequence is ``length`` consecutive transitions of one episode. The first of them, its
    *burn-in*, only bring the recurrent state up to date and are not learned from; they are the
    last ones of the sequence before. So every transition is learned from in just one sequence.

    Attributes:
        length: number of transitions in a sequence, burn-in included.
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
