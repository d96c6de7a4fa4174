"""Writing a checkpoint."""

import contextlib
import importlib.metadata
import os
import platform
from collections.abc import Iterator, Mapping
from pathlib import Path

from rl_core.config import Recipe
from rl_core.errors import CheckpointError
from rl_core.types import Json, StateDict
from rl_train.checkpoint._durable import (
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
    TENSORS,
    ResumeGrade,
    json_bytes,
    manifest_bytes,
)
from rl_train.checkpoint._state_tree import encode_state
from rl_train.checkpoint._tensor_file import safetensors_chunks
from rl_train.recipe_files import to_toml

_LIBRARIES = ("rl-core", "torch", "numpy", "gymnasium", "safetensors")


def save_checkpoint(
    directory: Path,
    step: int,
    state: StateDict,
    *,
    recipe: Recipe | None,
    metadata: Mapping[str, Json],
    resume_grade: ResumeGrade = "weights",
) -> Path:
    """Write a checkpoint that is durable once this returns.

    Args:
        directory: holds the run's checkpoints; created where it is missing.
        step: environment steps so far.
        state: the complete state of the run.
        recipe: recipe of the run.
        metadata: small facts to save beside the state.
        resume_grade: how much of the run the state restores.

    Returns:
        The new directory ``step-N``.

    Raises:
        CheckpointError: when the step exists already, the state holds something that cannot be
            stored, or the disk refuses; earlier checkpoints are untouched and no part of the
            failed one stays behind.
    """
    if isinstance(step, bool) or not 0 <= step < 10**18:
        raise CheckpointError(f"got step {step}; expected an integer from 0 to 10**18 - 1")
    return save_checkpoint_as(
        directory / f"step-{step}",
        step,
        state,
        recipe=recipe,
        metadata=metadata,
        resume_grade=resume_grade,
    )


def save_checkpoint_as(
    target: Path,
    step: int,
    state: StateDict,
    *,
    recipe: Recipe | None,
    metadata: Mapping[str, Json],
    resume_grade: ResumeGrade = "weights",
) -> Path:
    """Write a checkpoint under a name of its own; see `save_checkpoint`.

    Args:
        target: the new directory; missing parents are created.
        step: environment steps so far.
        state: the state to save.
        recipe: recipe of the run.
        metadata: small facts to save beside the state.
        resume_grade: how much of the run the state restores.

    Returns:
        The new directory.

    Raises:
        CheckpointError: as `save_checkpoint` does.
    """
    if os.path.lexists(target):
        raise CheckpointError(
            f"{target} exists already and checkpoints are never overwritten; resume from it, or"
            " move it away"
        )
    tree, tensors = encode_state(state)
    contents: dict[str, Iterator[bytes | memoryview]] = {
        TENSORS: safetensors_chunks(tensors),
        STATE: iter([json_bytes({"format": FORMAT, "state": tree}, STATE)]),
    }
    if recipe is not None:
        contents[RECIPE] = iter([to_toml(recipe).encode()])
    facts: dict[str, Json] = {
        "step": step,
        "resume_grade": resume_grade,
        "versions": _library_versions(),
        "metadata": _encoded_metadata(metadata),
    }
    try:
        make_directory(target.parent)
        _write(target.parent, target, contents, facts)
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
        records = {name: write_new(temporary / name, chunks) for name, chunks in contents.items()}
        files: dict[str, Json] = {
            name: {"size": record.size, "sha256": record.sha256} for name, record in records.items()
        }
        write_new(temporary / MANIFEST, [manifest_bytes({**facts, "files": files})])
        sync_directory(temporary)
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


def _encoded_metadata(metadata: Mapping[str, Json]) -> Json:
    tree, tensors = encode_state(metadata)
    if tensors:
        raise CheckpointError("the metadata holds a tensor; put tensors into the state")
    return tree


def _library_versions() -> dict[str, Json]:
    versions: dict[str, Json] = {"python": platform.python_version()}
    for name in _LIBRARIES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions
