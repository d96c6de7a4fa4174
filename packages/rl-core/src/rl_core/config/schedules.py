"""Numbers that change over a run: constant, linear, piecewise linear and cosine schedules.

A schedule is a function of progress, the fraction of the training run that has been completed. It
reads and writes itself as text, such as ``linear(0.0003, 0.0)``, which is the form it has in
configuration files, on the command line and in checkpoints.
"""

import bisect
import itertools
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import TypeAlias, TypeVar, cast, final

import numpy as np

from rl_core.errors import ConfigError, nearest

_CALL = re.compile(r"\s*(\w+)\s*\((.*)\)\s*", re.DOTALL)


class Schedule(ABC):
    """A number as a function of how much of the training run has been completed.

    There are no others than those of this module, because a run that goes on reads its schedules
    back from text. For a curve of your own use `Piecewise.from_function`.

    Raises:
        ConfigError: when it is subclassed elsewhere.
    """

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        """Refuse a schedule that no run could be resumed with."""
        if cls.__module__ != __name__:
            raise ConfigError(
                f"{cls.__name__}: a run that goes on could not read a schedule of your own back "
                "from its text; give Piecewise.from_function(lambda progress: ...), or change the "
                "number in a callback by update_algorithm_parameter"
            )

    @abstractmethod
    def value(self, progress: float) -> float:
        """Return the number at a point of the run.

        Args:
            progress: fraction of the run, 0 at its start and 1 at its end; clamped to that range.
        """

    @property
    @abstractmethod
    def is_constant(self) -> bool:
        """Whether the number is the same throughout."""

    @abstractmethod
    def __str__(self) -> str:
        """Return the text from which `parse_schedule` makes an equal schedule."""


Scheduled: TypeAlias = float | Schedule
"""The type of a config field that may change while running: a number, or a schedule of them."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Constant(Schedule):
    """The same number throughout; its text is the plain number, and it equals that.

    Attributes:
        level: the number.

    Raises:
        ConfigError: when it is not finite.
    """

    level: float

    def __post_init__(self) -> None:
        _check_finite("constant", self.level)

    def __eq__(self, other: object) -> bool:
        return self.level == (other.level if isinstance(other, Constant) else other)

    def __hash__(self) -> int:
        return hash(self.level)

    def value(self, progress: float) -> float:
        """Return the number; see `Schedule.value`."""
        return self.level

    @property
    def is_constant(self) -> bool:
        """True."""
        return True

    def __str__(self) -> str:
        return repr(float(self.level))


@dataclass(frozen=True, slots=True)
class Ramp(Schedule):
    """Base of the schedules that move from one number to another, and then stay level.

    Attributes:
        start: the number at progress 0.
        end: the number from progress ``until`` on.
        until: where the move ends, in (0, 1].

    Raises:
        ConfigError: when a number is not finite or ``until`` is out of range.
    """

    start: float
    end: float
    until: float = 1.0

    def __post_init__(self) -> None:
        _check_finite(self._name, self.start, self.end, self.until)
        if not 0.0 < self.until <= 1.0:
            raise ConfigError(
                f"{self._name}: until is {self.until}; expected a fraction of the run in (0, 1]"
            )

    @property
    def is_constant(self) -> bool:
        """Whether both numbers are the same."""
        return self.start == self.end

    def __str__(self) -> str:
        numbers = (self.start, self.end) if self.until == 1.0 else astuple(self)
        return f"{self._name}({', '.join(repr(float(number)) for number in numbers)})"

    @property
    def _name(self) -> str:
        return type(self).__name__.lower()


@final
@dataclass(frozen=True, slots=True)
class Linear(Ramp):
    """A straight line, then level; its text is ``linear(start, end)`` or with ``until``.

    Attributes:
        start: the number at progress 0.
        end: the number from progress ``until`` on.
        until: where the line ends, in (0, 1].

    Raises:
        ConfigError: when a number is not finite or ``until`` is out of range.
    """

    def value(self, progress: float) -> float:
        """Return the number on the line; see `Schedule.value`."""
        return _between(self.start, self.end, max(progress, 0.0) / self.until)


@final
@dataclass(frozen=True, slots=True)
class Cosine(Ramp):
    """Half a cosine wave, then level; its text is ``cosine(start, end)`` or with ``until``.

    Attributes:
        start: the number at progress 0.
        end: the number from progress ``until`` on.
        until: where the wave ends, in (0, 1].

    Raises:
        ConfigError: when a number is not finite or ``until`` is out of range.

    Source:
        Loshchilov and Hutter 2017, https://arxiv.org/abs/1608.03983, Eq. (5), without restarts.
    """

    def value(self, progress: float) -> float:
        """Return the number on the wave; see `Schedule.value`."""
        fraction = min(max(progress, 0.0) / self.until, 1.0)
        return _between(self.start, self.end, 0.5 - 0.5 * math.cos(math.pi * fraction))


@final
@dataclass(frozen=True, slots=True)
class Piecewise(Schedule):
    """Straight lines between points; its text is ``piecewise(0: 1.0, 0.5: 0.1)``.

    Before the first point and after the last the schedule is level.

    Attributes:
        points: at least one pair of progress and number; progress in [0, 1], increasing.

    Raises:
        ConfigError: when there is no point, a number is not finite, or progress does not increase
            within [0, 1].
    """

    points: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        if not self.points:
            raise ConfigError("piecewise: got no points; expected at least one, such as (0, 1.0)")
        for point in self.points:
            _check_finite("piecewise", *point)
        fractions = [fraction for fraction, _ in self.points]
        increasing = all(a < b for a, b in itertools.pairwise(fractions))
        if not increasing or fractions[0] < 0.0 or fractions[-1] > 1.0:
            raise ConfigError(
                f"piecewise: got points at {fractions}; expected fractions of the run that "
                "increase within [0, 1]"
            )

    @classmethod
    def from_function(
        cls, function: Callable[[float], float], num_points: int = 101
    ) -> "Piecewise":
        """Return a schedule with the values of a function at points that are equally far apart.

        Args:
            function: of progress, which is 0 at the start of the run and 1 at its end.
            num_points: how many, at least 2; between them the schedule is a straight line.

        Raises:
            ConfigError: when there are fewer points, or a value is not a finite number.

        Example:
            >>> str(Piecewise.from_function(lambda progress: (1 - progress) ** 2, num_points=3))
            'piecewise(0: 1.0, 0.5: 0.25, 1: 0.0)'
        """
        if num_points < 2:
            raise ConfigError(f"piecewise: num_points is {num_points}; expected at least 2")
        fractions = [index / (num_points - 1) for index in range(num_points)]
        return cls(tuple((fraction, float(function(fraction))) for fraction in fractions))

    def value(self, progress: float) -> float:
        """Return the number on the line between two points; see `Schedule.value`."""
        right = bisect.bisect_right(self.points, progress, key=lambda point: point[0])
        if right == 0:
            return self.points[0][1]
        if right == len(self.points):
            return self.points[-1][1]
        (left_progress, left), (right_progress, after) = self.points[right - 1 : right + 1]
        fraction = (progress - left_progress) / (right_progress - left_progress)
        return _between(left, after, fraction)

    @property
    def is_constant(self) -> bool:
        """Whether all points have the same number."""
        return all(number == self.points[0][1] for _, number in self.points)

    def __str__(self) -> str:
        pairs = (
            f"{fraction:g}" if fraction in (0, 1) else repr(float(fraction))
            for fraction, _ in self.points
        )
        numbers = (repr(float(number)) for _, number in self.points)
        return f"piecewise({', '.join(map(': '.join, zip(pairs, numbers, strict=True)))})"


def parse_schedule(text: str) -> Schedule:
    """Read a schedule from text.

    Args:
        text: a plain number, ``constant(x)``, ``linear(start, end[, until])``,
            ``cosine(start, end[, until])`` or ``piecewise(progress: number, ...)``.

    Returns:
        The schedule; ``parse_schedule(str(schedule)) == schedule``.

    Raises:
        ConfigError: when the text has none of these forms or a number is out of range.
    """
    call = _CALL.fullmatch(text)
    if call is None:
        return Constant(_number(text, text))
    name, inside = call.groups()
    if name == "piecewise":
        return _read_piecewise(text, inside)
    if name not in _FORMS:
        hint = nearest(name, (*_FORMS, "piecewise"))
        raise ConfigError(f"schedule '{text}': unknown name '{name}'{hint}")
    make, counts = _FORMS[name]
    items = inside.split(",")
    if len(items) not in counts:
        wanted = " or ".join(map(str, counts))
        raise ConfigError(f"schedule '{text}': got {len(items)} arguments; expected {wanted}")
    return make(*(_number(item, text) for item in items))


ValueT = TypeVar("ValueT")


def as_python(value: ValueT) -> ValueT:
    """Return a number of NumPy's as one of Python's, and anything else as it is."""
    return cast("ValueT", value.item()) if isinstance(value, np.generic) else value


def as_schedule(value: Scheduled) -> Schedule:
    """Return a schedule as it is, and a number as a constant one.

    Raises:
        ConfigError: when it is neither.
    """
    value = as_python(value)
    if isinstance(value, Schedule):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(
            f"got {value!r}; expected a number or a schedule: text is read by parse_schedule"
        )
    return Constant(float(value))


def _read_piecewise(text: str, inside: str) -> Schedule:
    points = []
    for item in inside.split(","):
        fraction, colon, number = item.partition(":")
        if not colon:
            raise ConfigError(
                f"schedule '{text}': got '{item.strip()}'; expected 'progress: number', as in "
                "piecewise(0: 1.0, 0.5: 0.1)"
            )
        points.append((_number(fraction, text), _number(number, text)))
    return Piecewise(tuple(points))


_FORMS: Mapping[str, tuple[Callable[..., Schedule], Sequence[int]]] = {
    "constant": (Constant, (1,)),
    "linear": (Linear, (2, 3)),
    "cosine": (Cosine, (2, 3)),
}
"""By name: the schedules that are written as a list of numbers, and how many these may be."""


def _number(item: str, text: str) -> float:
    try:
        return float(item)
    except ValueError:
        raise ConfigError(
            f"schedule '{text}': '{item.strip()}' is not a number; expected a form such as "
            "'0.0003' or 'linear(0.0003, 0.0)'"
        ) from None


def _between(start: float, end: float, fraction: float) -> float:
    """Interpolate; exact at both ends, which ``start + fraction * (end - start)`` is not."""
    if fraction >= 1.0 or start == end:
        return end
    return (1.0 - fraction) * start + fraction * end


def _check_finite(name: str, *numbers: float) -> None:
    for number in numbers:
        if not math.isfinite(number):
            raise ConfigError(f"{name}: got {number}; expected a finite number")
