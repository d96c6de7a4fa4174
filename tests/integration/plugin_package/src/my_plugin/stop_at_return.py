"""Early stopping."""

from collections.abc import Mapping

from rl_train import Callback, Trainer


class StopAtReturn(Callback):
    """End a run once its training episodes are good enough.

    Args:
        threshold: mean return of the newest episodes, environment units.
    """

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold

    def on_log(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        """Look at the newest mean return."""
        if metrics["train/episode_return"] >= self.threshold:
            trainer.stop()
