"""When a run is over, and when it logs and saves."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rl_core.config import LENGTHS, Count, check_argument
from rl_core.errors import ConfigError
from rl_core.types import Json

if TYPE_CHECKING:
    from rl_train.trainer.trainer import Trainer

_CHECKPOINTS, _CHECKPOINTS_WITH_REPLAY = 20, 10
"""How many are spread over a run; fewer where each holds a replay buffer."""

_LEAST_INTERVAL = 5_000
"""Environment transitions between two of those, at least: collecting fewer takes seconds."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The count at which a run is over.

    Attributes:
        unit: ``steps``, ``episodes`` or ``updates``.
        target: how many in all.
    """

    unit: str
    target: int

    @classmethod
    def choose(cls, steps: int | None, episodes: int | None, updates: int | None) -> "Budget":
        """Take the one count that is given.

        Raises:
            ConfigError: unless exactly one is given, and it is a whole number of at least 1.
        """
        counts = {"steps": steps, "episodes": episodes, "updates": updates}
        given = {unit: count for unit, count in counts.items() if count is not None}
        if len(given) != 1:
            raise ConfigError(
                "give exactly one of total_steps, total_episodes and total_updates, got "
                f"{', '.join(f'total_{unit}' for unit in given) or 'none'}"
            )
        ((unit, target),) = given.items()
        return cls(unit, check_argument(f"total_{unit}", target, Count))

    @property
    def arguments(self) -> dict[str, int]:
        """The arguments for `Trainer.train`."""
        return {f"total_{self.unit}": self.target}

    def recorded_in(self, resolved: Mapping[str, Json]) -> dict[str, Json]:
        """Return what a recipe has resolved, with this length in the place of any other.

        The length comes first, so that the recipe of a resumed run has the order it began with.
        """
        kept = {name: value for name, value in resolved.items() if name not in LENGTHS}
        return {**self.arguments, **kept}

    def reached(self, trainer: "Trainer") -> int:
        """Return how many of the unit a run has so far."""
        return trainer.counts[self.unit]

    def reached_before(self, trainer: "Trainer") -> int:
        """Return how many a run had when the current iteration began.

        What an iteration does, and whether another one begins, depends on this alone, so that an
        iteration that was interrupted and resumed is like any other.
        """
        return trainer.state.iteration.start.get(self.unit, self.reached(trainer))

    def is_over(self, trainer: "Trainer") -> bool:
        """Return whether a run has nothing left to train, not even the rest of an iteration."""
        state = trainer.state
        was_ended = state.ended == self.arguments and not state.iteration.start
        return was_ended or self.reached_before(trainer) >= self.target

    def default_log_every(self, update_every: int) -> int:
        """Aim at 200 lines in a run of so many steps, but at most one per update.

        Args:
            update_every: rows of environments between updates.

        Returns:
            Environment transitions.
        """
        return max(update_every, self.target // 200 if self.unit == "steps" else 1000)


class Interval:
    """Says when something is due that happens every so often.

    Args:
        every: environment transitions, or whatever else is counted; None for never.
        reached: how many there are so far; it is due at the next multiple.
    """

    def __init__(self, every: int | None, reached: int) -> None:
        self._every = every
        self.restart(reached)

    def is_due(self, reached: int) -> bool:
        """Return whether a multiple was reached since the last restart."""
        return self._every is not None and reached >= self._next

    def restart(self, reached: int) -> None:
        """Wait for the next multiple."""
        self._next = 0 if self._every is None else (reached // self._every + 1) * self._every


class CheckpointInterval:
    """Says after which iterations a checkpoint is due, as ``trainer.checkpoint_every`` asks.

    Args:
        trainer: of the run.
        budget: of the session.
    """

    def __init__(self, trainer: "Trainer", budget: Budget) -> None:
        every = trainer.config.checkpoint_every
        self._budget, self._least = Budget("steps", budget.target), 0
        if every == "auto":
            self._budget, self._least = budget, _LEAST_INTERVAL
            is_replay = trainer.storage.rollout_steps is None and trainer.config.checkpoint_replay
            every = -(-budget.target // (_CHECKPOINTS_WITH_REPLAY if is_replay else _CHECKPOINTS))
        self._last = trainer.state.iteration.start.get("steps", trainer.total_steps)
        self._interval = Interval(
            None if every == "end" else every, self._budget.reached_before(trainer)
        )

    def is_due(self, trainer: "Trainer") -> bool:
        """Return whether one is due after an iteration, and wait for the next one from there."""
        reached, steps = self._budget.reached(trainer), trainer.total_steps
        if steps - self._last < self._least or not self._interval.is_due(reached):
            return False
        self._interval.restart(reached)
        self._last = steps
        return True
