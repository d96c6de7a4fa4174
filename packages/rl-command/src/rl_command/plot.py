"""The command ``rl plot``."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rl_command.curve import (
    TEST_RETURN,
    TRAIN_RETURN,
    Curve,
    draw_image,
    draw_text,
    over_runs,
    read_curve,
)
from rl_command.errors import UsageError, print_warning
from rl_command.options import command_options
from rl_command.parser import Command, parse
from rl_command.run_directory import METRICS, RECIPE, runs_in
from rl_command.summary import shows_lines
from rl_core.config import LENGTHS, ComponentSpec, Config, Recipe
from rl_core.errors import nearest
from rl_train.loggers import read_metrics
from rl_train.recipe_files import load_recipe

_FORMATS = (".png", ".svg", ".pdf")


@dataclass(frozen=True, kw_only=True)
class PlotArguments(Config):
    """Options of ``rl plot``.

    Attributes:
        output: Image to draw; its ending chooses the format (.png, .svg or .pdf).
        csv: File to write the numbers into.
        metric: Metric of the vertical axis, as in metrics.jsonl; several are separated by commas.
    """

    output: str | None = None
    csv: str | None = None
    metric: str = TRAIN_RETURN


def plot(words: Sequence[str]) -> int:
    """Draw the learning curves of runs.

    Runs that differ in their seeds alone become one curve: their interquartile mean, with its 95 %
    bootstrap interval. Without a file to write, curves are drawn as text.

    Args:
        words: the arguments after ``rl plot``.

    Returns:
        The exit status.
    """
    options = command_options(PlotArguments)
    summary = (
        "Draw learning curves; runs that differ in their seeds alone share a curve and a band."
    )
    given = parse(Command("rl plot", summary, options, ("RUN_DIRS...",), required=1), words)
    arguments = given.into(PlotArguments)
    if arguments.output is not None and Path(arguments.output).suffix.lower() not in _FORMATS:
        endings = ", ".join(_FORMATS)
        raise UsageError(f"-o: got '{arguments.output}'; expected a name that ends in {endings}")
    groups = _grouped({run: name for name in given.names for run in runs_in(Path(name))})
    metrics = [metric.strip() for metric in arguments.metric.split(",")]
    named = {
        (f"{name}: {metric}" if len(metrics) > 1 else name): (runs, metric)
        for name, runs in groups.items()
        for metric in metrics
    }
    curves = {name: _curve(*of) for name, of in named.items()}
    if arguments.output is not None:
        label = ", ".join(metrics)
        draw_image(curves, Path(arguments.output), "", label)
    if arguments.csv is not None:
        _write_csv(
            Path(arguments.csv), curves, {name: len(runs) for name, (runs, _) in named.items()}
        )
    for path in filter(None, (arguments.output, arguments.csv)):
        print(f"wrote {path}")
    for name, curve in {} if arguments.output or arguments.csv else curves.items():
        lines = draw_text(curve, ascii_only=not shows_lines())
        print(name if len(metrics) > 1 else f"{name}: {metrics[0]}", *lines, "", sep="\n")
    return 0


def _grouped(runs: Mapping[Path, str]) -> dict[str, list[Path]]:
    """Return runs that differ in their seeds alone, by what tells them from the others.

    Args:
        runs: with the argument that each was found by.
    """
    groups: list[tuple[Recipe, dict[int, Path]]] = []
    for run in runs:
        if not (run / RECIPE).is_file():
            raise UsageError(f"{run} is not a run: it has no {RECIPE}")
        own = load_recipe(run / RECIPE)
        kept = ["restart_model", "custom", *(LENGTHS if _has_schedules(own) else ())]
        resolved = {name: own.resolved[name] for name in kept if name in own.resolved}
        recipe = replace(own, env=_without_processes(own.env), seed=0, resolved=resolved)
        alike = (by_seed for other, by_seed in groups if other == recipe)
        free = next((by_seed for by_seed in alike if own.seed not in by_seed), None)
        if free is None:  # a repeated seed is no further sample
            groups.append((recipe, free := {}))
        free[own.seed] = run
    names = [f"{_name(recipe, 'algorithm')} on {_name(recipe, 'env')}" for recipe, _ in groups]
    # Where names are alike, the argument tells groups apart; where that is alike too, a run.
    for where in (lambda run: runs[run], str):
        names = [
            f"{name}, {where(next(iter(by_seed.values())))}" if names.count(name) > 1 else name
            for name, (_, by_seed) in zip(names, groups, strict=True)
        ]
    return {
        f"{name} ({len(by_seed)} runs)" if len(by_seed) > 1 else name: list(by_seed.values())
        for name, (_, by_seed) in zip(names, groups, strict=True)
    }


def _name(recipe: Recipe, kind: str) -> str:
    """Return the name of a part, which the user's own have among what was resolved."""
    custom = recipe.resolved.get("custom", {})
    assert isinstance(custom, Mapping)
    return str(custom.get(kind, getattr(recipe, kind).name))


def _without_processes(env: ComponentSpec) -> ComponentSpec:
    """Leave out in which processes environments step, which makes no difference to a run."""
    if env.kwargs.get("vectorization") not in ("sync", "async"):
        return env
    names = ("vectorization", "num_workers")
    return replace(env, kwargs={n: value for n, value in env.kwargs.items() if n not in names})


def _has_schedules(recipe: Recipe) -> bool:
    """Return whether an option changes over the run, by how much of its length is done."""
    parts = (recipe.algorithm, recipe.storage)
    return any("(" in str(value) for part in parts for value in part.kwargs.values())


def _curve(runs: Sequence[Path], metric: str) -> Curve:
    curves = {run: read_curve(run / METRICS, metric) for run in runs}
    shown = {run: curve for run, curve in curves.items() if curve.steps}
    empty = [run for run in runs if run not in shown]
    if not shown:
        raise UsageError(f"{empty[0]} has no values of '{metric}'{_hint(empty[0], metric)}")
    for run in empty:
        print_warning(f"{run} is left out: it has no values of '{metric}'")
    last = {run: curve.steps[-1] for run, curve in shown.items()}
    shortest, longest = min(last, key=last.__getitem__), max(last.values())
    if longest > 1.1 * last[shortest]:
        print_warning(
            f"drawn up to step {last[shortest]:,}, where {shortest} ends; others reach {longest:,}"
        )
    return over_runs(list(shown.values()))


def _hint(run: Path, metric: str) -> str:
    """Say what to do about a run that has no values of a metric."""
    lines = read_metrics(run / METRICS)
    names = {name for line in lines for name, value in line.items() if value is not None}
    if metric == TRAIN_RETURN and TEST_RETURN in names:
        return f"; its evaluations are shown by --metric {TEST_RETURN}"
    if metric == TRAIN_RETURN:
        return (
            "; no episode has ended: train longer, or with --trainer.test-every to evaluate on "
            "the way"
        )
    if metric.startswith("test/") and not any(name.startswith("test/") for name in names):
        return "; train with --trainer.test-every to evaluate on the way"
    return nearest(metric, names)


def _write_csv(path: Path, curves: Mapping[str, Curve], num_runs: Mapping[str, int]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["curve", "runs", "step", "value", "low", "high"])
        for name, curve in curves.items():
            bands = curve.band or [("", "")] * len(curve.steps)
            for step, value, band in zip(curve.steps, curve.values, bands, strict=True):
                writer.writerow([name, num_runs[name], step, value, *band])
