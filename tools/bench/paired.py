"""How fast this tree trains, beside another state of it: whole loops, in turn, on one machine.

    git worktree add ../before COMMIT
    hatch run bench:paired ../before --only sac-halfcheetah

Both states train in processes of their own, one of which always waits while the other runs for a
few seconds. A pair's ratio is this tree's speed divided by the other's. One process of the same
state may be a tenth slower than the next, all the time that it runs: each pair of processes
trains for a few rounds, and the median is over all pairs. Run nothing else meanwhile.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

if __name__ == "__main__":  # run by path: make the package importable instead of its modules
    tree = Path(os.environ.get("RL_BENCH_TREE", Path(__file__).resolve().parents[2]))
    sys.path[:1] = [str(tree / "tools"), *map(str, sorted(tree.glob("packages/*/src")))]

from bench.child import thread_environment
from bench.machine import machine_line
from bench.span import Span
from bench.workloads import WORKLOADS

_HERE = Path(__file__).resolve().parents[2]


class Chunks(Span):
    """Marks of a training run that stops after each chunk until it is told to go on.

    Args:
        warm_up_marks: marks before the first chunk.
        seconds: length of a chunk.
    """

    def __init__(self, warm_up_marks: int, seconds: float) -> None:
        super().__init__(warm_up_marks, seconds)
        self._left = warm_up_marks
        self._chunk = seconds
        self._since: tuple[float, int] | None = None

    def mark(self, count: int) -> bool:
        """Take note of a finished update.

        Args:
            count: steps since the beginning.

        Returns:
            whether training is over.
        """
        if self._left > 0:
            self._left -= 1
            return False
        if self._since is None:
            return self._wait(count, "warm")
        start, before = self._since
        passed = time.perf_counter() - start
        return passed >= self._chunk and self._wait(count, str((count - before) / passed))

    def _wait(self, steps: int, message: str) -> bool:
        print(message, flush=True)
        is_over = sys.stdin.readline().strip() != "go"
        self._since = time.perf_counter(), steps
        return is_over


class State:
    """One state of the tree, training a workload in a process of its own."""

    def __init__(self, tree: Path, workload: str, threads: int, seconds: float) -> None:
        environment = {**thread_environment(os.environ, threads), "RL_BENCH_TREE": str(tree)}
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--train", workload, str(threads), str(seconds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )

    def read(self) -> str:
        """Return what the process prints next."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line:
            raise SystemExit("a training process ended; its own output says why")
        return line

    def rate(self) -> float:
        """Train for a chunk and return the steps per second."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        return float(self.read())

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(prog="paired", description=__doc__)
    parser.add_argument("before", type=Path, help="folder with the other state's work tree")
    parser.add_argument("--only", action="append", choices=list(WORKLOADS), help="may be repeated")
    parser.add_argument("--processes", type=int, default=4, help="pairs of processes")
    parser.add_argument("--rounds", type=int, default=3, help="of each pair of processes")
    parser.add_argument("--seconds", type=float, default=4.0, help="length of a chunk")
    options = parser.parse_args()
    print(machine_line(1))
    for name in options.only or WORKLOADS:
        ratios = [
            ratio
            for number in range(options.processes)
            for ratio in compare(
                options.before.resolve(), name, options.rounds, options.seconds, number % 2 == 0
            )
        ]
        low, high = min(ratios), max(ratios)
        print(f"{name}: {statistics.median(ratios):.3f} ({low:.3f} to {high:.3f})", flush=True)
    return 0


def compare(
    before: Path, name: str, rounds: int, seconds: float, before_first: bool
) -> list[float]:
    """Return the ratios of a few rounds of one workload, by two new processes."""
    threads = WORKLOADS[name].threads
    states: list[State] = []
    ratios = []
    try:
        for tree in (before, _HERE):
            states.append(State(tree, name, threads, seconds))
            states[-1].read()  # alone until it is warm
        for number in range(rounds):
            order = (0, 1) if (number % 2 == 0) is before_first else (1, 0)
            rates = {index: states[index].rate() for index in order}
            ratios.append(rates[1] / rates[0])
    finally:
        for state in states:
            state.close()
    return ratios


def train(arguments: Sequence[str]) -> None:
    """Train a workload with the toolbox until the other side has enough."""
    from bench import ours

    name, threads, seconds = arguments
    workload = WORKLOADS[name]
    chunks = Chunks(workload.warm_up_marks + 5, float(seconds))
    ours.measure(workload, chunks, is_compiled=True, threads=int(threads))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--train"]:
        train(sys.argv[2:])
    else:
        sys.exit(main())
