"""Masks that forbid everything are refused where somebody would act on them."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rl_core.env import EnvStep
from rl_core.errors import DataError, SpaceError
from rl_core.spaces import mask_sizes, random_env_actions
from rl_train.collecting import ActionMaskCheck

PLAIN = spaces.Box(-1.0, 1.0, (2,))


def _space(size: int) -> spaces.Dict:
    return spaces.Dict({"action_mask": spaces.MultiBinary(size), "position": PLAIN})


def test_a_mask_must_allow_something() -> None:
    check = ActionMaskCheck(_space(2), spaces.Discrete(2))
    check({"action_mask": np.array([[1, 0], [0, 1]], dtype=np.int8)})
    nothing = {"action_mask": np.array([[1, 1], [0, 0]], dtype=np.int8)}
    with pytest.raises(DataError, match=r"environment \[1\] forbids every"):
        check(nothing)
    check(nothing, np.array([True, False]))  # the episode is over there


def test_nobody_acts_on_the_mask_at_the_end_of_an_episode() -> None:
    check, no = ActionMaskCheck(_space(2), spaces.Discrete(2)), np.zeros(3, bool)
    shown = {"action_mask": np.array([[0, 0], [0, 0], [1, 0]], dtype=np.int8)}
    terminated, truncated = np.array([True, False, False]), np.array([False, True, False])
    step = EnvStep(shown, np.zeros(3, np.float32), terminated, truncated, None, ~no, {})
    check.check_step(step)
    with pytest.raises(DataError, match=r"environment \[1\] forbids every"):
        check.check_step(replace(step, truncated=no))
    with pytest.raises(DataError, match=r"environment \[0, 1\] forbids every"):
        check.check_step(replace(step, final_observation=shown))  # others begin there


def test_every_choice_must_have_something_allowed() -> None:
    check = ActionMaskCheck(_space(5), spaces.MultiDiscrete([2, 3]))
    check({"action_mask": np.array([[1, 0, 0, 0, 1], [0, 1, 1, 0, 0]], dtype=np.int8)})
    with pytest.raises(DataError, match=r"environment \[0\]"):
        check({"action_mask": np.array([[1, 1, 0, 0, 0]], dtype=np.int8)})


def test_without_masks_nothing_is_looked_at() -> None:
    check = ActionMaskCheck(PLAIN, spaces.Discrete(2))
    check(np.zeros((3, 2)))


def test_a_mask_has_a_flag_for_each_action() -> None:
    assert mask_sizes(PLAIN, spaces.Discrete(2)) is None
    assert mask_sizes(_space(2), spaces.Discrete(2, start=5)) == (2,)
    assert mask_sizes(_space(5), spaces.MultiDiscrete([2, 3])) == (2, 3)
    for size, actions in ((3, spaces.Discrete(2)), (2, spaces.MultiDiscrete([2, 3]))):
        with pytest.raises(SpaceError, match=rf"has shape \({size},\), but"):
            ActionMaskCheck(_space(size), actions)
    with pytest.raises(SpaceError, match=r"MultiBinary\(2\) cannot be masked"):
        mask_sizes(_space(2), spaces.MultiBinary(2))


def test_random_actions_spread_away_from_a_single_bound() -> None:
    """By an exponential of mean 1: a share of 1 / e is further away than 1."""
    low = np.array([3.0, -np.inf, -np.inf, -2.0], np.float32)
    space = spaces.Box(low, np.array([np.inf, 5.0, np.inf, 2.0], np.float32))
    drawn = random_env_actions(space, 30_000, torch.Generator().manual_seed(0), torch.device("cpu"))
    distance = torch.stack([drawn[:, 0] - 3.0, 5.0 - drawn[:, 1]])
    assert bool((distance >= 0.0).all())
    for share in (distance > 1.0).float().mean(1).tolist():
        assert share == pytest.approx(math.exp(-1.0), abs=0.01)
    assert drawn[:, 2].std().item() == pytest.approx(1.0, abs=0.02)
    assert drawn[:, 3].std().item() == pytest.approx(4.0 / math.sqrt(12.0), abs=0.02)


def test_random_actions_are_uniform_over_what_is_allowed() -> None:
    generator, cpu = torch.Generator().manual_seed(0), torch.device("cpu")
    mask = torch.tensor([True, False, True, True]).expand(30_000, 4)
    drawn = random_env_actions(spaces.Discrete(4, start=10), 30_000, generator, cpu, mask)
    shares = torch.bincount(drawn - 10, minlength=4) / 30_000
    torch.testing.assert_close(shares, torch.tensor([1.0, 0.0, 1.0, 1.0]) / 3, atol=0.01, rtol=0.0)
    several = torch.tensor([True, False, False, True, True]).expand(30_000, 5)
    two = spaces.MultiDiscrete([2, 3], start=[4, -1])
    pairs = random_env_actions(two, 30_000, generator, cpu, several)
    assert bool((pairs[:, 0] == 4).all())
    torch.testing.assert_close(
        torch.bincount(pairs[:, 1] + 1, minlength=3) / 30_000,
        torch.tensor([0.0, 0.5, 0.5]),
        atol=0.01,
        rtol=0.0,
    )


def test_random_actions_have_the_axes_of_their_space() -> None:
    generator, cpu = torch.Generator().manual_seed(0), torch.device("cpu")
    grid = spaces.MultiDiscrete(np.array([[2, 1], [1, 3]]))
    only = torch.tensor([[False, True, True, True, False, False, True]])
    for mask, expected in ((only, [[[1, 0], [0, 2]]]), (None, None)):
        drawn = random_env_actions(grid, 1, generator, cpu, mask)
        assert drawn.shape == (1, 2, 2)
        assert expected is None or drawn.tolist() == expected
    flags = random_env_actions(spaces.MultiBinary(2), 10_000, generator, cpu)
    assert flags.float().mean(0).tolist() == pytest.approx([0.5, 0.5], abs=0.02)
