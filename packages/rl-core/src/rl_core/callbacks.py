"""Hooks into the training loop."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rl_core.evaluation import EvaluationResult
    from rl_core.trainer import Trainer


class Callback:
    """Called at the turns of the training loop; override what is needed.

    A method that may end the run does so by answering True. Everything of the run can be read
    from the trainer: ``total_steps``, ``updates``, ``algorithm``, ``collector``, ``storage``.
    """

    def on_training_start(self, trainer: "Trainer", target: int, unit: str) -> None:
        """Before the first collection; the run ends at ``target`` of ``unit``."""

    def on_update_end(self, trainer: "Trainer") -> bool | None:
        """After each update."""

    def on_log(self, trainer: "Trainer", metrics: Mapping[str, float]) -> None:
        """After each log line."""

    def on_evaluation(self, trainer: "Trainer", result: "EvaluationResult") -> bool | None:
        """After each evaluation on the test environments."""

    def on_training_end(self, trainer: "Trainer") -> None:
        """After the last update, also when the run failed."""
