"""Where metrics go: the contract of loggers."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

from torch import Tensor


class Logger(ABC):
    """A receiver of metrics; a subclass writes them somewhere."""

    @abstractmethod
    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take the metrics of a step.

        Args:
            step: environment transitions so far.
            metrics: scalars by path; some may be NaN or infinite.
        """

    def histogram(self, step: int, name: str, values: Tensor) -> None:  # noqa: B027  # optional
        """Take the distribution of some values; ignored unless a subclass can show it.

        Args:
            step: environment transitions so far.
            name: path of the metric.
            values: any shape.
        """

    def close(self) -> None:  # noqa: B027  # optional
        """Write what is pending and free what is held, if anything; calling it twice is fine.

        A run that goes on logs again, and what was logged before stays.
        """
