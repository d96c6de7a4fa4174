"""The checkpoints of one directory: listing, setting aside and pruning."""

import os
from collections.abc import Collection
from pathlib import Path

from rl_core.errors import CheckpointError
from rl_train.checkpoint._durable import is_temporary, remove_tree, sync_directory, temporary_path
from rl_train.checkpoint._manifest import STEP_NAME, verify_checkpoint


def is_run(directory: Path) -> bool:
    """Return whether a trainer wrote this directory."""
    return (directory / "checkpoints").is_dir()


def list_checkpoints(directory: Path) -> list[Path]:
    """Return the checkpoints of a directory, newest last, without verifying them."""
    found: dict[int, Path] = {}
    try:
        for path in directory.iterdir():
            match = STEP_NAME.fullmatch(path.name)
            if match and path.is_dir():
                found[int(match[1])] = path
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointError(f"{directory} cannot be listed: {error.strerror}") from error
    return [found[step] for step in sorted(found)]


def set_aside_checkpoint(path: Path) -> Path:
    """Rename a damaged checkpoint, so that a resumed run can save its step again.

    Args:
        path: a checkpoint that `latest_checkpoint` skipped; it is kept for inspection.

    Returns:
        Its new path, which is no longer listed as a checkpoint.

    Raises:
        CheckpointError: when it cannot be renamed.
    """
    aside = path.with_name(f"damaged-{path.name}{temporary_path(path).name.removeprefix('.tmp')}")
    try:
        os.rename(path, aside)
        sync_directory(path.parent)
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be moved aside: {error.strerror}; move it away by hand"
        ) from error
    return aside


def clean_temporary(directory: Path) -> list[Path]:
    """Remove the remains of interrupted saves.

    Args:
        directory: directory into which no other process is writing a checkpoint.

    Returns:
        The removed paths.
    """
    leftovers = sorted(p for p in directory.glob(".tmp-*") if is_temporary(p))
    for path in leftovers:
        remove_tree(path)
    return [path for path in leftovers if not os.path.lexists(path)]


def prune_checkpoints(directory: Path, keep: int, protect: Collection[Path] = ()) -> list[Path]:
    """Delete the oldest checkpoints, after verifying the newest.

    Args:
        directory: holds the run's checkpoints.
        keep: number of the newest checkpoints to keep (>= 1).
        protect: checkpoints to keep whatever their age, such as the one resumed from.

    Returns:
        The deleted paths.

    Raises:
        CheckpointError: when ``keep`` is below 1, the disk refuses, or the newest checkpoint does
            not verify; nothing is deleted then.
    """
    if keep < 1:
        raise CheckpointError(f"got keep={keep}; expected at least 1")
    paths = list_checkpoints(directory)
    protected = {path.resolve() for path in protect}
    doomed = [path for path in paths[:-keep] if path.resolve() not in protected]
    if not doomed:
        return []
    verify_checkpoint(paths[-1])
    try:
        hidden = [(path, temporary_path(directory)) for path in doomed]
        for path, temporary in hidden:
            os.rename(path, temporary)
        sync_directory(directory)
    except OSError as error:
        raise CheckpointError(f"{directory} cannot be pruned: {error.strerror}") from error
    for _, temporary in hidden:
        remove_tree(temporary)
    return doomed
