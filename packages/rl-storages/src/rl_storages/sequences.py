"""Options of replayed sequences."""

from dataclasses import dataclass

from rl_core.errors import ConfigError
from rl_core.ranges import check_ranges


@dataclass(frozen=True, kw_only=True, slots=True)
class SequenceConfig:
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

    length: int = 40
    overlap: float = 0.5

    def __post_init__(self) -> None:
        check_ranges(self, counts=("length",))
        if not 0.0 <= self.overlap < 1.0:
            raise ConfigError(
                f"overlap must be in [0, 1), got {self.overlap}: of a sequence's transitions "
                "(storage.sequences.overlap) some must be left to learn from"
            )

    @property
    def burn_in(self) -> int:
        """Transitions before those that are learned from."""
        return int(self.overlap * self.length)

    @property
    def learned(self) -> int:
        """Transitions that are learned from, T of a batch."""
        return self.length - self.burn_in
