"""How likely a run of ours is better than the peer's, over all rows that both systems ran."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from bench.markdown import table
from bench.plan import OURS, PEER, Key, PlanRow
from bench.results import Record, records_of

Scores = npt.NDArray[np.float64]
"""Shape `(runs,)`: what each training seed reached, its mean over the episodes."""

_HEADER = (
    "row",
    "episodes",
    "seeds",
    "SB3 seeds",
    "mean",
    "SB3 mean",
    "difference [95 % interval]",
    "P(better)",
)
_NUM_RESAMPLES = 5000


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


def comparison_table(rows: Sequence[PlanRow], records: Mapping[Key, Record]) -> str:
    """Render the comparison of rows with several runs of both systems.

    Args:
        rows: of all plans; those of which a good run must fail, and those with another peer than
            Stable-Baselines3, are left out.
        records: finished runs.
    """
    generator = np.random.default_rng(0)
    lines: list[list[str]] = []
    compared: list[tuple[Scores, Scores]] = []
    for row in rows:
        if row.at_most or not {OURS, PEER} <= set(row.options):
            continue
        if "library" in row.options[PEER]:
            continue
        found = records_of(row, records)
        ours, theirs = (_scores(found[system], row.metric) for system in (OURS, PEER))
        if min(len(ours), len(theirs)) < 2:
            continue
        compared.append((ours, theirs))
        is_paired = all(record.is_comparable for runs in found.values() for record in runs)
        low, high = difference_interval(ours, theirs, generator)
        lines.append(
            [
                f"`{row.label}`",
                "same" if is_paired else "own",
                *(str(len(each)) for each in (ours, theirs)),
                *(f"{each.mean():.1f}" for each in (ours, theirs)),
                f"{ours.mean() - theirs.mean():+.1f} [{low:+.1f}, {high:+.1f}]",
                f"{probability_of_improvement(ours, theirs):.2f}",
            ]
        )
    if not lines:
        return "Nothing to compare yet."
    centre, (low, high) = improvement_interval(compared, generator)
    return (
        f"{table(_HEADER, lines, left=2)}\n\nProbability of improvement over these {len(lines)} "
        f"rows: **{centre:.2f}** [{low:.2f}, {high:.2f}]."
    )


def _scores(records: Sequence[Record], metric: str) -> Scores:
    values = [record.values(metric) for record in records]
    return np.array([each.mean() for each in values if len(each)])


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
