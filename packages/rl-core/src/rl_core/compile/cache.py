"""Where compiled graphs are kept between runs: a folder of the user's own."""

import atexit
import hashlib
import os
import shutil
import stat
import tempfile
import time
import uuid
import warnings
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path

LIBRARY = "graph.so"
"""The file that is loaded."""

MADE = "made"
"""The folder, in that of a compilation, that the library is written to."""

_DIGEST = "sha256"
_OLD_SECONDS = 24 * 3600.0
"""Age at which what an interrupted compilation left is removed."""

_UNUSED_SECONDS = 60 * _OLD_SECONDS
"""How long a graph, or what the compiler keeps, stays without being used."""


class GraphCache:
    """Compiled graphs by key, each in a folder that appears whole or not at all.

    Args:
        folder: made where it is missing; it must belong to the user alone.
        read_only: another such folder, in which graphs are looked for too.

    Raises:
        OSError: when it cannot be made, or others may write into it.
    """

    def __init__(self, folder: Path, read_only: Path | None = None) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _is_own(folder):
            raise PermissionError(f"{folder} belongs to somebody else, or others may write into it")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(f"{folder} cannot be written into")
        self.folder = folder
        self._folders = [folder] if read_only is None else [folder, read_only]
        self._new: dict[str, Path] = {}
        _remove_old(folder.glob("new-*"), _OLD_SECONDS)
        _remove_old([digest.parent for digest in folder.glob(f"*/{_DIGEST}")], _UNUSED_SECONDS)
        _remove_old(folder.glob("inductor/*"), _UNUSED_SECONDS)

    @staticmethod
    @cache
    def shared() -> "GraphCache":
        """Return the one of this process.

        It is ``RL_CACHE_DIR``, or ``rl-toolbox`` in the user's cache folder; where that cannot be
        used, one of this process alone, with one warning. A folder of the user's own that cannot be
        written into is read all the same.
        """
        read_only = None
        try:
            folder = _user_folder() / "graphs"
            read_only = folder if folder.is_dir() and _is_own(folder) else None
            return GraphCache(folder)
        except (OSError, RuntimeError) as error:
            warnings.warn(
                f"compiled graphs cannot be kept ({error}), so that every run compiles anew; name "
                "a folder of your own in the environment variable RL_CACHE_DIR",
                RuntimeWarning,
                stacklevel=2,
            )
            temporary = Path(tempfile.mkdtemp(prefix="rl-toolbox-"))
            atexit.register(shutil.rmtree, temporary, ignore_errors=True)
            return GraphCache(temporary, read_only)

    def __contains__(self, key: str) -> bool:
        """Say whether there is a compiled graph of this key."""
        return any((folder / key / _DIGEST).exists() for folder in self._folders)

    def is_empty(self) -> bool:
        """Say whether no graph was ever compiled here."""
        return not any(any(folder.glob(f"*/{_DIGEST}")) for folder in self._folders)

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

        What is in its place without being a whole graph is removed.

        Raises:
            OSError: when it is not there or cannot be written.
        """
        made = self._new[key] / MADE
        (made / _DIGEST).write_text(_digest(key, made / LIBRARY), encoding="utf-8")
        try:
            made.rename(self.folder / key)
        except OSError:
            if key not in self:
                _remove(self.folder / key)
                made.rename(self.folder / key)
        self.discard(key)

    def discard(self, key: str) -> None:
        """Remove what was left of a compilation."""
        folder = self._new.pop(key, None)
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    def remove(self, key: str) -> None:
        """Remove a compiled graph, and look for it in this folder alone."""
        del self._folders[1:]
        _remove(self.folder / key)

    def verified(self, key: str) -> Path:
        """Return the path of a compiled graph that is as it was written.

        Raises:
            OSError: when it cannot be read.
            ValueError: when it is damaged.
        """
        there = (folder / key for folder in self._folders if (folder / key / _DIGEST).exists())
        folder = next(there, self.folder / key)
        library, digest = folder / LIBRARY, folder / _DIGEST
        if _digest(key, library) != digest.read_text(encoding="utf-8"):
            raise ValueError("it is not what was written")
        with suppress(OSError):  # it may be read-only
            os.utime(digest.parent)
        return library


def _user_folder() -> Path:
    """Return what the user chose, or the usual place.

    Raises:
        RuntimeError: when the user has no home.
    """
    own, caches = os.environ.get("RL_CACHE_DIR"), os.environ.get("XDG_CACHE_HOME")
    if own:
        return Path(own).expanduser().absolute()
    return (Path(caches) if caches else Path.home() / ".cache") / "rl-toolbox"


def _is_own(folder: Path) -> bool:
    found = folder.stat()
    return found.st_uid == os.getuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _remove_old(paths: Iterable[Path], seconds: float) -> None:
    now = time.time()
    for path in paths:
        with suppress(OSError):  # another process may remove it too
            if now - path.stat().st_mtime > seconds:
                _remove(path)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _digest(key: str, library: Path) -> str:
    """Identify a library and what it stands for: another one in its place would read astray."""
    return hashlib.sha256(key.encode() + library.read_bytes()).hexdigest()
