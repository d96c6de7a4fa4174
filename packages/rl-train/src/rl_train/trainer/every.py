"""What is done every so many steps."""


class Every:
    """Says at which steps something is due that happens every so often.

    Args:
        interval: environment transitions, or whatever else is counted; None for never.
        reached: how many there are so far; it is due at the next multiple of the interval.
    """

    def __init__(self, interval: int | None, reached: int) -> None:
        self._interval = interval
        self._next = 0
        self.done(reached)

    def is_due(self, reached: int) -> bool:
        """Return whether a multiple of the interval was reached since it was done."""
        return self._interval is not None and reached >= self._next

    def done(self, reached: int) -> None:
        """Wait for the next multiple of the interval."""
        if self._interval is not None:
            self._next = (reached // self._interval + 1) * self._interval
