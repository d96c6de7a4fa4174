"""Whether and how this machine and this torch compile."""

import os
import shutil
import threading
import warnings
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from rl_core.compile.library import TESTED_TORCH, Run
from rl_core.compile.trace import TracedGraph
from rl_core.errors import ConfigError

_lock = threading.Lock()
_in_process: dict[str, Run] = {}


def compile_in_process(traced: TracedGraph, device: torch.device) -> Run:
    """Compile a graph by `torch.compile`, with its guards; on a GPU as a captured graph.

    Args:
        traced: the graph; one with the same digest is compiled once.
        device: where it runs.
    """
    if device.type == "cpu":
        _say_untested()
    with _lock:
        known = _in_process.get(traced.digest)
        if known is not None:
            return known
        mode = "reduce-overhead" if device.type == "cuda" else None
        compiled = torch.compile(traced.module, fullgraph=True, dynamic=False, mode=mode)

        def run(inputs: list[Tensor]) -> Sequence[Tensor]:
            outputs: Sequence[Tensor] = compiled(*inputs)
            return outputs

        def first(inputs: list[Tensor]) -> Sequence[Tensor]:
            with _lock:  # torch compiles in the first call, and only one graph at a time
                outputs = run(inputs)
                _in_process[traced.digest] = run
            return outputs

        return _in_process.setdefault(traced.digest, first)


@cache
def _say_untested() -> None:
    warnings.warn(
        f"torch {torch.__version__} was not tested with compiled libraries (torch "
        f"{', '.join(TESTED_TORCH)} was): steps are compiled by torch.compile, which is slower",
        RuntimeWarning,
        stacklevel=2,
    )


def check_compiler(device: torch.device) -> None:
    """Make sure that there is what compiling for a device needs.

    Raises:
        ConfigError: when the CPU is compiled for and no C++ compiler is found.
    """
    if device.type == "cpu" and not has_cpp_compiler():
        raise ConfigError(
            "compile='on' needs a C++ compiler and finds none; install g++ or clang++ (or name "
            "one in the environment variable CXX), or use compile='off'"
        )


def has_cpp_compiler() -> bool:
    """Say whether there is a compiler for the CPU."""
    named = os.environ.get("CXX")
    return any(shutil.which(name) for name in ([named] if named else ["g++", "clang++"]))


def compilation_error(what: str, error: Exception) -> ConfigError:
    """Say in one line why compiling failed."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # Torch's first line only names the backend.
    reason = next((line for line in lines if not line.endswith("raised:")), repr(error))
    return ConfigError(
        f"compiling {what} failed ({reason}); make sure that a C++ compiler (g++ or clang++) "
        "works, or use compile='off'"
    )
