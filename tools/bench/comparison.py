"""How likely a run of ours is better than the peer's, over all rows that both systems ran."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from scipy import stats

from bench.curve import at_common_steps
from bench.markdown import table
from bench.plan import OURS, PEER, SB3, Key, PlanRow
from bench.results import Record, records_of

Scores = npt.NDArray[np.float64]
"""Shape `(runs,)`: what each training seed reached, its mean return over the episodes."""

CELLS = ("seeds", "peer seeds", "mean", "peer mean", "difference [95 % interval]", "P(better)", "p")
"""Columns of `comparison_cells`."""

_HEADER = ("row", "peer", "episodes", *CELLS, "P(better) while learning")
_NUM_RESAMPLES = 5000
_NUM_PERMUTATIONS = 200_000
"""All that there are of ten runs each, so that the test is exact."""
_LEVEL = 0.05


def probability_of_improvement(ours: Scores, theirs: Scores) -> Scores:
    """Return the share of pairs of runs in which ours is better, shape `(...)`; ties count half.

    Args:
        ours: shape `(..., n)`.
        theirs: shape `(..., m)`.

    Source:
        Agarwal et al. 2021, https://arxiv.org/abs/2108.13264, section 4.3.
    """
    difference = ours[..., :, None] - theirs[..., None, :]
    return np.asarray((np.sign(difference) + 1.0).mean((-2, -1)) / 2.0)


def improvement_interval(
    rows: Sequence[tuple[Scores, Scores]], generator: np.random.Generator
) -> tuple[float, tuple[float, float]]:
    """Average the probability of improvement over rows, with its 95 % bootstrap interval.

    Runs are drawn again within each row and each system: seeds are independent, the episodes that
    they are evaluated on are the same.

    Args:
        rows: the runs of ours and of the peer.
        generator: draws the resamples.
    """
    drawn = [probability_of_improvement(*_resampled(pair, generator)) for pair in rows]
    centre = np.mean([probability_of_improvement(*pair) for pair in rows])
    return float(centre), _interval(np.mean(drawn, axis=0))


def difference_interval(
    ours: Scores, theirs: Scores, generator: np.random.Generator
) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of the difference of two means."""
    again = _resampled((ours, theirs), generator)
    return _interval(again[0].mean(-1) - again[1].mean(-1))


def chance_of_equals(ours: Scores, theirs: Scores) -> float:
    """Return how likely equal systems differ by as much: p of the two-sided Mann-Whitney test.

    It is exact, also where runs tie, with up to ten runs each.
    """
    ranks = stats.rankdata(np.concatenate([ours, theirs]))
    found = stats.permutation_test(
        (ranks[: len(ours)], ranks[len(ours) :]),
        lambda a, b, axis: a.mean(axis) - b.mean(axis),
        n_resamples=_NUM_PERMUTATIONS,
        vectorized=True,
        rng=np.random.default_rng(0),
    )
    return float(found.pvalue)


def holm(chances: Sequence[float]) -> Scores:
    """Correct p-values for their number.

    Source:
        Holm 1979, A simple sequentially rejective multiple test procedure.
    """
    order = np.argsort(chances)
    factors = np.arange(len(order), 0, -1)
    corrected = np.empty(len(order))
    corrected[order] = np.maximum.accumulate(np.asarray(chances)[order] * factors).clip(max=1.0)
    return corrected


def comparison_cells(
    ours: Scores, theirs: Scores, generator: np.random.Generator
) -> tuple[list[str], float]:
    """Return the cells under `CELLS`, and p."""
    low, high = difference_interval(ours, theirs, generator)
    chance = chance_of_equals(ours, theirs)
    cells = [
        *(str(len(each)) for each in (ours, theirs)),
        *(f"{each.mean():.1f}" for each in (ours, theirs)),
        f"{ours.mean() - theirs.mean():+.1f} [{low:+.1f}, {high:+.1f}]",
        f"{probability_of_improvement(ours, theirs):.2f}",
        f"{chance:.3f}",
    ]
    return cells, chance


def comparison_table(rows: Sequence[PlanRow], records: Mapping[Key, Record]) -> str:
    """Render the comparison of rows with several runs of both systems.

    Args:
        rows: of all plans; those of which a good run must fail are left out.
        records: finished runs.
    """
    generator = np.random.default_rng(0)
    lines: list[list[str]] = []
    chances: dict[str, float] = {}
    below: set[str] = set()
    pooled: list[tuple[Scores, Scores]] = []
    paired: list[tuple[Scores, Scores]] = []
    learning: list[tuple[Scores, Scores]] = []
    for row in rows:
        if row.at_most or not {OURS, PEER} <= set(row.options):
            continue
        found = records_of(row, records)
        ours, theirs = (_scores(found[system]) for system in (OURS, PEER))
        if min(len(ours), len(theirs)) < 2:
            continue
        is_paired = all(record.is_comparable for runs in found.values() for record in runs)
        cells, chances[row.label] = comparison_cells(ours, theirs, generator)
        curves = training_scores(found[OURS], found[PEER])
        cells.append("-" if curves is None else f"{probability_of_improvement(*curves):.2f}")
        lines.append([f"`{row.label}`", row.peer, "same" if is_paired else "own", *cells])
        if probability_of_improvement(ours, theirs) < 0.5:
            below.add(row.label)
        if row.peer == SB3:
            pooled.append((ours, theirs))
            if is_paired:
                paired.append((ours, theirs))
            if curves is not None:
                learning.append(curves)
    if not lines:
        return "Nothing to compare yet."
    differing = [pair for pair in pooled if len(np.unique(np.concatenate(pair))) > 1]
    corrected = zip(chances, holm(list(chances.values())), strict=True)
    worse = [f"`{label}`" for label, p in corrected if label in below and p < _LEVEL]
    summary = [
        f"Probability of improvement on Stable-Baselines3 over {title}: {_pool(pairs, generator)}"
        for title, pairs in (
            ("rows evaluated on the same episodes", paired),
            ("all rows", pooled),
            ("all rows in which not every run is equal", differing),
            ("all rows while learning", learning),
        )
    ]
    summary.append(
        f"Rows in which ours is below, corrected for the {len(lines)} rows (Holm, "
        f"{100 * _LEVEL:.0f} %): {', '.join(worse) or 'none'}."
    )
    bullets = "\n".join(f"- {line}" for line in summary)
    return f"{table(_HEADER, lines, left=3)}\n\n{bullets}"


def _pool(pairs: Sequence[tuple[Scores, Scores]], generator: np.random.Generator) -> str:
    if not pairs:
        return "none yet."
    centre, (low, high) = improvement_interval(pairs, generator)
    return f"**{centre:.2f}** [{low:.2f}, {high:.2f}], {len(pairs)} rows."


def _scores(records: Sequence[Record]) -> Scores:
    return np.array([record.returns.mean() for record in records])


def training_scores(
    ours: Sequence[Record], theirs: Sequence[Record]
) -> tuple[Scores, Scores] | None:
    """Return each run's mean over its learning curve; None unless both systems have two curves."""
    curves = [[run.curve for run in runs if len(run.curve) > 1] for runs in (ours, theirs)]
    common = at_common_steps([curve for of_system in curves for curve in of_system])
    if common is None or min(map(len, curves)) < 2:
        return None
    means = common[1].mean(1)
    return means[: len(curves[0])], means[len(curves[0]) :]


def _resampled(
    pair: tuple[Scores, Scores], generator: np.random.Generator
) -> tuple[Scores, Scores]:
    ours, theirs = (
        each[generator.integers(len(each), size=(_NUM_RESAMPLES, len(each)))] for each in pair
    )
    return ours, theirs


def _interval(values: Scores) -> tuple[float, float]:
    low, high = np.quantile(values, [0.025, 0.975])
    return float(low), float(high)
