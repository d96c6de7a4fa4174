"""What a run leaves on disk: recipe, metrics, checkpoints and a summary."""

import contextlib
import json
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar, cast

from filelock import FileLock, Timeout
from torch import Tensor

from rl_core.config import Recipe
from rl_core.errors import CheckpointError, ConfigError
from rl_core.gradients import FaultyStep
from rl_core.types import Json, StateDict, StateValue
from rl_train.builder.describe import SECTIONS, changed_option
from rl_train.checkpoint import (
    Checkpoint,
    ResumeGrade,
    clean_temporary,
    latest_checkpoint,
    list_checkpoints,
    prune_checkpoints,
    remove_checkpoints,
    save_checkpoint,
    set_aside_checkpoint,
    state_digest,
    step_of,
)
from rl_train.checkpoint._durable import remove_tree, replace_file
from rl_train.checkpoint._manifest import RECIPE
from rl_train.checkpoint.faulty_steps import save_faulty_step
from rl_train.loggers import JsonlLogger
from rl_train.recipe_files import load_recipe, save_recipe

BatchT = TypeVar("BatchT")

_LOCK = ".lock"
"""Held while training. One that a killed process left behind is held by nobody."""

_MOST_COMPARED = 4096
"""Tensors of the storage with more entries do not decide whether a state is saved already."""


def is_in_use(path: Path) -> bool:
    """Return whether a process is training in a run directory."""
    if not (path / _LOCK).exists():
        return False
    lock = FileLock(path / _LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return True
    lock.release()
    return False


def check_unchanged(path: Path) -> None:
    """Refuse the recipe of a run directory that was edited: a run goes on as it began.

    Raises:
        ConfigError: naming what differs from the recipe in the newest checkpoint.
    """
    file = path / RECIPE
    for checkpoint in list_checkpoints(path / "checkpoints")[-1:]:
        try:
            saved, now = load_recipe(checkpoint / RECIPE), load_recipe(file)
        except ConfigError:  # it is damaged or removed, which is told where it is needed
            return
        if changed := changed_option(saved, now, (*SECTIONS, "seed")):
            raise ConfigError(
                f"{file} was edited: its {changed[0]} is not that of {checkpoint.name}, and a run "
                f"goes on as it began; copy the recipe of {checkpoint} over it, or begin another "
                "run with rl train --config"
            )


class RunDirectory:
    """The directory of one run; nothing is ever written into another run's.

    Args:
        path: the directory; it is created when a session begins.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._is_ours = False
        self._resumed_from: Checkpoint | None = None
        self._newest: Path | None = None  # the checkpoint that was written or resumed from last
        self._digest = ""  # of the state in it
        self._lock: FileLock | None = None

    def open(self, logged_steps: int) -> JsonlLogger:
        """Prepare the directory for a session, and keep others out of it until `close`.

        Args:
            logged_steps: steps of the run so far; later lines of metrics are removed.

        Returns:
            The logger that writes ``metrics.jsonl``.

        Raises:
            ConfigError: when the directory holds something else, cannot be written, or is in use
                by another run or was continued by one.
        """
        self._enter()
        try:
            self._checkpoints.mkdir(exist_ok=True)
            for directory in (self.path, self._checkpoints, self._best, self.path / "nonfinite"):
                clean_temporary(directory)
            logger = JsonlLogger(self.path / "metrics.jsonl", append=True)
        except OSError as error:
            raise self._not_writable(error) from error
        logger.truncate_after(logged_steps)
        return logger

    def write_recipe(self, recipe: Recipe) -> None:
        """Write the recipe of a session that can begin.

        Raises:
            ConfigError: when it cannot be written.
        """
        save_recipe(recipe, self.path / RECIPE)

    def close(self) -> None:
        """Release the lock."""
        if self._lock is None:
            return
        with contextlib.suppress(OSError):  # some systems refuse to remove what is open
            (self.path / _LOCK).unlink()
        self._lock.release()
        self._lock = None

    def discard(self) -> None:
        """Make the directory as empty as it was before `open`: no session could begin."""
        self.close()
        if self._is_ours and self._newest is None:
            for entry in self.path.iterdir():
                remove_tree(entry)
            self._is_ours = False

    def save(
        self,
        total_steps: int,
        state: StateDict,
        *,
        recipe: Recipe,
        resume_grade: ResumeGrade,
        keep: int,
    ) -> Path:
        """Write a checkpoint, unless this state is saved already, and delete the oldest ones.

        A checkpoint of the same step with another state is replaced. The storage's large tensors
        are not compared.

        Args:
            total_steps: steps of the run so far.
            state: state of the whole run.
            recipe: recipe of the run.
            resume_grade: how much of the run the state restores.
            keep: number of the newest checkpoints that stay, besides the one resumed from.

        Raises:
            ConfigError: as for `open`.
            CheckpointError: when it cannot be written.
        """
        path, digest = self._checkpoints / f"step-{total_steps}", _digest(state)
        with self._entered():
            if path != self._newest or digest != self._digest or not path.exists():
                save_checkpoint(
                    self._checkpoints,
                    total_steps,
                    state,
                    recipe=recipe,
                    resume_grade=resume_grade,
                    replaces=True,
                )
                self._newest, self._digest = path, digest
            protect = [path] if self._resumed_from is None else [path, self._resumed_from.path]
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
        path = save_checkpoint(
            self._best,
            total_steps,
            state,
            recipe=recipe,
            metadata={"episode_return": score},
            replaces=True,  # a resumed run may be back there, and better
        )
        remove_checkpoints([old for old in list_checkpoints(self._best) if old != path])
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

    def go_on_from(self, checkpoint: Checkpoint) -> None:
        """Continue in this directory after resuming from a checkpoint, if that is one of its own.

        Before anything is written, newer ones that are damaged are renamed, so that their steps can
        be saved again.

        Raises:
            ConfigError: when the recipe there was edited.
        """
        if checkpoint.path.parent.resolve() != self._checkpoints.resolve():
            return
        check_unchanged(self.path)
        path = self._checkpoints / checkpoint.path.name
        self._resumed_from, self._newest = replace(checkpoint, path=path), path
        self._digest = _digest(checkpoint.state)
        self._is_ours = True

    def remove_summary(self) -> None:
        """Remove what an earlier session wrote when it ended: the run goes on."""
        (self.path / "summary.json").unlink(missing_ok=True)

    def write_summary(self, summary: Mapping[str, Json]) -> None:
        """Write how the run ended; warns where that fails, because the run itself is saved."""
        path, text = self.path / "summary.json", json.dumps(summary, indent=2, allow_nan=False)
        try:
            replace_file(path, f"{text}\n".encode())
        except OSError as error:
            warnings.warn(f"{path} could not be written: {error.strerror or error}", stacklevel=2)

    @contextlib.contextmanager
    def _entered(self) -> Iterator[None]:
        """Keep others out of the directory within a block, unless a session does so already."""
        if self._lock is not None:
            if not (self.path / _LOCK).exists():
                raise CheckpointError(
                    f"run directory {self.path} was moved or removed while the run wrote into it; "
                    "put it back before the run is resumed"
                )
            yield
            return
        self._enter()
        try:
            yield
        finally:
            self.close()

    def _enter(self) -> None:
        """Take the lock, and make sure that the directory holds this run and nothing later."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._check_ours()  # before a lock is left in a directory of someone else's
            self._acquire_lock()
            try:
                self._check_ours()
                self._check_newest()
            except BaseException:
                self.close()
                raise
        except OSError as error:
            raise self._not_writable(error) from error
        self._is_ours = True

    def _not_writable(self, error: OSError) -> ConfigError:
        return ConfigError(
            f"run directory {self.path} is not writable: {error.strerror or error}; choose another "
            "directory"
        )

    def _check_ours(self) -> None:
        if self._is_ours:
            return
        if any(entry.name != _LOCK for entry in self.path.iterdir()):
            raise ConfigError(
                f"run directory {self.path} is not empty; choose another, or continue its run: "
                "rl_train.load(run_dir).train(total_steps=..., run_dir=run_dir)"
            )

    def _check_newest(self) -> None:
        """Set damaged checkpoints aside, and refuse those that another process wrote later."""
        for skipped in () if self._resumed_from is None else self._resumed_from.skipped:
            if skipped.path.exists():
                set_aside_checkpoint(skipped.path)
        own = -1 if self._newest is None else step_of(self._newest)
        newest = list_checkpoints(self._checkpoints)[-1:]
        if newest and step_of(newest[0]) > own:
            raise ConfigError(
                f"run directory {self.path} was continued elsewhere: its {newest[0].name} is newer "
                "than what this Trainer saved or resumed; resume it, or choose another directory"
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


def _digest(state: StateDict) -> str:
    """Return the digest of a run's state without the storage's large tensors."""
    return state_digest({**state, "storage": _small_parts(state.get("storage"))})


def _small_parts(value: StateValue) -> StateValue:
    if isinstance(value, Mapping):
        return {name: _small_parts(part) for name, part in value.items()}
    return None if isinstance(value, Tensor) and value.numel() > _MOST_COMPARED else value
