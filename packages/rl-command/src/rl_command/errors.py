"""Errors and warnings of the command: one line each, on standard error."""

import io
import os
import re
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress

_LIBRARIES = re.compile(
    r"[\\/](site-packages|python3[^\\/]*|rl_(core|envs|storages|algos_\w+|meta|train|command))[\\/]"
    r"|^<"
)
"""Files that are not the user's own."""

_SAVED = "rl-train: "
"""With this begin the notes on errors that say what was saved before them."""

_ANSI = re.compile(r"\x1b\[[0-9;]*m")


class UsageError(Exception):
    """A mistake of the user: the command exits with status 2 and this message."""


def print_error(message: str) -> None:
    """Print an error."""
    print(f"rl: error: {one_line(message)}", file=sys.stderr)


def print_warning(message: str) -> None:
    """Print a warning."""
    print(f"rl: warning: {one_line(message)}", file=sys.stderr)


def described(error: BaseException, message: str | None = None) -> str:
    """Return an error's message, where the user's own code raised it, and what was saved.

    Args:
        error: one of ours, which others may have caused, or an `OSError`.
        message: stands in the place of the error's own.
    """
    saved = [note for note in getattr(error, "__notes__", ()) if note.startswith(_SAVED)]
    whole = str(error) if message is None else message
    return "; ".join([f"{whole}{_origin(error)}", *(note.removeprefix(_SAVED) for note in saved)])


def _origin(error: BaseException) -> str:
    first = error
    while first.__cause__ is not None:
        first = first.__cause__
    if first is error and not isinstance(error, OSError):
        return ""
    for frame in reversed(traceback.extract_tb(first.__traceback__)):
        if not _LIBRARIES.search(frame.filename):
            return f" ({frame.filename}, line {frame.lineno})"
    return ""


def one_line(text: str) -> str:
    """Return a text without line breaks and colors."""
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


@contextmanager
def stdout_kept_clean() -> Iterator[None]:
    """Redirect what the user's modules and environments print within a block to standard error."""
    sys.stdout.flush()
    kept = None
    with suppress(io.UnsupportedOperation):
        kept = os.dup(1) if sys.stdout.fileno() == 1 else None
    try:
        if kept is not None:
            os.dup2(2, 1)  # also for libraries in C, and for worker processes
        with redirect_stdout(sys.stderr):
            yield
    finally:
        if kept is not None:
            os.dup2(kept, 1)
            os.close(kept)
