"""How far the training loop has come in one of its turns."""

from typing import TYPE_CHECKING

from rl_core.stateful import StateReader
from rl_core.types import StateDict

if TYPE_CHECKING:
    from rl_train.trainer.trainer import Trainer


class Turn:
    """The turn of the loop that is going on: collect, update, evaluate, log.

    It is saved with the run, so that one which was stopped in the middle of a turn goes on there.

    Attributes:
        start: how many ``steps``, ``episodes`` and ``updates`` the run had when the turn began;
            empty between turns.
        transitions: collected toward its update, those included that an earlier one left over.
        has_learned: its update is over, and at most evaluation and log are left.
    """

    def __init__(self) -> None:
        self.start: dict[str, int] = {}
        self.transitions = 0
        self.has_learned = False

    @property
    def is_open(self) -> bool:
        """Whether a turn is going on."""
        return bool(self.start)

    def begin(self, trainer: "Trainer") -> None:
        """Begin a turn, unless one is going on."""
        if not self.is_open:
            self.start = {
                "steps": trainer.total_steps,
                "episodes": trainer.collector.total_episodes,
                "updates": trainer.updates,
            }

    def end(self, left_over: int = 0) -> None:
        """Wait for the next turn.

        Args:
            left_over: transitions beyond those that its update was due for, which count toward the
                next one. There are some where rows only reset, so that a step brings fewer
                transitions than there are environments.
        """
        self.start = {}
        self.transitions = left_over
        self.has_learned = False

    def state_dict(self) -> StateDict:
        """Return where the turn began, and what was done of it."""
        return {
            "start": dict(self.start),
            "transitions": self.transitions,
            "has_learned": self.has_learned,
        }

    def load_state_dict(self, state: StateDict) -> None:
        """Take over what `state_dict` returned."""
        saved = StateReader(state, "turn")
        start = saved.reader("start")
        units = ("steps", "episodes", "updates") if saved.tree("start") else ()
        start.expect(units)
        self.start = {unit: start.count(unit) for unit in units}
        self.transitions = saved.count("transitions")
        self.has_learned = saved.flag("has_learned")
