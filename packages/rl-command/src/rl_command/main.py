"""The ``rl`` command: which command it is, and how it ends."""

import difflib
import os
import sys
from collections.abc import Callable, Sequence

from rl_command import __version__
from rl_command.errors import UsageError, one_line_warnings, print_error

_HELP = """\
usage: rl [-h] [--version] COMMAND ...

Train, resume and evaluate reinforcement-learning agents.

  rl train ALGO ENV   train an agent, such as: rl train ppo CartPole-v1
  rl resume RUN_DIR   go on with a run from its newest checkpoint
  rl eval RUN_DIR     evaluate the policy of a run
  rl list             list algorithms, environments and other components

rl COMMAND --help shows the options of a command.
"""

_MISSING = {
    "train": "ALGO is missing; give both names, as in rl train ppo CartPole-v1, or a --config",
    "resume": "RUN_DIR is missing, as in rl resume runs/cartpole",
    "eval": "RUN_DIR is missing, as in rl eval runs/cartpole",
}
"""What commands that cannot stand alone say."""

USAGE_ERROR = 2
BROKEN_PIPE = 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: words after ``rl``; None takes those of the process.

    Returns:
        The exit status: 0 when all went well, 2 when the user got something wrong, 130 when
        interrupted.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        with one_line_warnings():
            status = _dispatch(words)
        sys.stdout.flush()
    except UsageError as error:
        print_error(str(error))
        return USAGE_ERROR
    except BrokenPipeError:
        _silence_stdout()
        return BROKEN_PIPE
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print_error(f"{where}{error.strerror or error}")
        return USAGE_ERROR
    except KeyboardInterrupt:
        print("rl: interrupted", file=sys.stderr)
        return 130
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    return status


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
        hint = f"did you mean '{close[0]}'?" if close else "rl --help shows what there is"
        raise UsageError(f"unknown {what} '{name}'; {hint}")
    if not rest and name in _MISSING:
        raise UsageError(_MISSING[name])
    from rl_core.errors import RLError  # brings PyTorch, which takes seconds to import

    try:
        return _COMMANDS[name](rest)
    except RLError as error:
        raise UsageError(str(error)) from error


def _train(words: Sequence[str]) -> int:
    from rl_command.training import train

    return train(words)


def _resume(words: Sequence[str]) -> int:
    from rl_command.training import resume

    return resume(words)


def _evaluate(words: Sequence[str]) -> int:
    from rl_command.evaluation import evaluate

    return evaluate(words)


def _list(words: Sequence[str]) -> int:
    from rl_command.listing import list_plugins

    return list_plugins(words)


_COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "train": _train,
    "resume": _resume,
    "eval": _evaluate,
    "list": _list,
}


def _silence_stdout() -> None:
    """Let nothing more be written, so that the interpreter ends without a complaint."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        sys.stdout = None
