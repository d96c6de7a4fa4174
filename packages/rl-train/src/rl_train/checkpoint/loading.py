"""A checkpoint in memory, and reading it from its files."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rl_core.errors import CheckpointError
from rl_core.types import Json, StateDict
from rl_train.checkpoint._manifest import (
    FORMAT,
    RECIPE,
    STATE,
    TENSORS,
    ResumeGrade,
    damaged,
    parse_json,
    read_limited,
    reporting,
    verify_checkpoint,
)
from rl_train.checkpoint._state_tree import decode_state
from rl_train.checkpoint._tensor_file import read_safetensors
from rl_train.checkpoint.directory import list_checkpoints


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
    state: StateDict
    recipe_text: str | None
    metadata: Mapping[str, Json]
    path: Path
    resume_grade: ResumeGrade
    versions: Mapping[str, str]
    skipped: tuple[SkippedCheckpoint, ...] = ()


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
    """Load the newest checkpoint that is not damaged.

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
            return dataclasses.replace(load_checkpoint(path), skipped=tuple(skipped))
        except CheckpointError as error:
            skipped.append(SkippedCheckpoint(path, str(error)))
    if skipped:
        raise CheckpointError(
            f"none of the {len(skipped)} checkpoints in {directory} can be loaded; the newest:"
            f" {skipped[0].reason}"
        )
    return None
