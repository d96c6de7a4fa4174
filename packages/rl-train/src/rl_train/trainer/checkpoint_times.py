"""When a run saves checkpoints by itself."""

from typing import TYPE_CHECKING

from rl_train.trainer.every import Every
from rl_train.trainer.goal import Goal

if TYPE_CHECKING:
    from rl_train.trainer.trainer import Trainer

_IN_A_RUN, _IN_A_RUN_OF_REPLAY = 20, 10
"""How many are spread over a run; fewer where each holds a replay buffer."""

_APART = 5_000
"""Environment transitions between two of those, at least: collecting fewer takes but seconds."""


class CheckpointTimes:
    """Says after which turns of the loop a checkpoint is due, as ``trainer.checkpoint_every`` asks.

    Args:
        trainer: of the run.
        goal: of the session.
    """

    def __init__(self, trainer: "Trainer", goal: Goal) -> None:
        every = trainer.config.checkpoint_every
        self._goal = goal if every == "auto" else Goal("steps", goal.target)
        self._last = trainer.turn.start.get("steps", trainer.total_steps)
        self._apart = _APART if every == "auto" else 0
        interval = None if every == "end" else every
        if interval == "auto":
            is_replay = trainer.storage.rollout_steps is None
            interval = -(-goal.target // (_IN_A_RUN_OF_REPLAY if is_replay else _IN_A_RUN))
        self._every = Every(interval, self._goal.reached_before(trainer))

    def is_due(self, trainer: "Trainer") -> bool:
        """Say whether one is due after a turn, and wait for the next one from there."""
        reached, steps = self._goal.reached(trainer), trainer.total_steps
        if steps - self._last < self._apart or not self._every.is_due(reached):
            return False
        self._every.done(reached)
        self._last = steps
        return True
