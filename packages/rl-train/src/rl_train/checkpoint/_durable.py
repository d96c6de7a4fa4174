"""Writing files and directories that survive a power loss after the call has returned.

All writes of checkpoints and recipes pass through these few functions: a file is flushed to the
disk before its name is relied on, and a name is relied on only after its directory was flushed.
"""

import hashlib
import os
import re
import shutil
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_TEMPORARY = re.compile(r"\.tmp-[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class FileRecord:
    """Size and digest of a file."""

    size: int
    sha256: str


def temporary_path(directory: Path) -> Path:
    """Return a fresh name in a directory that `is_temporary` recognizes."""
    return directory / f".tmp-{uuid.uuid4().hex}"


def is_temporary(path: Path) -> bool:
    """Return whether `temporary_path` made this name."""
    return _TEMPORARY.fullmatch(path.name) is not None


def make_directory(directory: Path) -> None:
    """Create a directory and its missing parents, each entered durably into its own parent.

    Raises:
        OSError: when the disk refuses. A file of that name is noticed by what is written below it.
    """
    missing = []
    current = directory
    while not current.exists() and current != current.parent:
        missing.append(current)
        current = current.parent
    for created in reversed(missing):
        created.mkdir(exist_ok=True)
        sync_directory(created.parent)


def write_new(path: Path, chunks: Iterable[bytes | memoryview]) -> FileRecord:
    """Write a file that does not exist yet and flush it to the disk.

    Args:
        path: the new file.
        chunks: its contents, taken one after the other so that they need not fit into memory twice.

    Returns:
        The size and digest of what was written.

    Raises:
        OSError: when the disk refuses, or the file exists.
    """
    digest = hashlib.sha256()
    size = 0
    with open(path, "xb") as file:
        for chunk in chunks:
            file.write(chunk)
            digest.update(chunk)
            size += len(chunk)
        file.flush()
        os.fsync(file.fileno())
    return FileRecord(size, digest.hexdigest())


def replace_file(path: Path, contents: bytes) -> None:
    """Replace a file, which at any time holds the complete old or new contents.

    Raises:
        OSError: when the disk refuses; the old file is then still there.
    """
    make_directory(path.parent)
    temporary = temporary_path(path.parent)
    try:
        write_new(temporary, [contents])
        os.replace(temporary, path)
    except BaseException:
        remove_tree(temporary)
        raise
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Flush the names in a directory to the disk.

    Raises:
        OSError: when the disk refuses.
    """
    if os.name == "nt":  # Windows cannot open directories and orders their changes itself
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_tree(path: Path) -> None:
    """Remove a file, a link or a directory as far as the disk allows; it may be missing."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
        return
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return
