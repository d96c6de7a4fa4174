"""Where compiled graphs are kept between runs: a folder of the user's own."""

import hashlib
import os
import shutil
import stat
import tempfile
import time
import uuid
import warnings
from functools import cache
from pathlib import Path

LIBRARY = "graph.so"
"""The file that is loaded."""

MADE = "made"
"""The folder, in that of a compilation, that the library is written to."""

_DIGEST = "sha256"
_OLD_SECONDS = 24 * 3600.0
"""Age at which what an interrupted compilation left is removed."""


class GraphCache:
    """Compiled graphs by key, each in a folder that appears whole or not at all.

    Args:
        folder: made where it is missing; it must belong to the user alone.

    Raises:
        OSError: when it cannot be made, or others may write into it.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
        if found.st_uid != os.getuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise PermissionError(f"{folder} belongs to somebody else, or others may write into it")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(f"{folder} cannot be written into")
        self.folder = folder
        self._new: dict[str, Path] = {}
        for left in folder.glob("new-*"):
            if time.time() - left.stat().st_mtime > _OLD_SECONDS:
                shutil.rmtree(left, ignore_errors=True)

    @staticmethod
    @cache
    def shared() -> "GraphCache":
        """Return the one of this process.

        It is ``RL_CACHE_DIR``, or ``rl-toolbox`` in the user's cache folder; where that cannot be
        used, one of this process alone, with one warning.
        """
        own = os.environ.get("RL_CACHE_DIR")
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        folder = Path(own) if own else Path(home) / "rl-toolbox"
        try:
            return GraphCache(folder / "graphs")
        except (OSError, RuntimeError) as error:
            warnings.warn(
                f"compiled graphs cannot be kept ({error}), so that every run compiles anew; name "
                "a folder of your own in the environment variable RL_CACHE_DIR",
                RuntimeWarning,
                stacklevel=2,
            )
            return GraphCache(Path(tempfile.mkdtemp(prefix="rl-toolbox-")))

    def __contains__(self, key: str) -> bool:
        """Say whether there is a compiled graph of this key."""
        return (self.folder / key / _DIGEST).exists()

    def is_empty(self) -> bool:
        """Say whether no graph was ever compiled here."""
        return not any(self.folder.glob(f"*/{_DIGEST}"))

    def compiler_folder(self) -> str:
        """Return the folder in which the compiler keeps what it can use again.

        Its own choice would be a folder of a known name that other users can make before.
        """
        folder = self.folder / "inductor"
        folder.mkdir(mode=0o700, exist_ok=True)
        return str(folder)

    def new_folder(self, key: str) -> Path:
        """Make a folder to compile a graph in."""
        folder = self._new[key] = self.folder / f"new-{uuid.uuid4().hex}"
        folder.mkdir(mode=0o700)
        (folder / MADE).mkdir()
        return folder

    def publish(self, key: str) -> None:
        """Let what was compiled be found, unless another process was first.

        Raises:
            OSError: when it is not there or cannot be written.
        """
        made = self._new[key] / MADE
        (made / _DIGEST).write_text(_digest(key, made / LIBRARY), encoding="utf-8")
        try:
            made.rename(self.folder / key)
        except OSError:
            if key not in self:
                raise
        self.discard(key)

    def discard(self, key: str) -> None:
        """Remove what was left of a compilation."""
        folder = self._new.pop(key, None)
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    def remove(self, key: str) -> None:
        """Remove a compiled graph."""
        shutil.rmtree(self.folder / key, ignore_errors=True)

    def verified(self, key: str) -> Path:
        """Return the path of a compiled graph that is as it was written.

        Raises:
            OSError: when it cannot be read.
            ValueError: when it is damaged.
        """
        library = self.folder / key / LIBRARY
        written = (self.folder / key / _DIGEST).read_text(encoding="utf-8")
        if _digest(key, library) != written:
            raise ValueError(f"{library} is not what was written")
        return library


def _digest(key: str, library: Path) -> str:
    """Identify a library and what it stands for: another one in its place would read astray."""
    return hashlib.sha256(key.encode() + library.read_bytes()).hexdigest()
