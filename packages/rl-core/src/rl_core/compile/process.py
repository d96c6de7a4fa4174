"""The process that compiles graphs, seen from the run. This module imports no PyTorch."""

import atexit
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from multiprocessing.reduction import send_handle
from pathlib import Path
from typing import IO

from rl_core.compile.cache import GraphCache

ERRORS = "errors"
"""What the compiler has to say if it fails."""

_GPU = Path("/dev/nvidiactl")
"""There with the driver of a GPU, which runs take unless told otherwise."""


class _Compiler:
    """The process that compiles. It ends when nobody asks for anything for a while.

    Args:
        own: folder in which it keeps what it can use again.
        errors: what it says before it is ready; None throws that away.
    """

    def __init__(self, own: str, errors: IO[bytes] | None) -> None:
        self._requests, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "rl_core.compile.worker"],
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                    "TORCHINDUCTOR_CACHE_DIR": own,
                    "TMPDIR": own,  # where it keeps the headers that it compiles once
                    # It knows the processor; trying vector code first takes it 8 s.
                    "TORCHINDUCTOR_VEC_ISA_OK": "1",
                },
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=errors or subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C in a terminal is for this process to act on
            )

    def compile(self, work: Path) -> Connection:
        """Have a folder's graph compiled, and return a connection that ends when it is.

        Raises:
            OSError: when the process has ended.
        """
        over, until = Pipe(duplex=False)
        with until:
            self._requests.send_bytes(os.fsencode(work))
            send_handle(self._requests, until.fileno(), None)
        return over

    def stop(self) -> None:
        """End it with all that it started."""
        self._requests.close()
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


_USUAL_COMPILER = "clang++" if sys.platform == "darwin" else "g++"
"""What torch calls where the environment variable CXX names nothing."""

_compilers: dict[tuple[str, str], _Compiler] = {}


def start_early() -> None:
    """Start the process that compiles, where nothing was ever compiled: a run will need it.

    It imports the compiler while this process imports PyTorch. On a GPU nothing is compiled.
    """
    if _GPU.exists() or not has_cpp_compiler():
        return
    cache = GraphCache.shared()
    with suppress(OSError):  # whoever needs it says so
        own = cache.compiler_folder()
        if cache.is_empty() and _key(own) not in _compilers:
            _start(own, None)


def compile_folder(work: Path, own: str) -> Connection:
    """Have a folder's graph compiled by the process that compiles, or by a new one.

    Args:
        work: the folder.
        own: folder in which the compiler keeps what it can use again.

    Returns:
        A connection that ends when it is compiled.
    """
    key = _key(own)
    with suppress(KeyError, OSError):
        return _compilers[key].compile(work)
    if key in _compilers:
        _compilers[key].stop()
    with (work / ERRORS).open("wb") as errors:
        return _start(own, errors).compile(work)


def has_cpp_compiler() -> bool:
    """Say whether there is the compiler that torch calls for the CPU."""
    named = os.environ.get("CXX")
    return shutil.which(named or _USUAL_COMPILER) is not None


def _start(own: str, errors: IO[bytes] | None) -> _Compiler:
    made = _compilers[_key(own)] = _Compiler(own, errors)
    return made


def _key(own: str) -> tuple[str, str]:
    return own, os.environ.get("CXX", "")


@atexit.register
def stop_compilers() -> None:
    """End all processes that compile for this one."""
    while _compilers:
        _compilers.popitem()[1].stop()
