"""The process that one measurement runs in: ``worker.py MODULE:FUNCTION ARGUMENTS RESULT_FILE``."""

import importlib
import json
import os
import pkgutil
import sys
import threading
import time
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # run by path: make the package importable instead of its modules
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from bench.child import Json
from bench.machine import peak_memory_mb, source_version
from bench.plan import Run
from bench.span import Span
from bench.workloads import WORKLOADS


def main(task: str, arguments: str, answer: str) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    result = pkgutil.resolve_name(task)(**json.loads(arguments))
    Path(answer).write_text(json.dumps(result, allow_nan=False), encoding="utf-8")


def measure_speed(
    name: str, system: str, seconds: float, threads: int, device: str
) -> dict[str, Json]:
    """Measure the steady rate of one system on the workload of this name."""
    workload = WORKLOADS[name]
    span = Span(workload.warm_up_marks, seconds)
    if system.startswith("ours"):
        from bench import ours

        is_compiled = system == "ours"
        ours.measure(workload, span, is_compiled=is_compiled, threads=threads, device=device)
    else:
        from bench import peers

        peers.measure(workload, span, system=system, device=device)
    return {
        "rate": span.rate,
        "periods": span.periods,
        "warm_up_seconds": span.warm_up_seconds,
        "peak_memory_mb": peak_memory_mb(),
    }


def measure_import() -> dict[str, Json]:
    """Measure how long importing torch takes, and then importing `rl_core`."""
    start = time.perf_counter()
    import torch

    between = time.perf_counter()
    import rl_core

    end = time.perf_counter()
    assert torch.__name__ in sys.modules
    assert rl_core.__name__ in sys.modules
    return {"torch": between - start, "rl_core": end - between}


def learn(*, weights: str, device: str, **values: Json) -> dict[str, Json]:
    """Carry out one run of a plan, given as plain data."""
    run, path = Run.from_dict(values), Path(weights)
    path.parent.mkdir(parents=True, exist_ok=True)
    start, source = time.perf_counter(), source_version()
    result = _side(run).learn(run, path, device).as_dict()
    wall_seconds = round(time.perf_counter() - start, 1)
    return {**result, "wall_seconds": wall_seconds, "source": source}


def evaluate(*, weights: str, device: str, **values: Json) -> dict[str, Json]:
    """Evaluate the policy that a run kept."""
    run = Run.from_dict(values)
    found: dict[str, Json] = _side(run).evaluate(run, Path(weights), device).as_dict()
    return found


def _side(run: Run) -> Any:
    return importlib.import_module("bench.ours" if run.system == "ours" else "bench.peers")


def _end_with_parent() -> None:
    """Wait until the other end of standard input is closed, and leave."""
    os.read(0, 1)
    os._exit(1)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit(130)
