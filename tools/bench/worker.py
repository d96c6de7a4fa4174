"""The process that one measurement runs in: ``worker.py TASK PAYLOAD RESULT_FILE``."""

import importlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

if __name__ == "__main__":  # run by path: make the package importable instead of its modules
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from bench.child import Json
from bench.machine import peak_memory_mb, source_version
from bench.plan import Run
from bench.span import Span
from bench.workloads import WORKLOADS


def main(task: str, payload: str, answer: str) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    result = _TASKS[task](json.loads(payload))
    Path(answer).write_text(json.dumps(result, allow_nan=False), encoding="utf-8")


def measure_speed(payload: Mapping[str, Json]) -> dict[str, Json]:
    """Measure the steady rate of one system on one workload."""
    workload = WORKLOADS[cast("str", payload["workload"])]
    system, device = cast("str", payload["system"]), cast("str", payload["device"])
    span = Span(workload.warm_up_marks, cast("float", payload["seconds"]))
    if system.startswith("ours"):
        from bench import ours

        ours.measure(
            workload,
            span,
            is_compiled=system == "ours",
            threads=cast("int", payload["threads"]),
            device=device,
        )
    else:
        from bench import peers

        peers.measure(workload, span, system=system, device=device)
    return {
        "rate": span.rate,
        "periods": span.periods,
        "warm_up_seconds": span.warm_up_seconds,
        "peak_memory_mb": peak_memory_mb(),
    }


def measure_import(payload: Mapping[str, Json]) -> dict[str, Json]:
    """Measure how long importing torch takes, and then importing `rl_core`."""
    start = time.perf_counter()
    import torch

    between = time.perf_counter()
    import rl_core

    end = time.perf_counter()
    assert torch.__name__ in sys.modules
    assert rl_core.__name__ in sys.modules
    return {"torch": between - start, "rl_core": end - between}


def measure_products(payload: Mapping[str, Json]) -> dict[str, Json]:
    """Measure the machine's matrix products, and count those of a gradient step."""
    from bench import products

    workload = WORKLOADS[cast("str", payload["workload"])]
    return {**products.measure(workload, cast("float", payload["seconds"]))}


def measure_replay(payload: Mapping[str, Any]) -> dict[str, Json]:
    """Measure one system's replay buffer in one operation."""
    from bench import replay_run

    return {**replay_run.measure(**payload)}


def measure_replay_bytes(payload: Mapping[str, Json]) -> dict[str, Json]:
    """Ask one system's replay buffer for the bytes of its data."""
    from bench import replay_run

    data, system = cast("str", payload["data"]), cast("str", payload["system"])
    return {"bytes": replay_run.count_bytes(data, system, cast("int", payload["size"]))}


def measure_envs(payload: Mapping[str, Any]) -> dict[str, Json]:
    """Measure how fast a system steps environments."""
    from bench import envs_run

    return {**envs_run.measure(**payload)}


def measure_envs_added(payload: Mapping[str, Any]) -> dict[str, Json]:
    """Measure what one of our vectorizers adds to another one's step."""
    from bench import envs_run

    return {**envs_run.measure_added(**payload)}


def learn(payload: Mapping[str, Json]) -> dict[str, Json]:
    """Carry out one run of a plan."""
    run, weights = Run.from_dict(payload), Path(cast("str", payload["weights"]))
    weights.parent.mkdir(parents=True, exist_ok=True)
    start, source = time.perf_counter(), source_version()
    result = _side(run).learn(run, weights, payload["device"]).as_dict()
    wall_seconds = round(time.perf_counter() - start, 1)
    return {**result, "wall_seconds": wall_seconds, "source": source}


def evaluate(payload: Mapping[str, Json]) -> dict[str, Json]:
    """Evaluate the policy that a run kept."""
    run, weights = Run.from_dict(payload), Path(cast("str", payload["weights"]))
    found: dict[str, Json] = _side(run).evaluate(run, weights, payload["device"]).as_dict()
    return found


def _side(run: Run) -> Any:
    return importlib.import_module("bench.ours" if run.system == "ours" else "bench.peers")


def clone(payload: Mapping[str, Json]) -> dict[str, Json]:
    """Train an expert and its clones."""
    from bench import cloning_run

    return cloning_run.clone(payload)


def _end_with_parent() -> None:
    """Wait until the other end of standard input is closed, and leave."""
    os.read(0, 1)
    os._exit(1)


_TASKS: Mapping[str, Callable[[Mapping[str, Json]], dict[str, Json]]] = {
    "speed": measure_speed,
    "import": measure_import,
    "products": measure_products,
    "replay": measure_replay,
    "replay-bytes": measure_replay_bytes,
    "envs": measure_envs,
    "envs-added": measure_envs_added,
    "learn": learn,
    "evaluate": evaluate,
    "clone": clone,
}


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit(130)
