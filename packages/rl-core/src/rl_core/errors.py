"""Every error that a user of the toolbox can cause, as one small family.

Each message says what was got, what was expected and how to mend it. The command line prints the
message alone and exits with status 2.
"""

import difflib
from collections.abc import Collection, Iterable

from rl_core.other_names import other_names

_BRIEF = 400
"""Characters of another program's message that are shown; the cause holds all of it."""


class RLError(Exception):
    """Base of all errors raised by the toolbox for something its user can mend."""


class ConfigError(RLError, ValueError):
    """An option is unknown, out of range, or contradicts another one."""


class SpaceError(RLError, ValueError):
    """A space is one that the component cannot handle."""


class DataError(RLError, ValueError):
    """An array has the wrong shape or dtype, or holds a value that is not finite."""


class EnvironmentFaultError(RLError, RuntimeError):
    """An environment broke its contract or raised: the message names env, step and field."""


class NonFiniteError(RLError, ArithmeticError):
    """A loss or a gradient became NaN or infinite."""


class MissingExtraError(RLError, ImportError):
    """An optional dependency is not installed; the message holds the `pip install` line."""


class PluginError(RLError, LookupError):
    """A registered name is unknown, ambiguous, forbidden, or holds the wrong class."""


class CheckpointError(RLError, RuntimeError):
    """A checkpoint or run directory is missing, damaged, or does not fit."""


class DeviceError(RLError, RuntimeError):
    """A device that was asked for is not there."""


def in_brief(error: BaseException) -> str:
    """Return the class and the message of somebody else's exception, on one short line.

    Without a message it says where the exception was raised.
    """
    try:
        message = str(error)
    except Exception:
        message = "its message cannot be shown"
    trace = error.__traceback__
    while not message and trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if not message and trace is not None:
        message = f"raised in {trace.tb_frame.f_code.co_filename}, line {trace.tb_lineno}"
    name = type(error).__name__
    text = " ".join(f"{name}: {message}".split()) if message else name
    return text if len(text) <= _BRIEF else f"{text[: _BRIEF - 3]}..."


def closest(name: str, known: Iterable[str]) -> str | None:
    """Return the name that was probably meant, or None if nothing is close.

    Args:
        name: what the user wrote; capitals, and the names of other libraries, are understood.
        known: the names that would have been right.
    """
    lower, by_lower = name.lower(), {right.lower(): right for right in sorted(known)}
    if (meant := known_as(name, by_lower)) is not None:
        return by_lower[meant]
    close = [right for right in by_lower if right.startswith(f"{lower}_")]
    close = close or difflib.get_close_matches(lower, by_lower, n=1, cutoff=0.6)
    return by_lower[close[0]] if close else None


def known_as(name: str, known: Collection[str]) -> str | None:
    """Return what a name is called here, itself or as other libraries' names are, or None.

    Args:
        name: what the user wrote.
        known: the names that would have been right, in small letters.
    """
    lower = name.lower()
    names = (lower, *other_names().get(lower, ()))
    return next((other for other in names if other in known), None)


def nearest(name: str, known: Iterable[str]) -> str:
    """Phrase a suggestion for a mistyped name, see `closest`.

    Returns:
        ``"; did you mean 'x'?"`` when something is close, else ``"; known: a, b, c"``.
    """
    candidates = sorted(known)
    meant = closest(name, candidates)
    if meant is not None:
        return f"; did you mean '{meant}'?"
    return f"; known: {', '.join(candidates)}" if candidates else ""
