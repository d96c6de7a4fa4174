"""Learning curves of runs, as text and as images."""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rl_train.evaluation import interquartile_mean, stratified_bootstrap_interval
from rl_train.loggers import read_metrics

TRAIN_RETURN, TEST_RETURN = "train/episode_return", "test/episode_return"

_WIDTH, _HEIGHT, _MOST_POINTS = 60, 10, 200
_TO_ASCII = str.maketrans("─│╭╮╰╯┤└", "-|.,`'|+")


@dataclass(frozen=True, slots=True)
class Curve:
    """A metric over a run, or over several.

    Attributes:
        steps: environment steps, ascending.
        values: values of the metric.
        band: lower and upper end of an interval around each value; empty for a single run.
    """

    steps: tuple[int, ...]
    values: tuple[float, ...]
    band: tuple[tuple[float, float], ...] = ()

    def at(self, step: float) -> float:
        """Return the value at a step, on the straight line between its neighbors."""
        return float(np.interp(step, self.steps, self.values))


def read_curve(metrics: Path, metric: str) -> Curve:
    """Read a metric from a run's log.

    Args:
        metrics: a file that `rl_train.JsonlLogger` wrote.
        metric: path of the metric, such as ``train/episode_return``.

    Raises:
        DataError: when the file cannot be read.
    """
    points: dict[int, float] = {}
    for line in read_metrics(metrics):
        step, value = line["step"], line.get(metric)
        if step is not None and value is not None:
            points[int(step)] = value
    return Curve(tuple(points), tuple(points.values()))


def over_runs(curves: Sequence[Curve]) -> Curve:
    """Return the interquartile mean of several runs, with its 95 % bootstrap interval.

    It covers the steps that all runs have, and lies on straight lines between the steps at which
    each was logged. If they have none in common, as short runs of one value each, it is one point
    of the values that are nearest. A single run is returned as it is.

    Args:
        curves: one for each run, with at least one point.
    """
    if len(curves) == 1:
        return curves[0]
    first, last = max(c.steps[0] for c in curves), min(c.steps[-1] for c in curves)
    steps = sorted({step for c in curves for step in c.steps if first <= step <= last} or {last})
    steps = sorted({*steps[:: -(-len(steps) // _MOST_POINTS)], steps[-1]})
    samples = [np.array([curve.at(step) for curve in curves]) for step in steps]
    generator = np.random.default_rng(0)
    band = [
        stratified_bootstrap_interval([sample], interquartile_mean, 500, generator=generator)
        for sample in samples
    ]
    means = tuple(float(interquartile_mean(sample)) for sample in samples)
    return Curve(tuple(steps), means, tuple(band))


def draw_text(curve: Curve, *, ascii_only: bool = False) -> list[str]:
    """Draw a curve as lines of text.

    Args:
        curve: the curve; of one or two points, the numbers are written instead.
        ascii_only: draw without box-drawing characters.
    """
    if len(curve.steps) < 3:
        intervals = [f" (95 % interval {low:,.6g} to {high:,.6g})" for low, high in curve.band]
        points = zip(curve.steps, curve.values, intervals or ["", ""], strict=False)
        return [f"{step:,} steps: {value:,.6g}{interval}" for step, value, interval in points]
    first, last = curve.steps[0], curve.steps[-1]
    columns = [curve.at(first + (last - first) * c / (_WIDTH - 1)) for c in range(_WIDTH)]
    low, high = min(columns), max(columns)
    step = high / (_HEIGHT - 1) - low / (_HEIGHT - 1)
    decimals = 0 if step == 0.0 else max(0, -math.floor(math.log10(step)))
    style = f".{decimals}f" if 0.0 < step < 1e9 and decimals <= 6 else ".6g"
    parts = [r / (_HEIGHT - 1) for r in range(_HEIGHT)]
    labels = [f"{low * (1.0 - part) + high * part:{style}}" for part in parts]
    rows = _rows([round(value / step - low / step) if step else 0 for value in columns])
    margin = max(map(len, labels))
    lines = [
        f"{labels[r]:>{margin}} ┤{''.join(rows[r]).rstrip()}" for r in range(_HEIGHT - 1, -1, -1)
    ]
    lines = lines if step else lines[-1:]
    left, right = f"{first:,}", f"{last:,} steps"
    lines.append(f"{'':>{margin}} └{'─' * _WIDTH}")
    lines.append(f"{'':>{margin}}  {left}{right:>{_WIDTH - len(left)}}")
    return [line.translate(_TO_ASCII) for line in lines] if ascii_only else lines


def draw_image(
    curves: dict[str, Curve], path: Path, title: str, metric: str = "episode return"
) -> None:
    """Draw curves into an image file, with their bands.

    Args:
        curves: curves by name; those without points are left out.
        path: image file; its suffix chooses the format.
        title: title of the image.
        metric: label of the vertical axis.
    """
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it reports building its font cache
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 4.0), layout="constrained")
    axes = figure.add_subplot()
    for name, curve in curves.items():
        if curve.steps:
            axes.plot(curve.steps, curve.values, marker="o" if len(curve.steps) < 10 else "")
            axes.lines[-1].set_label(_plain(name))
        if curve.band:
            lows, highs = zip(*curve.band, strict=True)
            axes.fill_between(curve.steps, lows, highs, alpha=0.2)
    axes.set_title(_plain(title))
    axes.set_xlabel("environment steps")
    axes.set_ylabel(_plain(metric))
    axes.grid(alpha=0.3)
    if axes.lines:
        axes.legend()
    figure.savefig(path, dpi=120)


def _plain(text: str) -> str:
    """Return text for a figure, in which a dollar sign would begin a formula."""
    return text.replace("$", r"\$")


def _rows(heights: Sequence[int]) -> list[list[str]]:
    """Draw lines between heights: one list of characters per row, one column per height."""
    rows = [[" "] * len(heights) for _ in range(_HEIGHT)]
    for column, (now, then) in enumerate(zip(heights, [*heights[1:], heights[-1]], strict=True)):
        if now == then:
            rows[now][column] = "─"
            continue
        rises = then > now
        rows[now][column] = "╯" if rises else "╮"
        rows[then][column] = "╭" if rises else "╰"
        for between in range(min(now, then) + 1, max(now, then)):
            rows[between][column] = "│"
    return rows
