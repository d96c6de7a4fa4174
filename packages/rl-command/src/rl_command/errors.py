"""Errors and warnings of the command: one line each, on standard error."""

import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_ANSI = re.compile(r"\x1b\[[0-9;]*m")


class UsageError(Exception):
    """A mistake of the user: the command exits with status 2 and this message."""


def print_error(message: str) -> None:
    """Print an error."""
    print(f"rl: error: {one_line(message)}", file=sys.stderr)


def print_warning(message: str) -> None:
    """Print a warning."""
    print(f"rl: warning: {one_line(message)}", file=sys.stderr)


def one_line(text: str) -> str:
    """Return a text without line breaks and colours."""
    return " ".join(_ANSI.sub("", text).split())


@contextmanager
def one_line_warnings() -> Iterator[None]:
    """Print Python's warnings within a block like those of the command."""
    before = warnings.formatwarning
    warnings.formatwarning = _formatted
    try:
        yield
    finally:
        warnings.formatwarning = before


@contextmanager
def held_warnings() -> Iterator[None]:
    """Print Python's warnings once a block has succeeded.

    The warnings of a block that fails are dropped, so that its error stands alone.
    """
    with warnings.catch_warnings(record=True) as held:
        yield
    for message in dict.fromkeys(str(warning.message) for warning in held):
        print_warning(message)


def _formatted(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: object = None
) -> str:
    return f"rl: warning: {one_line(str(message))}\n"
