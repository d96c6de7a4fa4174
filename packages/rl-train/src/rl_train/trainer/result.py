"""How a training run ended."""

from dataclasses import dataclass

from rl_core.types import Json
from rl_train.evaluation import EvaluationResult


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """How a training run ended.

    Attributes:
        total_steps: environment transitions in all, earlier sessions included.
        total_updates: updates in all.
        wall_seconds: time spent in this session.
        steps_per_second: transitions of this session per second.
        evaluation: of the final policy; None without test environments.
    """

    total_steps: int
    total_updates: int
    wall_seconds: float
    steps_per_second: float
    evaluation: EvaluationResult | None

    def as_dict(self) -> dict[str, Json]:
        """Return the figures as a JSON object."""
        evaluation = self.evaluation
        return {
            "total_steps": self.total_steps,
            "total_updates": self.total_updates,
            "wall_seconds": self.wall_seconds,
            "steps_per_second": self.steps_per_second,
            "final_return_mean": None if evaluation is None else evaluation.mean,
            "final_evaluation": None if evaluation is None else evaluation.as_dict(),
        }
