"""The summaries that commands print of a run or an evaluation."""

import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from rl_command.curve import TEST_RETURN, TRAIN_RETURN, draw_image, draw_text, read_curve
from rl_command.run_directory import METRICS
from rl_core.config import Recipe
from rl_train import TrainingResult


def print_training(
    recipe: Recipe,
    run_dir: Path,
    result: TrainingResult,
    following: Sequence[str],
) -> None:
    """Print the result of a run with its learning curve, and save the curve as an image.

    Args:
        recipe: recipe of the run.
        run_dir: directory of the run; the image is its ``curve.png``.
        result: result of the training.
        following: commands that may come next.
    """
    title = f"{recipe.algorithm.name} on {recipe.env.name}, seed {recipe.seed}"
    curves = {name: read_curve(run_dir / METRICS, name) for name in (TRAIN_RETURN, TEST_RETURN)}
    preset = str(recipe.resolved.get("preset", ""))
    chosen = f", preset {preset.partition('@')[2]}".rstrip() if preset else ""
    resumed = result.session_steps < result.total_steps
    lines = [
        f"{title}{chosen}: {result.session_steps:,} {'more ' if resumed else ''}steps in "
        f"{result.wall_seconds:.1f} s ({result.steps_per_second:,.0f} steps/s)"
        + (f", {result.total_steps:,} in all" if resumed else ""),
        "",
    ]
    plot = draw_text(curves[TRAIN_RETURN], ascii_only=not shows_lines())
    lines += ["mean return of the last 100 episodes", *plot, ""] if plot else []
    if result.total_updates == 0:
        lines += [f"learned     nothing: the run ended before its first update{_reason(recipe)}"]
    if result.stopped:
        lines += ["stopped     before its end, and not evaluated"]
    if result.evaluation is not None:
        lines += [f"evaluation  {result.evaluation}"]
    lines += [f"run         {run_dir}", "next        " + "\n            ".join(following)]
    image = run_dir / "curve.png"
    try:
        draw_image(curves, image, title)  # first, because standard output may be closed
    except OSError as error:
        warnings.warn(f"{image} could not be written: {error.strerror or error}", stacklevel=2)
    print("\n".join(lines))


def _reason(recipe: Recipe) -> str:
    waits = recipe.algorithm.kwargs.get("update_after")
    return f" (algorithm.update_after = {waits:,})" if isinstance(waits, int) else ""


def shows_lines() -> bool:
    """Return whether standard output can show box-drawing characters."""
    try:
        "─╭".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
