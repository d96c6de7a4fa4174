"""Entry point of the ``rl`` command: choosing the command, and the exit status."""

import difflib
import os
import pkgutil
import select
import sys
from collections.abc import Sequence
from contextlib import suppress
from io import TextIOWrapper

from rl_command import __version__
from rl_command.errors import UsageError, described, one_line_warnings, print_error

_HELP = """\
usage: rl [-h] [--version] COMMAND ...

Train, resume and evaluate reinforcement-learning agents.

  rl train ALGO ENV   train an agent, such as: rl train ppo CartPole-v1
  rl resume RUN_DIR   continue a run from its newest checkpoint
  rl eval RUN_DIR     evaluate the policy of a run, or of several seeds
  rl plot RUN_DIRS    draw learning curves, with a band over seeds
  rl list             list algorithms, environments and other components

rl COMMAND --help shows the options of a command.
"""

_MISSING = {
    "train": "ALGO is missing; give both names, as in rl train ppo CartPole-v1, or a --config",
    "resume": "RUN_DIR is missing, as in rl resume runs/cartpole",
    "eval": "RUN_DIR is missing, as in rl eval runs/cartpole",
    "plot": "RUN_DIRS... is missing, as in rl plot runs/cartpole",
}
"""Errors of commands that need arguments."""

_COMMANDS = {
    "train": "training:train",
    "resume": "training:resume",
    "eval": "evaluation:evaluate",
    "plot": "plot:plot",
    "list": "listing:list_plugins",
}
"""The function of each command, imported when it is called."""

_OTHER_NAMES = {"enjoy": "eval", "test": "eval", "play": "eval", "learn": "train", "run": "train"}
"""Commands by the names that other libraries give them."""

USAGE_ERROR = 2
BROKEN_PIPE = 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: words after ``rl``; None takes those of the process.

    Returns:
        Exit status: 0 on success, 2 for a mistake of the user, 130 when interrupted.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    _mend_streams()
    try:
        with one_line_warnings():
            status = _dispatch(words)
        sys.stdout.flush()
    except UsageError as error:
        print_error(str(error))
        return USAGE_ERROR
    except OSError as error:
        if isinstance(error, BrokenPipeError) and _is_output_closed():
            _silence_stdout()
            return BROKEN_PIPE
        where = f"{error.filename}: " if error.filename else ""
        print_error(described(error, f"{where}{error.strerror or error}"))
        return USAGE_ERROR
    except KeyboardInterrupt:
        print("rl: interrupted", file=sys.stderr)
        return 130
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    return status


def _mend_streams() -> None:
    """Write into nothing where a stream is closed, and ``?`` for what the output cannot show."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  # to the end
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def _dispatch(words: Sequence[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        print(_HELP, end="")
        return 0
    if words[0] == "--version":
        print(f"rl {__version__}")
        return 0
    name, *rest = words
    if name not in _COMMANDS:
        what = "option" if name.startswith("-") else "command"
        close = difflib.get_close_matches(name, (*_COMMANDS, "--help", "--version"), n=1)
        close = [_OTHER_NAMES[name]] if name in _OTHER_NAMES else close
        hint = f"did you mean '{close[0]}'?" if close else "rl --help lists them"
        raise UsageError(f"unknown {what} '{name}'; {hint}")
    if not rest and name in _MISSING:
        raise UsageError(_MISSING[name])
    from rl_core.errors import RLError  # --help needs nothing of it

    unneeded = {"-h", "--help", "--help-all", "off", "--trainer.compile=off", "--compile=off"}
    if name == "train" and not unneeded.intersection(rest):
        from rl_core.compile import start_early

        start_early()
    try:
        status: int = pkgutil.resolve_name(f"rl_command.{_COMMANDS[name]}")(rest)
    except RLError as error:
        raise UsageError(described(error)) from error
    return status


def _is_output_closed() -> bool:
    """Return whether nobody reads standard output or standard error any more."""
    poll = select.poll()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            poll.register(stream, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _silence_stdout() -> None:
    """Discard further output, so that the interpreter exits without an error."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        sys.stdout = None
