"""Run what a page tells its readers to type, with fewer steps.

The Python blocks and the ``rl`` commands of a page run one after the other, in the current
directory; the Python blocks share their names, as if typed into one session. Blocks of Python, TOML
or JSON that are titled with a file's name are written to that file and not run.
Every count of steps and updates is divided by 50 and every count of episodes by 10, so that a page
takes seconds. Commands that replay transitions begin to learn after 50 steps, lest they end before
that.

    python tools/snippets.py PAGE
"""

import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

STEPS_DIVISOR, EPISODES_DIVISOR = 50, 10

_BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(
    r'^```(?:python|toml|json) title="([\w.]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL
)
_PYTHON_COUNT = re.compile(r"\b(total_steps|total_updates|num_episodes)=([\d_]+)")
_REPLAYING = re.compile(r"train (dqn|rainbow|ddpg|td3|sac) (?!.*--algorithm.update-after)")
_CONSOLE_COUNT = re.compile(r"--(total-steps|total-updates|episodes) (\d+)")


@dataclass(frozen=True, slots=True)
class Snippet:
    """One thing to run.

    Attributes:
        text: a Python block, or the words after ``rl``.
        is_command: whether it is a command line.
        line: where it begins in the page, from 1.
    """

    text: str
    is_command: bool
    line: int


def main() -> int:
    """Run the page named on the command line."""
    run_page(Path(sys.argv[1]))
    return 0


def run_page(page: Path) -> None:
    """Run everything a page says, in the current directory.

    Raises:
        RuntimeError: when a command does not end with status 0.
    """
    from rl_command.main import main as rl

    names: dict[str, object] = {"__name__": "__main__"}
    whole = page.read_text(encoding="utf-8")
    for name, text in _FILE.findall(whole):
        Path(name).write_text(text, encoding="utf-8")
    for snippet in snippets(whole):
        place = f"{page.name}:{snippet.line}"
        text = scaled(snippet.text)
        if not snippet.is_command:
            exec(compile("\n" * snippet.line + text, str(page), "exec"), names)
        elif status := rl(shlex.split(text)):
            raise RuntimeError(f"{place}: rl {text} ended with status {status}")


def snippets(page: str) -> Iterator[Snippet]:
    """Yield the Python blocks and the ``rl`` commands of a page, in order."""
    for block in _BLOCK.finditer(page):
        line = page.count("\n", 0, block.start()) + 1
        if block[1] == "python":
            yield Snippet(block[2], False, line)
            continue
        for command in block[2].replace("\\\n", " ").splitlines():
            if command.startswith("$ rl "):
                yield Snippet(command.removeprefix("$ rl "), True, line)


def scaled(text: str) -> str:
    """Divide the counts of steps and episodes in a snippet, and let it learn early."""
    if "--preset" in text and "--total-" not in text:  # it would train as long as the preset
        text += f" --total-steps {100 * STEPS_DIVISOR}"
    text = _PYTHON_COUNT.sub(lambda m: f"{m[1]}={_fewer(m[1], m[2])}", text)
    if _REPLAYING.match(text):
        text += f" --algorithm.update-after {STEPS_DIVISOR}"
    return _CONSOLE_COUNT.sub(lambda m: f"--{m[1]} {_fewer(m[1], m[2])}", text)


def _fewer(name: str, digits: str) -> int:
    divisor = EPISODES_DIVISOR if "episodes" in name else STEPS_DIVISOR
    return max(1, int(digits.replace("_", "")) // divisor)


if __name__ == "__main__":
    sys.exit(main())
