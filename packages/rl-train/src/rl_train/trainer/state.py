"""What a run knows of itself, besides the states of its parts."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from rl_core.stateful import StateReader
from rl_core.types import StateDict
from rl_train.trainer.metrics import RecentEpisodes, UpdateMeans

UNITS = ("steps", "episodes", "updates")


@dataclass(slots=True)
class Iteration:
    """The iteration of the training loop that is going on: collect, update, evaluate, log.

    It is saved with the run, so that a run that was stopped in the middle of an iteration
    continues there.

    Attributes:
        start: how many ``steps``, ``episodes`` and ``updates`` the run had when it began; empty
            between iterations.
        transitions: collected toward its update, including those an earlier one left over.
        has_learned: its update is over; at most evaluation and logging are left.
    """

    start: dict[str, int] = field(default_factory=dict)
    transitions: int = 0
    has_learned: bool = False

    def begin(self, counts: Mapping[str, int]) -> None:
        """Begin an iteration, unless one is going on."""
        self.start = self.start or dict(counts)

    def end(self, left_over: int = 0) -> None:
        """Wait for the next iteration.

        Args:
            left_over: transitions beyond those that its update was due for, which count toward the
                next one. There are some where rows only reset, so that a step brings fewer
                transitions than there are environments.
        """
        self.start, self.transitions, self.has_learned = {}, left_over, False


class RunState:
    """What a run knows of itself.

    Args:
        seed: of the run.

    Attributes:
        updates: how many there were.
        num_demonstrations: transitions that the storage was filled with before the first step.
        filled_since: environment transitions before those that the storage holds; 0 unless the run
            was resumed without its replay buffer.
        iteration: how far the loop is.
        recent: figures of the newest episodes.
        means: means of what updates returned since the last line of the log.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.updates = 0
        self.num_demonstrations = 0
        self.filled_since = 0
        self.iteration = Iteration()
        self.recent = RecentEpisodes()
        self.means = UpdateMeans()

    def state_dict(self) -> StateDict:
        """Return all of it."""
        iteration = self.iteration
        return {
            "seed": self.seed,
            "updates": self.updates,
            "iteration": {
                "start": dict(iteration.start),
                "transitions": iteration.transitions,
                "has_learned": iteration.has_learned,
            },
            "filled_since": self.filled_since,
            "demonstrations": self.num_demonstrations,
            "recent": self.recent.state_dict(),
            "update_means": self.means.state_dict(),
        }

    def load_state_dict(self, state: StateDict) -> None:
        """Take over a state returned by `state_dict`."""
        saved = StateReader(state, "run")
        self.seed, self.updates = saved.count("seed"), saved.count("updates")
        iteration = saved.reader("iteration")
        start = iteration.reader("start")
        units = UNITS if iteration.tree("start") else ()
        start.expect(units)
        self.iteration = Iteration(
            {unit: start.count(unit) for unit in units},
            iteration.count("transitions"),
            iteration.flag("has_learned"),
        )
        self.filled_since = saved.count("filled_since")
        self.num_demonstrations = saved.count("demonstrations")
        self.recent.load_state_dict(saved.tree("recent"))
        self.means.load_state_dict(saved.tree("update_means"))
