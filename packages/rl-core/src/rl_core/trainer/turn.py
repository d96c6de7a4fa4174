"""How far the training loop has come in one of its turns."""

from typing import TYPE_CHECKING

from rl_core.stateful import StateReader
from rl_core.types import StateDict

if TYPE_CHECKING:
    from rl_core.trainer.trainer import Trainer


class Turn:
    """The turn of the loop that is going on: collect, update, evaluate, log.

    It is saved with the run, so that one which was stopped in the middle of a turn goes on there.

    Attributes:
        start: how many ``steps``, ``episodes`` and ``updates`` the run had when the turn began;
            empty between turns.
        rows: of environments that were collected in it.
        has_learned: its update is over, and at most evaluation and log are left.
    """

    def __init__(self) -> None:
        self.start: dict[str, int] = {}
        self.rows = 0
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

    def end(self) -> None:
        """Wait for the next turn."""
        self.start = {}
        self.rows = 0
        self.has_learned = False

    def state_dict(self) -> StateDict:
        """Return where the turn began, and what was done of it."""
        return {"start": dict(self.start), "rows": self.rows, "has_learned": self.has_learned}

    def load_state_dict(self, state: StateDict) -> None:
        """Take over what `state_dict` returned."""
        saved = StateReader(state, "turn")
        start = saved.reader("start")
        units = ("steps", "episodes", "updates") if saved.tree("start") else ()
        start.expect(units)
        self.start = {unit: start.count(unit) for unit in units}
        self.rows = saved.count("rows")
        self.has_learned = saved.flag("has_learned")
