"""The directory of a run: choosing a new one, and opening an existing one."""

import contextlib
import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from rl_command.errors import UsageError
from rl_core.config import Recipe
from rl_core.errors import ConfigError
from rl_train.checkpoint import list_checkpoints
from rl_train.recipe_files import load_recipe
from rl_train.trainer import is_in_use

RECIPE, METRICS, CHECKPOINTS, BEST = "recipe.toml", "metrics.jsonl", "checkpoints", "best"
_RUNS = Path("runs")


@dataclass(frozen=True, slots=True)
class Run:
    """A run that was started before.

    Attributes:
        path: its directory.
        recipe: its recipe.
    """

    path: Path
    recipe: Recipe

    @property
    def checkpoints(self) -> Path:
        """The directory of its checkpoints."""
        return self.path / CHECKPOINTS


def command_on(command: str, path: Path, imports: Sequence[str]) -> str:
    """Return the words of a command on a run, with the imports that its environment needs."""
    return " ".join(
        (f"rl {command} {shlex.quote(str(path))}", *(f"--import {module}" for module in imports))
    )


def default_run_dir(recipe: Recipe, now: datetime, which: str = "") -> Path:
    """Choose a directory that does not exist yet; nothing is created.

    Args:
        recipe: recipe of the run.
        now: start of the run.
        which: stands for the seed in the name.
    """
    env = recipe.env.name.replace("/", "-")
    name = f"{recipe.algorithm.name}-{env}-{which or f's{recipe.seed}'}-{now:%Y%m%d-%H%M%S}"
    path, number = _RUNS / name, 2
    while os.path.lexists(path):
        path, number = _RUNS / f"{name}-{number}", number + 1
    return path


@contextlib.contextmanager
def new_run_dir(given: Path | None, recipe: Recipe, now: datetime) -> Iterator[Path]:
    """Hold the directory of a new run, and remove it if the run fails before saving anything.

    A default directory is created here, so that no other run chooses it.

    Args:
        given: directory that the user chose, created when the run first writes; None chooses one.
        recipe: recipe of the run.
        now: start of the run.

    Yields:
        The directory.
    """
    has_runs = _RUNS.exists()
    path = _reserved(recipe, now) if given is None else given
    try:
        yield path
    except BaseException:
        discard_if_fresh(path)
        if given is None:
            _remove_if_empty(path)
            if not has_runs:
                _remove_if_empty(_RUNS)
        raise


def check_new(given: Path | None) -> None:
    """Check that a run can be written into a directory; nothing is created.

    Args:
        given: directory that the user chose; None stands for a default one.

    Raises:
        UsageError: when it is not empty, or not writable.
    """
    path = _RUNS if given is None else given
    if path.exists() and not path.is_dir():
        raise UsageError(f"run directory {path} is a file; choose another --run-dir")
    try:
        if given is not None and path.exists() and any(path.iterdir()):
            advice = ""
            if list_checkpoints(path / CHECKPOINTS):
                advice = f", or continue it: rl resume {path}"
            elif (path / RECIPE).is_file():
                advice = f"; its run {without_checkpoint(path)}"
            raise UsageError(
                f"run directory {path} exists and is not empty; choose another --run-dir{advice}"
            )
        parent = next(above for above in (path, *path.absolute().parents) if above.exists())
        if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
            raise UsageError(f"run directory {path} is not writable; choose another --run-dir")
    except OSError as error:
        raise UsageError(f"run directory {path} is not usable: {error.strerror}") from error


def discard_if_fresh(path: Path) -> None:
    """Remove the directory of a run that failed before it saved anything."""
    if list_checkpoints(path / CHECKPOINTS):
        return
    metrics = path / METRICS
    with contextlib.suppress(OSError):
        if metrics.exists() and metrics.stat().st_size:
            return
        if {entry.name for entry in path.iterdir()} <= {RECIPE, METRICS, CHECKPOINTS}:
            (path / CHECKPOINTS).rmdir()
            (path / METRICS).unlink(missing_ok=True)
            (path / RECIPE).unlink(missing_ok=True)
            path.rmdir()


def open_run(directory: str, *, learns: bool = True) -> Run:
    """Open the directory of a run that was started before.

    Args:
        directory: of the run.
        learns: whether it is to go on, which takes its storage too.

    Raises:
        UsageError: when it is not a run.
        ConfigError: when its recipe cannot be read, or has parts that only Python can supply.
    """
    path = Path(directory)
    if not path.exists():
        raise UsageError(f"there is no run directory {path}")
    for inside in (path.resolve(), path.resolve().parent):
        if inside.name in (CHECKPOINTS, BEST) and (inside.parent / RECIPE).is_file():
            raise UsageError(
                f"{path} is inside the run {inside.parent}; give that directory to use its newest "
                "checkpoint, or with rl eval --step another, with --best its best weights"
            )
    newest = list_checkpoints(path / CHECKPOINTS)[-1:]
    if not (path / RECIPE).is_file() and not newest:
        runs = sorted(one.parent for one in path.glob(f"*/{RECIPE}"))
        such = f", such as {runs[0]}" if runs else ""
        raise UsageError(
            f"{path} is not a run: it has no {RECIPE}; give the directory that rl train wrote{such}"
        )
    try:
        recipe = load_recipe(path / RECIPE)
    except ConfigError as error:
        copies = [f"copy {checkpoint / RECIPE} there" for checkpoint in newest]
        raise ConfigError("; ".join([str(error), *copies])) from error
    custom = [
        spec.kind
        for spec in (recipe.env, recipe.actor, recipe.algorithm, recipe.storage)
        if spec.is_custom and (learns or spec is not recipe.storage)
    ]
    if custom:
        raise ConfigError(
            f"{path} was trained with Python objects as its {' and '.join(custom)}, which the "
            "command line cannot rebuild; in Python, use rl_train.load(directory, parts=...)"
        )
    if runs_in(path) != [path]:
        raise UsageError(
            f"{path} holds a run for each seed; to continue them, give the same rl train --seeds "
            f"again with --run-dir {path}, or continue one: rl resume {runs_in(path)[0]}"
        )
    if learns and not newest:
        raise UsageError(f"{path} cannot be continued: it {without_checkpoint(path)}")
    return Run(path, recipe)


def without_checkpoint(path: Path) -> str:
    """Say why a run has no checkpoint, and what to do."""
    if is_in_use(path):
        return "is being trained, and has no checkpoint yet; wait for one"
    if list_checkpoints(path / BEST):
        return f"has no checkpoint any more, but its best weights: rl eval {path} --best"
    return "ended before its first checkpoint, or has none any more; train again elsewhere"


def runs_in(directory: Path) -> list[Path]:
    """Return the runs of a directory that `rl train --seeds` wrote, or the directory itself."""
    runs = [
        path.parent
        for path in directory.glob(f"seed-*/{RECIPE}")
        if path.parent.name.removeprefix("seed-").isdecimal()
    ]
    if (directory / CHECKPOINTS).exists() or not runs:
        return [directory]
    return sorted(runs, key=lambda run: int(run.name.removeprefix("seed-")))


def _reserved(recipe: Recipe, now: datetime) -> Path:
    """Create a new default directory, under another name if a concurrent run takes the first."""
    while True:
        path = default_run_dir(recipe, now)
        path.parent.mkdir(exist_ok=True)
        # Another run may just have taken the name, or failed and removed the parent.
        with contextlib.suppress(FileExistsError, FileNotFoundError):
            path.mkdir()
            return path


def _remove_if_empty(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.rmdir()
