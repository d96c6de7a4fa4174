import numpy as np
import pytest

from rl_core.errors import ConfigError, DataError
from rl_train.evaluation import interquartile_mean, stratified_bootstrap_interval
from rl_train.evaluation.statistics import FloatArray


def mean(values: FloatArray) -> FloatArray:
    return np.asarray(values.mean(axis=-1))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([7.0], 7.0),
        ([1.0, 3.0], 2.0),
        ([1.0, 2.0, 9.0], 4.0),  # a quarter of 3 is less than one value: nothing is dropped
        ([-100.0, 1.0, 3.0, 500.0], 2.0),
        ([-100.0, 1.0, 2.0, 6.0, 500.0], 3.0),
        ([-100.0, 0.0, 1.0, 2.0, 5.0, 500.0], 2.0),
        ([-100.0, 0.0, 1.0, 2.0, 3.0, 4.0, 500.0], 2.0),
        ([-100.0, -100.0, 0.0, 2.0, 4.0, 6.0, 500.0, 500.0], 3.0),
    ],
)
def test_interquartile_mean_by_hand(values: list[float], expected: float) -> None:
    assert float(interquartile_mean(np.array(values))) == expected
    assert float(interquartile_mean(np.array(values)[::-1])) == expected


def test_interquartile_mean_reduces_the_last_axis() -> None:
    values = np.array([[[9, 1, 3, 0], [1, 1, 1, 1]], [[5, 6, 7, 8], [0, 2, 0, 4]]])
    np.testing.assert_array_equal(interquartile_mean(values), [[2.0, 1.0], [6.5, 1.0]])


def test_interquartile_mean_leaves_its_argument_alone() -> None:
    values = np.array([3.0, 1.0, 2.0])
    interquartile_mean(values)
    np.testing.assert_array_equal(values, [3.0, 1.0, 2.0])


@pytest.mark.parametrize("values", [[], [[], []], 3.0])
def test_interquartile_mean_needs_values(values: object) -> None:
    with pytest.raises(DataError, match="at least one value"):
        interquartile_mean(np.array(values))


def test_interquartile_mean_refuses_nan_where_it_would_be_dropped() -> None:
    with pytest.raises(DataError, match="NaN"):
        interquartile_mean(np.array([1.0, 2.0, 3.0, np.nan]))


def test_interval_of_a_mean_is_the_normal_one() -> None:
    values = np.random.default_rng(3).normal(10.0, 2.0, size=400)
    low, high = stratified_bootstrap_interval(
        [values], mean, 20_000, generator=np.random.default_rng(0)
    )
    half = 1.959964 * values.std() / np.sqrt(len(values))
    assert low == pytest.approx(values.mean() - half, abs=0.04 * half)
    assert high == pytest.approx(values.mean() + half, abs=0.04 * half)


def test_confidence_sets_the_width() -> None:
    values = np.random.default_rng(4).normal(size=400)

    def width(confidence: float) -> float:
        low, high = stratified_bootstrap_interval(
            [values], mean, 20_000, confidence, generator=np.random.default_rng(0)
        )
        return high - low

    assert width(0.5) / width(0.95) == pytest.approx(0.674490 / 1.959964, rel=0.05)


def test_resamples_stay_within_their_stratum() -> None:
    low, high = stratified_bootstrap_interval(
        [np.zeros(5), np.full(5, 10.0)], mean, generator=np.random.default_rng(0)
    )
    assert (low, high) == (5.0, 5.0)
    low, high = stratified_bootstrap_interval(
        [np.repeat([0.0, 10.0], 5)], mean, generator=np.random.default_rng(0)
    )
    assert low < 3.5
    assert high > 6.5


def test_strata_count_by_their_size() -> None:
    interval = stratified_bootstrap_interval(
        [np.zeros(3), np.ones(1)], mean, generator=np.random.default_rng(0)
    )
    assert interval == (0.25, 0.25)


def test_one_value_gives_a_point() -> None:
    interval = stratified_bootstrap_interval(
        [np.array([4.0])], interquartile_mean, generator=np.random.default_rng(0)
    )
    assert interval == (4.0, 4.0)


def test_interval_of_the_interquartile_mean_ignores_outliers() -> None:
    values = np.concatenate([np.linspace(0.0, 1.0, 98), [1e6, -1e6]])
    low, high = stratified_bootstrap_interval(
        [values], interquartile_mean, generator=np.random.default_rng(0)
    )
    assert 0.3 < low < float(interquartile_mean(values)) < high < 0.7


def test_the_generator_decides() -> None:
    values = [np.random.default_rng(5).normal(size=20)]

    def interval(seed: int) -> tuple[float, float]:
        return stratified_bootstrap_interval(
            values, interquartile_mean, 200, generator=np.random.default_rng(seed)
        )

    assert interval(1) == interval(1)
    assert interval(1) != interval(2)


def test_many_values_are_resampled_in_blocks() -> None:
    blocks: list[tuple[int, ...]] = []

    def recording_mean(values: FloatArray) -> FloatArray:
        blocks.append(values.shape)
        return mean(values)

    stratified_bootstrap_interval(
        [np.ones(6000), np.ones(2000)], recording_mean, 700, generator=np.random.default_rng(0)
    )
    assert len(blocks) > 1
    assert sum(rows for rows, _ in blocks) == 700
    assert {size for _, size in blocks} == {8000}


def test_the_statistic_must_reduce_the_last_axis() -> None:
    with pytest.raises(ConfigError, match=r"expected \(50,\)"):
        stratified_bootstrap_interval(
            [np.arange(9.0)],
            lambda values: np.asarray(values.mean()),
            50,
            generator=np.random.default_rng(0),
        )


@pytest.mark.parametrize(
    ("strata", "message"),
    [
        ([], "no stratum"),
        ([np.ones(2), np.ones(0)], r"stratum 1 has shape \(0,\)"),
        ([np.ones((2, 2))], r"stratum 0 has shape \(2, 2\)"),
        ([np.array([1.0, np.nan])], "stratum 0 has a value that is not finite"),
        ([np.ones(1), np.array([np.inf])], "stratum 1 has a value that is not finite"),
    ],
)
def test_bad_strata_are_refused(strata: list[FloatArray], message: str) -> None:
    with pytest.raises(DataError, match=message):
        stratified_bootstrap_interval(strata, mean, generator=np.random.default_rng(0))


@pytest.mark.parametrize(
    ("num_resamples", "confidence", "message"),
    [(0, 0.95, "num_resamples"), (10, 0.0, "confidence"), (10, 1.0, "confidence")],
)
def test_bad_options_are_refused(num_resamples: int, confidence: float, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        stratified_bootstrap_interval(
            [np.ones(3)], mean, num_resamples, confidence, generator=np.random.default_rng(0)
        )
