"""Checkpoints: writing one, reading one, and those that a run keeps in its directory."""

import contextlib
import dataclasses
import functools
import importlib.metadata
import os
import platform
import re
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rl_core.config import Recipe
from rl_core.errors import CheckpointError
from rl_core.types import Json, StateDict
from rl_train.checkpoint._durable import (
    is_temporary,
    make_directory,
    remove_tree,
    sync_directory,
    temporary_path,
    write_new,
)
from rl_train.checkpoint._manifest import (
    FORMAT,
    MANIFEST,
    RECIPE,
    STATE,
    STEP_NAME,
    TENSORS,
    ResumeGrade,
    damaged,
    json_bytes,
    manifest_bytes,
    parse_json,
    read_limited,
    reporting,
    verify_checkpoint,
)
from rl_train.checkpoint._state_tree import decode_state, encode_state
from rl_train.checkpoint._tensor_file import read_safetensors, safetensors_chunks
from rl_train.recipe_files import to_toml

_REPLACED = re.compile(rf"replaced-{STEP_NAME.pattern}-[0-9a-f]{{32}}", re.ASCII)
"""The name of one whose place a new one takes; it counts while that one is not there."""

_LIBRARIES = ("rl-core", "rl-train", "torch", "numpy", "gymnasium", "safetensors")


@dataclass(frozen=True, slots=True)
class SkippedCheckpoint:
    """A damaged checkpoint that `latest_checkpoint` skipped."""

    path: Path
    reason: str


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A verified checkpoint, its tensors on the CPU and mapped from their file.

    Tensors are read into memory when they are used, so that weights can be loaded from a checkpoint
    whose replay buffer would not fit. They remain valid if the file is deleted or overwritten.

    Attributes:
        skipped: newer checkpoints that are damaged, newest first.
    """

    step: int
    state: StateDict = field(repr=False)
    recipe_text: str | None = field(repr=False)
    metadata: Mapping[str, Json]
    path: Path
    resume_grade: ResumeGrade
    versions: Mapping[str, str]
    skipped: tuple[SkippedCheckpoint, ...] = ()


def save_checkpoint(
    directory: Path,
    step: int,
    state: StateDict,
    *,
    recipe: Recipe | None = None,
    metadata: Mapping[str, Json] | None = None,
    resume_grade: ResumeGrade = "weights",
    name: str | None = None,
    replaces: bool = False,
) -> Path:
    """Write a checkpoint that is durable once this returns.

    Args:
        directory: holds the run's checkpoints; created if it is missing.
        step: environment steps so far.
        state: the state to save.
        recipe: recipe of the run.
        metadata: small facts to save beside the state.
        resume_grade: how much of the run the state restores.
        name: name of the new directory; None takes ``step-N``.
        replaces: take the place of one that exists already.

    Returns:
        The new directory.

    Raises:
        CheckpointError: when it exists already and is not to be replaced, the state holds
            something that cannot be stored, or the disk refuses; earlier checkpoints are untouched
            and no part of the failed one stays behind.
        ConfigError: when the recipe is too large to be read back.
    """
    if isinstance(step, bool) or not 0 <= step < 10**18:
        raise CheckpointError(f"got step {step}; expected an integer from 0 to 10**18 - 1")
    target = directory / (name or f"step-{step}")
    if os.path.lexists(target) and not replaces:
        raise CheckpointError(
            f"{target} exists already and is not overwritten; save into a new directory, or move it"
            " away"
        )
    tree, tensors = encode_state(state)
    contents: dict[str, Iterator[bytes | memoryview]] = {
        TENSORS: safetensors_chunks(tensors),
        STATE: iter([json_bytes({"format": FORMAT, "state": tree}, STATE)]),
    }
    if recipe is not None:
        contents[RECIPE] = iter([to_toml(recipe).encode()])
    metadata_tree, metadata_tensors = encode_state(metadata or {})
    if metadata_tensors:
        raise CheckpointError("the metadata holds a tensor; put tensors into the state")
    facts: dict[str, Json] = {
        "step": step,
        "resume_grade": resume_grade,
        "versions": _library_versions(),
        "metadata": metadata_tree,
    }
    try:
        make_directory(directory)
        _write(directory, target, contents, facts)
    except OSError as error:
        raise CheckpointError(
            f"{target} could not be written: {error.strerror or error}; free space or choose"
            " another run directory (earlier checkpoints are untouched)"
        ) from error
    return target


def _write(
    directory: Path,
    target: Path,
    contents: Mapping[str, Iterator[bytes | memoryview]],
    facts: Mapping[str, Json],
) -> None:
    temporary = temporary_path(directory)
    try:
        temporary.mkdir()
        files: dict[str, Json] = {}
        for name, chunks in contents.items():
            record = write_new(temporary / name, chunks)
            files[name] = {"size": record.size, "sha256": record.sha256}
        write_new(temporary / MANIFEST, [manifest_bytes({**facts, "files": files})])
        sync_directory(temporary)
        with _moved_away(target):
            os.rename(temporary, target)
            try:
                sync_directory(directory)
            except BaseException:
                # Not acknowledged, so it must not look like a checkpoint either.
                os.rename(target, temporary)
                raise
    except BaseException:
        remove_tree(temporary)
        raise


def _name_beside(path: Path, what: str) -> Path:
    """Return a new name for a checkpoint, under which it is not listed as one."""
    return path.with_name(f"{what}-{path.name}{temporary_path(path).name.removeprefix('.tmp')}")


@contextlib.contextmanager
def _moved_away(path: Path) -> Iterator[None]:
    """Make room for a new checkpoint; the old one is removed after it, or comes back if it fails.

    A process that is killed between the renames leaves the old one under the name `_REPLACED`.
    """
    if not os.path.lexists(path):
        yield
        return
    away = _name_beside(path, "replaced")
    os.rename(path, away)
    try:
        yield
    except BaseException:
        os.rename(away, path)
        raise
    remove_checkpoints([away])


@functools.cache  # reading them takes as long as writing a small checkpoint
def _library_versions() -> dict[str, Json]:
    versions: dict[str, Json] = {"python": platform.python_version()}
    for name in _LIBRARIES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


def load_checkpoint(path: Path) -> Checkpoint:
    """Verify a checkpoint and read it.

    Args:
        path: a directory that `save_checkpoint` returned.

    Returns:
        The checkpoint; its files may be renamed or deleted from now on.

    Raises:
        CheckpointError: when a file is missing, damaged, too large, or of a later format; the
            message names the file, what is wrong and what to do.
    """
    manifest = verify_checkpoint(path)
    document = parse_json(path, STATE, read_limited(path, STATE))
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        damaged(path, STATE, f"is not a state of format {FORMAT}")
    recipe_text = None
    if RECIPE in manifest.files:
        try:
            recipe_text = read_limited(path, RECIPE).decode()
        except UnicodeDecodeError as error:
            damaged(path, RECIPE, f"is not UTF-8 text ({error.reason})")
    with reporting(path, TENSORS):
        tensors = read_safetensors(path / TENSORS)
    with reporting(path, STATE):
        state = decode_state(document.get("state"), tensors)
    return Checkpoint(
        step=manifest.step,
        state=state,
        recipe_text=recipe_text,
        metadata=manifest.metadata,
        path=path,
        resume_grade=manifest.resume_grade,
        versions=manifest.versions,
    )


def latest_checkpoint(directory: Path) -> Checkpoint | None:
    """Load the newest checkpoint that is not damaged, and warn of newer ones that are.

    Args:
        directory: holds the run's checkpoints; temporary directories in it are ignored.

    Returns:
        The checkpoint, with newer damaged ones in ``skipped``; None when there is no checkpoint.

    Raises:
        CheckpointError: when all checkpoints are damaged, so that a run never silently starts from
            scratch.
    """
    skipped: list[SkippedCheckpoint] = []
    for path in reversed(list_checkpoints(directory)):
        try:
            found = dataclasses.replace(load_checkpoint(path), skipped=tuple(skipped))
        except CheckpointError as error:
            skipped.append(SkippedCheckpoint(path, str(error)))
            continue
        for newer in skipped:
            warnings.warn(
                f"{newer.path.name} is damaged, so {path.name} is used: {newer.reason}",
                stacklevel=2,
            )
        return found
    if skipped:
        raise CheckpointError(
            f"none of the {len(skipped)} checkpoints in {directory} can be loaded: restore one "
            f"from a copy, or train again; the newest: {skipped[0].reason}"
        )
    return None


def is_run(directory: Path) -> bool:
    """Return whether a trainer wrote this directory."""
    return (directory / "checkpoints").is_dir()


def is_checkpoint(directory: Path) -> bool:
    """Return whether a directory is a checkpoint, damaged or not."""
    return (directory / MANIFEST).is_file()


def checkpoints_of(directory: Path) -> Path:
    """Return the folder with a run's checkpoints, or the directory itself, such as ``best``."""
    return directory / "checkpoints" if is_run(directory) else directory


def list_checkpoints(directory: Path) -> list[Path]:
    """Return the checkpoints of a directory, newest last, without verifying them."""
    found: dict[int, Path] = {}
    try:
        for path in sorted(directory.iterdir()):  # replaced ones first
            is_one = STEP_NAME.fullmatch(path.name) or _REPLACED.fullmatch(path.name)
            if is_one and path.is_dir():
                found[step_of(path)] = path
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise CheckpointError(f"{directory} cannot be listed: {error.strerror}") from error
    return [found[step] for step in sorted(found)]


def step_of(path: Path) -> int:
    """Return the step of a checkpoint that `list_checkpoints` returned."""
    match = STEP_NAME.search(path.name)
    assert match is not None
    return int(match[1])


def set_aside_checkpoint(path: Path) -> Path:
    """Rename a checkpoint, so that its step can be saved again; it is kept for inspection.

    Returns:
        Its new path, which is no longer listed as a checkpoint.

    Raises:
        CheckpointError: when it cannot be renamed.
    """
    aside = _name_beside(path, "damaged")
    try:
        os.rename(path, aside)
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be moved aside: {error.strerror}; move it away by hand"
        ) from error
    return aside


def clean_temporary(directory: Path) -> None:
    """Remove the remains of interrupted saves.

    Args:
        directory: directory into which no other process is writing a checkpoint.
    """
    leftovers = {path for path in directory.glob(".tmp-*") if is_temporary(path)}
    replaced = {path for path in directory.glob("replaced-*") if _REPLACED.fullmatch(path.name)}
    for path in leftovers | replaced.difference(list_checkpoints(directory)):
        remove_tree(path)


def read_run(directory: str | Path) -> Checkpoint:
    """Read the newest checkpoint of a run or its folder ``best``, or the checkpoint given.

    Raises:
        CheckpointError: when it is none of these, or holds no readable checkpoint.
    """
    directory = Path(directory)
    if is_checkpoint(directory):
        return load_checkpoint(directory)
    checkpoint = latest_checkpoint(checkpoints_of(directory))
    if checkpoint is not None:
        return checkpoint
    if is_run(directory):
        raise CheckpointError(f"{directory} holds no checkpoint; let the run save one first")
    if not directory.is_dir():
        where = "" if directory.is_absolute() else f" in {Path.cwd()}"
        raise CheckpointError(f"{directory} is not a run: it is not a directory{where}")
    inside = next((path for path in sorted(directory.iterdir()) if is_run(path)), None)
    hint = "" if inside is None else f"; give one of the runs in it, such as {inside}"
    raise CheckpointError(f"{directory} is not a run: it has no folder 'checkpoints'{hint}")


def check_goes_on(checkpoint: Checkpoint) -> None:
    """Refuse a checkpoint that a run cannot go on from, such as those of ``best``.

    Raises:
        CheckpointError: when it holds only what acts.
    """
    if "collector" not in checkpoint.state:
        raise CheckpointError(
            f"{checkpoint.path} holds only what acts, and not the run; load the run itself to go "
            "on, or begin a new one with make(..., restart_model=...)"
        )


def prune_checkpoints(directory: Path, keep: int, protect: Collection[Path] = ()) -> None:
    """Delete the oldest checkpoints, after verifying the newest.

    Args:
        directory: holds the run's checkpoints.
        keep: number of the newest checkpoints to keep (>= 1).
        protect: checkpoints to keep whatever their age, such as the one resumed from.

    Raises:
        CheckpointError: when the disk refuses, or the newest checkpoint does not verify; nothing is
            deleted then.
    """
    paths = list_checkpoints(directory)
    protected = {path.resolve() for path in protect}
    doomed = [path for path in paths[:-keep] if path.resolve() not in protected]
    if doomed:
        verify_checkpoint(paths[-1])
        remove_checkpoints(doomed)


def remove_checkpoints(paths: Sequence[Path]) -> None:
    """Delete checkpoints; one that is deleted in part never looks like a checkpoint.

    Raises:
        CheckpointError: when the disk refuses.
    """
    hidden = [(path, temporary_path(path.parent)) for path in paths]
    try:
        for path, temporary in hidden:
            os.rename(path, temporary)
        for directory in {path.parent for path in paths}:
            sync_directory(directory)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be deleted: {error.strerror}") from error
    for _, temporary in hidden:
        remove_tree(temporary)
