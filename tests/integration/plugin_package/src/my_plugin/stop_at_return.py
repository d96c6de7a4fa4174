"""Early stopping."""

from collections.abc import Mapping

from rl_train import Callback, Trainer


class StopAtReturn(Callback):
    """Stop a run once its training episodes are good enough.

    Args:
        threshold: Mean return of recent training episodes that stops the run.
    """

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold

    def on_log(self, trainer: Trainer, metrics: Mapping[str, float]) -> bool:
        """End the run if the mean return has reached the threshold."""
        return metrics["train/episode_return"] >= self.threshold
