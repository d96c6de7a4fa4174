"""Whether and how this machine and this torch compile."""

import warnings
from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor

from rl_core.compile.cache import GraphCache
from rl_core.compile.library import TESTED_TORCH, Run
from rl_core.compile.process import has_cpp_compiler
from rl_core.compile.recorder import TraceError
from rl_core.compile.trace import TracedGraph, tracing_lock
from rl_core.errors import ConfigError

_in_process: dict[str, Run] = {}


class InProcess:
    """What `torch.compile` makes of a graph, with its guards.

    Args:
        traced: the graph; one with the same digest is compiled once.
        device: where it runs.
    """

    def __init__(self, traced: TracedGraph, device: torch.device) -> None:
        self._traced = traced
        if device.type == "cpu":
            _say_untested()

    def finish(self, seconds: float | None = None) -> Run:
        """Return what calls the graph; torch compiles it in the first call."""
        traced = self._traced
        with tracing_lock:
            if traced.digest not in _in_process:
                compiled = torch.compile(traced.module, fullgraph=True, dynamic=False)
                _in_process[traced.digest] = _locked(compiled)
            return _in_process[traced.digest]


def _locked(compiled: Callable[..., Sequence[Tensor]]) -> Run:
    """Let one thread at a time call a graph, in whose first call torch compiles.

    Nobody may trace meanwhile: torch refuses to call what it compiled while it traces anything.
    """
    is_compiled = False

    def run(inputs: list[Tensor]) -> Sequence[Tensor]:
        nonlocal is_compiled
        with tracing_lock:
            if is_compiled:
                return compiled(*inputs)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of what torch itself uses
                outputs = compiled(*inputs)
            is_compiled = True
            return outputs

    return run


@cache
def _say_untested() -> None:
    warnings.warn(
        f"torch {torch.__version__} is not among those whose compiled steps are fast "
        f"({', '.join(TESTED_TORCH)}), so torch.compile serves, which is slower",
        RuntimeWarning,
        stacklevel=2,
    )


def check_compiler(device: torch.device) -> None:
    """Make sure that there is what compiling for a device needs.

    Raises:
        ConfigError: when the CPU is compiled for, no C++ compiler is found, and nothing was
            compiled before.
    """
    if device.type == "cpu" and not has_cpp_compiler() and GraphCache.shared().is_empty():
        raise ConfigError(
            "compile='on' needs a C++ compiler and finds none; install g++ (or name another "
            "in the environment variable CXX), or set trainer.compile to 'off'"
        )


def compilation_error(what: str, error: Exception, device: torch.device) -> ConfigError:
    """Say in one line why compiling failed, and how to mend it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # Torch's first line only names the backend.
    reason = next((line for line in lines if not line.endswith("raised:")), repr(error))
    mend = "make sure that the C++ compiler (g++, or what CXX names) works, or "
    if isinstance(error, TraceError):
        mend = "change that, or "
    elif "Errno" in str(error) or "No space left" in str(error):
        mend = "make sure that the folder in RL_CACHE_DIR can be written to, or "
    elif device.type == "cuda":  # which needs none
        mend = ""
    return ConfigError(f"compiling {what} failed ({reason}); {mend}set trainer.compile to 'off'")
