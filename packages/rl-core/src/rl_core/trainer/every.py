"""What is done every so many steps."""


class Every:
    """Says at which steps something is due that happens every so often.

    Args:
        interval: environment transitions; None for never.
        total_steps: of the run so far; it is due at the next multiple of the interval.
    """

    def __init__(self, interval: int | None, total_steps: int) -> None:
        self._interval = interval
        self._next = 0
        self.done(total_steps)

    def is_due(self, total_steps: int) -> bool:
        """Return whether a multiple of the interval was reached since it was done."""
        return self._interval is not None and total_steps >= self._next

    def done(self, total_steps: int) -> None:
        """Wait for the next multiple of the interval."""
        if self._interval is not None:
            self._next = (total_steps // self._interval + 1) * self._interval
