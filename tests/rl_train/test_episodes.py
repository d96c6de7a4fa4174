from collections.abc import Mapping
from typing import cast

import numpy as np
import pytest
import torch

from rl_core.env import EnvStep
from rl_core.stateful import Stateful
from rl_core.types import ArrayLike, StateValue
from rl_testing.stateful import StatefulSuite
from rl_train import Episode
from rl_train.collecting import EpisodeTracker

KINDS = ["numpy", "torch"]


def _step(
    reward: list[float],
    *,
    terminated: tuple[bool, bool] = (False, False),
    truncated: tuple[bool, bool] = (False, False),
    valid: tuple[bool, bool] = (True, True),
    same_step: bool = True,
    info: Mapping[str, object] | None = None,
    kind: str = "numpy",
) -> EnvStep:
    def array(values: object, dtype: str) -> ArrayLike:
        rows = np.array(values, dtype)
        return torch.from_numpy(rows) if kind == "torch" else rows

    ended = any(terminated) or any(truncated)
    observation = array([[0.0], [0.0]], "float32")
    return EnvStep(
        observation,
        array(reward, "float32"),
        array(terminated, "bool"),
        array(truncated, "bool"),
        observation if ended and same_step else None,
        array(valid, "bool"),
        info or {},
    )


class TestState(StatefulSuite):
    def make_part(self) -> EpisodeTracker:
        return EpisodeTracker(2)

    def use_part(self, part: Stateful) -> StateValue:
        tracker = cast("EpisodeTracker", part)
        episodes = tracker.track(_step([1.0, 2.0], terminated=(False, True)))
        episodes += tracker.track(_step([3.0, 4.0], terminated=(True, False)))
        return [(episode.episode_return, episode.length) for episode in episodes]


@pytest.mark.parametrize("kind", KINDS)
def test_episodes_that_reset_in_the_same_step(kind: str) -> None:
    tracker = EpisodeTracker(2)
    assert tracker.episode_start.tolist() == [True, True]
    assert tracker.track(_step([1.0, 10.0], kind=kind)) == []
    assert tracker.episode_start.tolist() == [False, False]
    ended = tracker.track(_step([2.0, 20.0], terminated=(True, False), kind=kind))
    assert ended == [Episode(3.0, 2, 0)]
    assert tracker.episode_start.tolist() == [True, False]
    both = _step([4.0, 30.0], truncated=(True, True), terminated=(False, True), kind=kind)
    assert tracker.track(both) == [Episode(4.0, 1, 0), Episode(60.0, 3, 1)]
    assert tracker.episode_start.tolist() == [True, True]


@pytest.mark.parametrize("kind", KINDS)
def test_episodes_that_reset_in_the_next_step(kind: str) -> None:
    tracker = EpisodeTracker(2)
    ended = tracker.track(_step([1.0, 5.0], truncated=(True, False), same_step=False, kind=kind))
    assert ended == [Episode(1.0, 1, 0)]
    assert tracker.episode_start.tolist() == [False, False]
    assert tracker.track(_step([0.0, 5.0], valid=(False, True), kind=kind)) == []
    assert tracker.episode_start.tolist() == [True, False]
    last = _step([7.0, 5.0], terminated=(True, True), same_step=False, kind=kind)
    assert tracker.track(last) == [Episode(7.0, 1, 0), Episode(15.0, 3, 1)]


def test_returns_of_many_small_rewards_are_not_rounded_away() -> None:
    tracker = EpisodeTracker(2)
    tracker.track(_step([2.0**24, 0.0]))
    for _ in range(3):
        tracker.track(_step([1.0, 0.0]))
    (episode,) = tracker.track(_step([0.0, 0.0], terminated=(True, False)))
    assert episode.episode_return == 2.0**24 + 3.0


def test_a_reset_forgets_running_episodes() -> None:
    tracker = EpisodeTracker(2)
    tracker.track(_step([1.0, 1.0]))
    tracker.reset()
    assert tracker.episode_start.tolist() == [True, True]
    ended = tracker.track(_step([2.0, 3.0], terminated=(True, True)))
    assert ended == [Episode(2.0, 1, 0), Episode(3.0, 1, 1)]


def test_an_episode_that_is_cut_counts_anew() -> None:
    tracker = EpisodeTracker(2)
    tracker.track(_step([1.0, 10.0], terminated=(False, True)))
    tracker.track(_step([2.0, 20.0]))
    assert tracker.cut(3) == []
    assert tracker.cut(2) == [Episode(3.0, 2, 0)]
    ended = tracker.track(_step([4.0, 40.0], terminated=(True, True)))
    assert ended == [Episode(4.0, 1, 0), Episode(60.0, 2, 1)]


def test_the_flags_of_an_earlier_step_stay_as_they_were() -> None:
    tracker = EpisodeTracker(2)
    first = tracker.episode_start
    tracker.track(_step([1.0, 1.0]))
    second = tracker.episode_start
    tracker.reset()
    tracker.track(_step([1.0, 1.0]))
    assert first.tolist() == [True, True]
    assert second.tolist() == [False, False]


@pytest.mark.parametrize("as_tensor", [False, True])
def test_success_is_read_from_the_last_step(as_tensor: bool) -> None:
    told: object = np.array([True, False])
    if as_tensor:
        told = torch.tensor([True, False])
    began = np.array([False, True])  # of the episodes that begin in the same step
    tracker = EpisodeTracker(2)
    info = {"final_info": {"is_success": told}, "is_success": began}
    ended = tracker.track(_step([0.0, 0.0], terminated=(True, True), info=info))
    assert [episode.success for episode in ended] == [True, False]
    ended = tracker.track(
        _step([0.0, 0.0], terminated=(True, True), same_step=False, info={"is_success": told})
    )
    assert [episode.success for episode in ended] == [True, False]


def test_success_is_unknown_where_it_was_not_told() -> None:
    tracker = EpisodeTracker(2)
    info = {"final_info": {}, "is_success": np.array([True, True])}
    ended = tracker.track(_step([0.0, 0.0], terminated=(True, True), info=info))
    assert [episode.success for episode in ended] == [None, None]
    told = {"is_success": np.array([False, False]), "_is_success": np.array([True, False])}
    ended = tracker.track(_step([0.0, 0.0], terminated=(True, True), info={"final_info": told}))
    assert [episode.success for episode in ended] == [False, None]
