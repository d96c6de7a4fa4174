"""What a run leaves on disk: recipe, metrics, checkpoints and a summary."""

import contextlib
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar, cast

from filelock import FileLock, Timeout

from rl_core.config import Recipe
from rl_core.errors import CheckpointError, ConfigError
from rl_core.gradients import FaultyStep
from rl_core.types import Json, StateDict
from rl_train.checkpoint import (
    Checkpoint,
    ResumeGrade,
    clean_temporary,
    latest_checkpoint,
    list_checkpoints,
    prune_checkpoints,
    save_checkpoint,
    set_aside_checkpoint,
)
from rl_train.checkpoint._durable import replace_file
from rl_train.checkpoint.faulty_steps import save_faulty_step
from rl_train.loggers import JsonlLogger
from rl_train.recipe_files import save_recipe

BatchT = TypeVar("BatchT")

_LOCK = ".lock"
"""Held while training. One that a killed process left behind is held by nobody."""


class RunDirectory:
    """The directory of one run; nothing is ever written into another run's.

    Args:
        path: the directory; it is created when a session begins.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._is_ours = False
        self._resumed_from: Path | None = None
        self._lock: FileLock | None = None

    def open(self, recipe: Recipe, logged_steps: int) -> JsonlLogger:
        """Prepare the directory for a session, and keep others out of it until `close`.

        Args:
            recipe: recipe of the run, which is written.
            logged_steps: steps of the run so far; later lines of metrics are removed.

        Returns:
            The logger that writes ``metrics.jsonl``.

        Raises:
            ConfigError: when the directory holds something else, cannot be written, or is in use
                by another run.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._check_ours()  # before a lock is left in a directory of someone else's
            self._acquire_lock()
            self._check_ours()
            self._checkpoints.mkdir(exist_ok=True)
            for directory in (self.path, self._checkpoints, self._best, self.path / "nonfinite"):
                clean_temporary(directory)
            save_recipe(recipe, self.path / "recipe.toml")
            logger = JsonlLogger(self.path / "metrics.jsonl", append=True)
        except OSError as error:
            raise ConfigError(f"run directory {self.path} is not writable: {error}") from error
        self._is_ours = True
        logger.truncate_after(logged_steps)
        return logger

    def close(self) -> None:
        """Release the lock."""
        if self._lock is None:
            return
        with contextlib.suppress(OSError):  # some systems refuse to remove what is open
            (self.path / _LOCK).unlink()
        self._lock.release()
        self._lock = None

    def save(
        self,
        total_steps: int,
        state: StateDict,
        *,
        recipe: Recipe,
        resume_grade: ResumeGrade,
        keep: int,
    ) -> Path:
        """Write a checkpoint, unless there is one of this step, and delete the oldest ones.

        Args:
            total_steps: steps of the run so far.
            state: state of the whole run.
            recipe: recipe of the run.
            resume_grade: how much of the run the state restores.
            keep: number of the newest checkpoints that stay, besides the one resumed from.

        Raises:
            CheckpointError: when it cannot be written.
        """
        path = self._checkpoints / f"step-{total_steps}"
        if not path.exists():
            path = save_checkpoint(
                self._checkpoints,
                total_steps,
                state,
                recipe=recipe,
                resume_grade=resume_grade,
            )
        self._is_ours = True
        protect = [path] if self._resumed_from is None else [path, self._resumed_from]
        prune_checkpoints(self._checkpoints, keep=keep, protect=protect)
        return path

    def save_best(
        self, total_steps: int, state: StateDict, score: float, *, recipe: Recipe
    ) -> Path | None:
        """Keep a state in ``best`` if its score is higher than that of the state kept there.

        Args:
            total_steps: steps of the run so far.
            state: state of the algorithm alone.
            score: mean return of the evaluation.
            recipe: recipe of the run.

        Returns:
            The checkpoint; None if the old one is as good.

        Raises:
            CheckpointError: when it cannot be written.
        """
        kept = self._kept_best()
        if kept is not None and not score > cast("float", kept.metadata["episode_return"]):
            return None
        if kept is not None and kept.step >= total_steps:
            set_aside_checkpoint(kept.path)  # a resumed run is back before it, and better
        path = save_checkpoint(
            self._best,
            total_steps,
            state,
            recipe=recipe,
            metadata={"episode_return": score},
        )
        prune_checkpoints(self._best, keep=1)
        return path

    def _kept_best(self) -> Checkpoint | None:
        """Read what is kept in ``best``; damaged checkpoints are renamed and end no run."""
        try:
            return latest_checkpoint(self._best)
        except CheckpointError as error:
            warnings.warn(f"{error}; the next evaluation counts as the best", stacklevel=2)
            for path in list_checkpoints(self._best):
                set_aside_checkpoint(path)
            return None

    def save_faulty(
        self, total_steps: int, step: FaultyStep[BatchT], message: str, *, recipe: Recipe
    ) -> Path:
        """Save the batch of a gradient step that was not finite.

        Args:
            total_steps: steps of the run so far.
            step: the gradient step.
            message: text of the error.
            recipe: recipe of the run.

        Returns:
            Its directory.

        Raises:
            CheckpointError: when it cannot be written.
        """
        path = self.path / "nonfinite" / f"step-{total_steps}"
        if path.exists():
            set_aside_checkpoint(path)  # of an earlier session that got as far
        save_faulty_step(path, step, total_steps, message, recipe)
        return path

    def latest(self) -> Checkpoint:
        """Read the newest readable checkpoint.

        Raises:
            CheckpointError: when there is none.
        """
        checkpoint = latest_checkpoint(self._checkpoints)
        if checkpoint is None:
            raise CheckpointError(f"{self._checkpoints} holds no checkpoint to resume from")
        return checkpoint

    def go_on_from(self, checkpoint: Checkpoint) -> None:
        """Continue in this directory after resuming from one of its checkpoints.

        Newer ones that are damaged are renamed, so that their steps can be saved again.
        """
        for skipped in checkpoint.skipped:
            set_aside_checkpoint(skipped.path)
        self._resumed_from = checkpoint.path
        self._is_ours = True

    def write_summary(self, summary: Mapping[str, Json]) -> None:
        """Write how the run ended."""
        text = json.dumps(summary, indent=2, allow_nan=False) + "\n"
        replace_file(self.path / "summary.json", text.encode())

    def _check_ours(self) -> None:
        is_empty = all(entry.name == _LOCK for entry in self.path.iterdir())
        if not (is_empty or self._is_ours):
            raise ConfigError(
                f"run directory {self.path} is not empty; choose another, or resume the run"
            )

    def _acquire_lock(self) -> None:
        lock = FileLock(self.path / _LOCK, blocking=False)
        try:
            lock.acquire()
        except Timeout:
            raise ConfigError(
                f"run directory {self.path} is in use by another run; wait for it to end, or "
                "choose another directory"
            ) from None
        self._lock = lock

    @property
    def _checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def _best(self) -> Path:
        return self.path / "best"
