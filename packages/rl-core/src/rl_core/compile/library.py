"""Graphs as shared libraries: compiled by another process, kept on disk, called without guards.

AOTInductor writes a library of which a call costs little more than its arithmetic, and which any
process loads without importing the compiler. This is the only module that uses torch's loader of
such libraries, ``torch._C._aoti``.
"""

import atexit
import hashlib
import json
import os
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cache
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor

from rl_core.compile.cache import LIBRARY, MADE, GraphCache
from rl_core.compile.process import ERRORS, compile_folder, has_cpp_compiler, stop_compilers
from rl_core.compile.trace import TracedGraph

TESTED_TORCH = ("2.13", "2.14", "2.15")
"""Versions whose libraries were tested; with any other one `torch.compile` serves."""

Run: TypeAlias = Callable[[list[Tensor]], Sequence[Tensor]]
"""What calls a compiled graph with all that it takes."""

SPEC = "graph.json"
"""What the compiling process reads."""

_PARTS = ("worker.py", "products.py", "scalars.py", "runtime.h")
"""Files that decide, beside torch, what becomes of a graph."""

_LONGEST_SECONDS = 600.0
"""After so long the compiler is taken to hang: most graphs take it ten seconds, and some fifty."""

_lock = threading.Lock()
_loaded: dict[str, Run] = {}
_running: dict[str, "Compilation"] = {}


class CompileError(Exception):
    """The compiler failed; the message is its own."""


def is_supported() -> bool:
    """Say whether libraries were tested with this torch, and can be loaded."""
    version = ".".join(torch.__version__.split(".")[:2])
    return version in TESTED_TORCH and hasattr(
        getattr(torch._C, "_aoti", None), "AOTIModelContainerRunnerCpu"
    )


class Compilation:
    """A library on its way: made by a process of its own, unless it is there already."""

    def __init__(self, key: str, traced: TracedGraph) -> None:
        self._key = key
        self._traced = traced
        self._cache = GraphCache.shared()
        self._until: Connection | None = None  # ends when the graph is compiled
        self._error: CompileError | None = None
        self._lock = threading.Lock()
        if key not in _loaded and key not in self._cache:
            self._start()

    @classmethod
    def of(cls, traced: TracedGraph) -> "Compilation":
        """Return the compilation of a graph, the one under way where there is one."""
        key = _key(traced)
        with _lock:
            made = _running.get(key)
            if made is None:
                made = _running[key] = cls(key, traced)
            return made

    def finish(self, seconds: float | None = None) -> Run | None:
        """Wait for the library and load it.

        Args:
            seconds: how long to wait; None waits as long as it takes.

        Returns:
            What calls it; None where it is not there yet.

        Raises:
            CompileError: when it cannot be compiled.
        """
        with self._lock:
            if self._error is not None:  # another one that waited was told
                raise self._error
            if self._key not in _loaded:
                try:
                    run = self._load() if self._is_over(seconds) else None
                    if run is None:
                        return None
                    _loaded[self._key] = run
                except CompileError as error:
                    self._error = error
                    self._cache.discard(self._key)
                    _running.pop(self._key, None)
                    raise
            _running.pop(self._key, None)
            return _loaded[self._key]

    def _start(self) -> None:
        if not has_cpp_compiler():
            raise CompileError("no C++ compiler was found")
        self._started = time.monotonic()
        self._work = self._cache.new_folder(self._key)
        spec = {
            "source": self._traced.source,
            "forms": [asdict(form) for form in self._traced.forms],
            "threads": torch.get_num_threads(),
        }
        (self._work / SPEC).write_text(json.dumps(spec), encoding="utf-8")
        (self._work / ERRORS).touch()
        self._until = compile_folder(self._work, self._cache.compiler_folder())

    def _is_over(self, seconds: float | None) -> bool:
        if self._until is None:
            return True
        if not wait([self._until], seconds):
            if time.monotonic() - self._started > _LONGEST_SECONDS:
                stop_compilers()
                raise CompileError(f"the compiler took more than {_LONGEST_SECONDS:.0f} s")
            return False
        self._until.close()
        if (self._work / MADE / LIBRARY).exists():
            return True
        message = (self._work / ERRORS).read_text(encoding="utf-8", errors="replace")
        raise CompileError(message.strip() or "the compiler was stopped")

    def _load(self) -> Run | None:
        """Load the library; None where it is damaged, and is compiled again."""
        try:
            if self._until is not None:
                self._cache.publish(self._key)
            library = str(self._cache.verified(self._key))
            return torch._C._aoti.AOTIModelContainerRunnerCpu(library, 1).run
        except (OSError, ValueError, RuntimeError) as error:
            if self._until is not None:
                raise CompileError(
                    f"what was compiled cannot be kept or loaded: {error}"
                ) from error
            warnings.warn(  # the same words for all of them, which are shown once
                f"compiled graphs in {self._cache.folder} are damaged and are compiled again",
                RuntimeWarning,
                stacklevel=2,
            )
            self._cache.remove(self._key)
            self._start()
            return None


@atexit.register
def _discard_unfinished() -> None:
    stop_compilers()
    for key in _running:
        GraphCache.shared().discard(key)


def _key(traced: TracedGraph) -> str:
    """Identify a library: by what it computes, what made it, and for which processor."""
    parts = [traced.digest, _machine(), str(torch.get_num_threads()), os.environ.get("CXX", "")]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


@cache
def _machine() -> str:
    """Say what makes libraries here, and for which processor."""
    return "\n".join(
        [
            torch.__version__,
            torch.__config__.show(),
            str(torch.cpu.get_capabilities()),
            *[Path(__file__).with_name(name).read_text(encoding="utf-8") for name in _PARTS],
        ]
    )
