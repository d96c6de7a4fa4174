import math
from typing import cast

import numpy as np
import numpy.typing as npt
import pytest

from rl_core.stateful import Stateful
from rl_core.types import StateValue
from rl_testing.stateful import StatefulSuite
from rl_train import RewardScaler

NEVER = np.zeros(2, np.bool_)
ALL = np.ones(2, np.bool_)


def _floats(*values: float) -> npt.NDArray[np.float32]:
    return np.array(values, np.float32)


def _flags(*values: bool) -> npt.NDArray[np.bool_]:
    return np.array(values, np.bool_)


class TestState(StatefulSuite):
    def make_part(self) -> RewardScaler:
        return RewardScaler(2)

    def use_part(self, part: Stateful) -> StateValue:
        scaler = cast("RewardScaler", part)
        scaled = [scaler(_floats(n, -2.0 * n), _flags(n == 2, False), ALL) for n in range(4)]
        return cast("StateValue", np.stack(scaled).tolist())


def test_a_sequence_by_hand() -> None:
    scaler = RewardScaler(2, gamma=0.5, epsilon=0.0)
    # Sums 1 and 3: mean 2, variance 1.
    assert scaler(_floats(1.0, 3.0), NEVER, ALL).tolist() == [1.0, 3.0]
    # Sums 0.5 + 2 and 1.5 + 0: mean 2, variance 0.25; of all four: mean 2, variance 0.625.
    scaled = scaler(_floats(2.0, 0.0), _flags(True, False), ALL)
    np.testing.assert_allclose(scaled, [2.0 / math.sqrt(0.625), 0.0], rtol=1e-6)
    # The first episode has ended, so its sum is 4; the other's is 0.75 + 4.
    scaled = scaler(_floats(4.0, 4.0), NEVER, ALL)
    variance = np.var([1.0, 3.0, 2.5, 1.5, 4.0, 4.75])
    np.testing.assert_allclose(scaled, [4.0 / math.sqrt(variance)] * 2, rtol=1e-6)


def test_the_statistics_are_those_of_all_sums_at_once() -> None:
    generator = np.random.default_rng(0)
    scaler, sums, running = RewardScaler(3, gamma=0.9), [], np.zeros(3)
    for _ in range(200):
        reward = generator.normal(5.0, 2.0, 3).astype(np.float32)
        ended = generator.random(3) < 0.1
        scaler(reward, ended, np.ones(3, np.bool_))
        running = 0.9 * running + reward
        sums.append(running.copy())
        running[ended] = 0.0
    state = scaler.state_dict()
    assert state["mean"] == pytest.approx(np.mean(sums), rel=1e-9)
    assert state["var"] == pytest.approx(np.var(sums), rel=1e-9)
    assert state["count"] == 600.0


def test_a_row_that_only_reset_is_no_reward() -> None:
    scaler, other = RewardScaler(2, gamma=0.5), RewardScaler(1, gamma=0.5)
    scaler(_floats(1.0, 3.0), _flags(False, True), ALL)
    scaler(_floats(2.0, 0.0), NEVER, _flags(True, False))
    scaler(_floats(4.0, 8.0), NEVER, ALL)
    sums = [1.0, 3.0, 2.5, 5.25, 8.0]  # the reset itself adds none, and 8 begins an episode
    assert scaler.state_dict()["count"] == len(sums)
    assert scaler.state_dict()["var"] == pytest.approx(np.var(sums), rel=1e-9)
    before = other.state_dict()
    assert other(_floats(0.0), _flags(False), _flags(False)).tolist() == [0.0]
    assert other.state_dict() == before


def test_the_sign_stays_and_extremes_are_clipped() -> None:
    scaler = RewardScaler(2, clip=3.0)
    for _ in range(50):
        scaled = scaler(_floats(1.0, -1.0), ALL, ALL)
        assert scaled[0] > 0.0 > scaled[1]
    assert scaler(_floats(1e6, -0.5), ALL, ALL)[0] == 3.0
    assert scaled.dtype == np.float32


def test_the_first_reward_has_no_variance_yet() -> None:
    for reward, scaled in ((1e-5, 0.1), (1.0, 10.0)):  # 1e-5 / sqrt(1e-8), and clipped
        first = RewardScaler(1)(_floats(reward), _flags(False), _flags(True))
        np.testing.assert_allclose(first, [scaled], rtol=1e-6)


def test_forgotten_sums_keep_the_statistics() -> None:
    scaler = RewardScaler(2, gamma=0.5, epsilon=0.0)
    scaler(_floats(1.0, 3.0), NEVER, ALL)
    scaler.forget_running_sums()
    scaler(_floats(2.0, 6.0), NEVER, ALL)
    assert scaler.state_dict()["var"] == pytest.approx(np.var([1.0, 3.0, 2.0, 6.0]))
