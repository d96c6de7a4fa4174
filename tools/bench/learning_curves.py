"""The learning curves on the algorithms' pages, a figure for each row that has any.

The same records give the same files, byte by byte.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from matplotlib import rc_context, rcdefaults, rcParams
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from bench.curve import Numbers, at_common_steps
from bench.markdown import write_block
from bench.plan import OURS, Key, PlanRow
from bench.results import Record, records_of

PAGES: Mapping[str, str] = {
    "a2c": "a2c.md",
    "ddpg": "ddpg.md",
    "dqn": "dqn.md",
    "droq": "sac.md",
    "ppo": "ppo.md",
    "redq": "sac.md",
    "rnd-ppo": "rnd.md",
    "sac": "sac.md",
    "td3": "td3.md",
    "trpo": "trpo.md",
    "vpg": "vpg.md",
}
"""In ``algorithms``, by the registered name of the algorithm."""

FIGURES = Path("figures", "learning")
"""In the folder of all pages."""

_GREY = "#808080"
"""Of texts and axes; it can be read on white and on black."""

Style: TypeAlias = tuple[str, str, str]
"""Name, color and line of a band."""

_OURS: Style = ("rl toolbox", "#3b82f6", "-")
_PEERS: Mapping[str, Style] = {
    "SB3": ("Stable-Baselines3", "#e8820c", "--"),
    "SBX": ("SBX", "#16a34a", "--"),
}
"""By what the peer is called in tables."""

_SETTINGS: Mapping[Any, object] = {
    "svg.hashsalt": "rl toolbox",  # of the ids in the file, which are drawn at random without it
    "svg.fonttype": "none",
    "font.size": 9.0,
    "axes.titlesize": 10.0,
    "legend.fontsize": 8.0,
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor"), _GREY),
    **dict.fromkeys(("xtick.color", "ytick.color", "grid.color"), _GREY),
}

_CAPTION = """\
Mean return of the last 100 *training* episodes, in which the algorithm explores. How the final
policies do without exploration is in the [table](../benchmarks.md#learning). Lines are means over
seeds, bands reach from the lowest seed to the highest. The command below a figure makes its runs;
`hatch run bench:learning --curves` draws it."""

_EMPTY = "No run with a curve is recorded yet."


@dataclass(frozen=True, slots=True)
class Band:
    """The curves of several seeds, at the same steps.

    Attributes:
        num_seeds: how many there are.
        steps: shape `(points,)`, environment steps.
        mean: over seeds; shape `(points,)`.
        low: of the lowest seed; shape `(points,)`.
        high: of the highest seed; shape `(points,)`.
    """

    num_seeds: int
    steps: Numbers
    mean: Numbers
    low: Numbers
    high: Numbers


def band(curves: Sequence[Numbers]) -> Band | None:
    """Bring the curves of several seeds to the steps that all of them reached.

    Args:
        curves: each `(points, 2)`, step and return; those of less than two points are left out.

    Returns:
        Linear interpolations at equal distances; None where there is nothing to interpolate.
    """
    common = at_common_steps([curve for curve in curves if len(curve) > 1])
    if common is None:
        return None
    steps, returns = common
    return Band(len(returns), steps, returns.mean(axis=0), returns.min(axis=0), returns.max(axis=0))


def bands_of(row: PlanRow, records: Mapping[Key, Record]) -> dict[str, Band]:
    """Return a row's curves by system, without systems of which there are none."""
    found = {
        system: band([run.curve for run in runs])
        for system, runs in records_of(row, records).items()
    }
    return {system: made for system, made in found.items() if made is not None}


def draw(row: PlanRow, bands: Mapping[str, Band], path: Path) -> None:
    """Draw the figure of a row; see `draw_figure`.

    Args:
        row: whose it is.
        bands: by system; at least one.
        path: of the SVG file.
    """
    lines = {_style(row, system): made for system, made in bands.items()}
    draw_figure(lines, title(row), "return of a training episode", path)


def draw_figure(bands: Mapping[Style, Band], title: str, ordinate: str, path: Path) -> None:
    """Draw one figure of lines over environment steps.

    Args:
        bands: by name, color and line; at least one.
        title: of the figure.
        ordinate: what is drawn.
        path: of the SVG file.
    """
    with rc_context():
        rcdefaults()  # nobody's own settings
        rcParams.update(_SETTINGS)
        figure = Figure(figsize=(5.2, 3.0), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.add_subplot()
        for style, made in bands.items():
            _draw_band(axes, style, made)
        axes.set_title(title)
        axes.set_xlabel("environment steps")
        axes.set_ylabel(ordinate)
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.grid(alpha=0.25, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
        figure.savefig(
            path, format="svg", transparent=True, metadata={"Date": None, "Creator": None}
        )


def _style(row: PlanRow, system: str) -> Style:
    return _OURS if system == OURS else _PEERS[row.peer]


def _draw_band(axes: Axes, style: Style, made: Band) -> None:
    name, color, line = style
    label = f"{name}, {made.num_seeds} seed{'s' if made.num_seeds > 1 else ''}"
    if made.num_seeds > 1:
        axes.fill_between(made.steps, made.low, made.high, color=color, alpha=0.2, linewidth=0.0)
    axes.plot(made.steps, made.mean, line, color=color, linewidth=1.5, label=label)


def title(row: PlanRow) -> str:
    """Return such as ``DQN on CartPole-v1, velocities hidden``."""
    return f"{row.written} on {row.env}{', ' + row.note if row.note else ''}"


def file_name(row: PlanRow) -> str:
    """Return such as ``dqn-CartPole-v1-velocities-hidden.svg``."""
    return re.sub(r"[^\w]+", "-", row.label) + ".svg"


def figure_text(row: PlanRow, bands: Mapping[str, Band]) -> str:
    """Return a figure in Markdown, with the command that made it."""
    ends = "; ".join(
        f"{_style(row, system)[0]} from {made.mean[0]:.4g} to {made.mean[-1]:.4g}"
        for system, made in bands.items()
    )
    alternative = f"Training returns of {title(row)} over {row.steps:,} steps: {ends}"
    return f"![{alternative}](../{(FIGURES / file_name(row)).as_posix()})\n\n`{row.command}`"


def write_curves(rows: Sequence[PlanRow], records: Mapping[Key, Record], pages: Path) -> list[str]:
    """Draw all figures, and write the block ``curves`` of the algorithms' pages.

    Args:
        rows: of all plans.
        records: finished runs; those without a curve are left out.
        pages: folder of the pages, with ``algorithms`` in it.

    Returns:
        What is wrong: algorithms whose curves have no page, or one without a block for them.
    """
    folder = pages / FIGURES
    folder.mkdir(parents=True, exist_ok=True)
    texts: dict[str, list[str]] = {page: [] for page in PAGES.values()}
    problems: list[str] = []
    drawn: set[str] = set()
    for row in rows:
        if row.algorithm not in PAGES:
            problems.append(f"{row.label}: no page of '{row.algorithm}' is named in PAGES")
        elif bands := bands_of(row, records):
            draw(row, bands, folder / file_name(row))
            drawn.add(file_name(row))
            texts[PAGES[row.algorithm]].append(figure_text(row, bands))
    for old in folder.glob("*.svg"):
        if old.name not in drawn:
            old.unlink()
    for page, figures in texts.items():
        content = "\n\n".join([_CAPTION, *figures]) if figures else _EMPTY
        try:
            write_block(pages / "algorithms" / page, "curves", content)
        except (OSError, ValueError) as error:
            problems.append(f"algorithms/{page}: {error}")
    print(f"drew {len(drawn)} figures into {FIGURES.as_posix()}")
    return problems
