"""Checks of plain data, and the words in which messages name what and where it is."""

import math

from rl_core.errors import ConfigError

MAX_DEPTH = 32


def finite(value: float, path: str) -> float:
    """Return a number.

    Raises:
        ConfigError: when it is infinite or not a number.
    """
    if not math.isfinite(value):
        raise ConfigError(f"{at(path)}got {value}; expected a finite number")
    return value


def text_key(key: object, path: str) -> str:
    """Return the key of a table.

    Raises:
        ConfigError: when it is not text.
    """
    if not isinstance(key, str):
        raise ConfigError(f"{at(path)}got the key {got(key)}; expected text")
    return key


def join(path: str, key: object) -> str:
    """Return the path of what stands under a key."""
    return f"{path}.{key}" if path else str(key)


def at(path: str) -> str:
    """Return how a message about a path begins; about the whole it begins with nothing."""
    return f"{path}: " if path else ""


def printed(data: object) -> str:
    """Return what Python prints of an object, which refuses integers of many thousand digits."""
    try:
        return repr(data)
    except ValueError:
        return "a very large integer"


def got(data: object) -> str:
    """Describe what was given: its text, cut short, and its type."""
    text = printed(data)
    shown = text if len(text) <= 60 else f"{text[:57]}..."
    return "None" if data is None else f"{shown} ({type(data).__name__})"
