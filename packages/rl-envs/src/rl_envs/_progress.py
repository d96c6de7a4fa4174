"""How far environments have come, what seeds them next, and the errors that name the place."""

from collections.abc import Iterator
from contextlib import contextmanager

from rl_core.env import checked_seed, resumed_seed
from rl_core.errors import CheckpointError, EnvironmentFaultError, in_brief
from rl_core.types import StateDict


class Progress:
    """Counts the steps of a vector environment and hands each seed to one reset.

    Args:
        name: what to call the environments in messages.
        seed: for the first reset that is given none.

    Attributes:
        name: what to call the environments in messages.
        steps: how many were begun.
        closed: nothing but closing again is allowed.

    Raises:
        ConfigError: when the seed is negative.
    """

    def __init__(self, name: str, seed: int | None) -> None:
        self.name = name
        self.steps = 0
        self.closed = False
        self._seed = None if seed is None else checked_seed(seed)
        self._next_seed = self._seed

    def seed_for_reset(self, given: int | None) -> int | None:
        """Return the seed of this reset, which the next one does not use again.

        Raises:
            ConfigError: when the given seed is negative.
        """
        if given is not None:
            self._seed = self._next_seed = checked_seed(given)
        seed, self._next_seed = self._next_seed, None
        return seed

    def require_open(self, call: str) -> None:
        """Refuse a call after closing."""
        if self.closed:
            raise EnvironmentFaultError(f"{self.name}: {call}() was called after close()")

    def not_reset(self) -> EnvironmentFaultError:
        """Build the error of a step without a reset before it."""
        return EnvironmentFaultError(f"{self.name} was not reset; call reset() first")

    def fault(self, message: str, index: int | None = None) -> EnvironmentFaultError:
        """Build an error that names the step, and the row where one is to blame."""
        where = "" if index is None else f", environment {index}"
        return EnvironmentFaultError(f"{self.name}, step {self.steps}{where}: {message}")

    def wrapped(self, call: str, error: BaseException) -> EnvironmentFaultError:
        """Build an error that says where another one was raised."""
        if isinstance(error, EnvironmentFaultError):
            return EnvironmentFaultError(f"{self.name}, step {self.steps}, {error}")
        return self.fault(f"{call}() raised {in_brief(error)}")

    @contextmanager
    def naming(self, call: str) -> Iterator[None]:
        """Say of everything that is raised inside where it was raised."""
        try:
            yield
        except (Exception, SystemExit) as error:
            raise self.wrapped(call, error) from (error.__cause__ or error)

    def state_dict(self) -> StateDict:
        """Return the seed and the number of steps."""
        return {"seed": self._seed, "steps": self.steps}

    def load_state_dict(self, state: StateDict) -> None:
        """Go on counting, and seed the next reset by seed and count.

        Raises:
            CheckpointError: when the state does not fit.
        """
        seed, steps = state.get("seed"), state.get("steps")
        if not isinstance(steps, int) or not isinstance(seed, int | None):
            raise CheckpointError(
                f"the state of {self.name} is {dict(state)}; expected the numbers seed and steps"
            )
        self._seed, self.steps = seed, steps
        self._next_seed = None if seed is None else resumed_seed(seed, steps)
