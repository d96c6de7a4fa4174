"""When a run is over."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rl_core.errors import ConfigError

if TYPE_CHECKING:
    from rl_train.trainer.trainer import Trainer


@dataclass(frozen=True, slots=True)
class Goal:
    """The count at which a run is over.

    Attributes:
        unit: ``steps``, ``episodes`` or ``updates``.
        target: how many in all.
    """

    unit: str
    target: int

    @classmethod
    def choose(cls, steps: int | None, episodes: int | None, updates: int | None) -> "Goal":
        """Take the one count that is given.

        Raises:
            ConfigError: when not just one is given, or it is no whole number of at least 1.
        """
        given = {
            unit: count
            for unit, count in (("steps", steps), ("episodes", episodes), ("updates", updates))
            if count is not None
        }
        if len(given) != 1:
            raise ConfigError(
                "give just one of total_steps, total_episodes and total_updates, got "
                f"{', '.join(f'total_{unit}' for unit in given) or 'none'}"
            )
        ((unit, target),) = given.items()
        if isinstance(target, bool) or not isinstance(target, int):
            raise ConfigError(f"total_{unit} must be a whole number, got {target!r}")
        if target < 1:
            raise ConfigError(f"total_{unit} must be at least 1, got {target}")
        return cls(unit, target)

    @property
    def arguments(self) -> dict[str, int]:
        """What `Trainer.train` is to be given."""
        return {f"total_{self.unit}": self.target}

    def reached(self, trainer: "Trainer") -> int:
        """Return how many of the unit a run has so far."""
        if self.unit == "steps":
            return trainer.total_steps
        return trainer.collector.total_episodes if self.unit == "episodes" else trainer.updates

    def reached_before(self, trainer: "Trainer") -> int:
        """Return how many a run had before the turn that is going on; between turns, has so far.

        What a turn does, and whether another one begins, depends on this alone, so that a turn
        which was broken off and resumed is like any other.
        """
        return trainer.turn.start.get(self.unit, self.reached(trainer))

    def default_log_every(self, update_every: int) -> int:
        """Aim at 200 lines in a run, but at most one per update.

        Args:
            update_every: rows of environments between updates.

        Returns:
            Environment transitions.
        """
        if self.unit == "steps":
            return max(update_every, self.target // 200)
        return max(update_every, 1000)
