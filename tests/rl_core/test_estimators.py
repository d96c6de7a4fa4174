from typing import get_args

import pytest
import torch

from rl_core.returns import AdvantageEstimator, Steps, ValueTarget, estimate, shift_to_positive

# Three rows: the first environment terminates in row 0, the second is truncated in row 1 with a
# successor worth 8, the third runs on to one worth 4. The discount is 0.5.
STEPS = Steps(
    reward=torch.tensor([[1.0, 1.0, 1.0], [2.0, 2.0, 2.0], [4.0, 4.0, 4.0]]),
    value=torch.tensor([[3.0, 3.0, 3.0], [2.0, 2.0, 2.0], [1.0, 1.0, 1.0]]),
    next_value=torch.tensor([[9.0, 2.0, 2.0], [1.0, 8.0, 1.0], [4.0, 4.0, 4.0]]),
    terminated=torch.tensor([[True, False, False], [False] * 3, [False] * 3]),
    truncated=torch.tensor([[False] * 3, [False, True, False], [False] * 3]),
)
GAMMA = 0.5
RETURNS = [[1.0, 4.0, 3.5], [5.0, 6.0, 5.0], [6.0, 6.0, 6.0]]
ONE_STEP = [[1.0, 2.0, 2.0], [2.5, 6.0, 2.5], [6.0, 6.0, 6.0]]
VALUE = STEPS.value


@pytest.mark.parametrize(
    ("estimator", "advantage", "own_target"),
    [
        ("return", torch.tensor(RETURNS), torch.tensor(RETURNS)),
        ("baseline", torch.tensor(RETURNS) - VALUE, torch.tensor(RETURNS)),
        ("td", torch.tensor(ONE_STEP) - VALUE, torch.tensor(ONE_STEP)),
        # errors (-2, -1, -1), (0.5, 4, 0.5), (5, 5, 5), a product γλ of 0.25
        (
            "gae",
            torch.tensor([[-2.0, 0.0, -0.5625], [1.75, 4.0, 1.75], [5.0, 5.0, 5.0]]),
            torch.tensor([[1.0, 3.0, 2.4375], [3.75, 6.0, 3.75], [6.0, 6.0, 6.0]]),
        ),
    ],
)
def test_every_estimator_by_hand(
    estimator: AdvantageEstimator, advantage: torch.Tensor, own_target: torch.Tensor
) -> None:
    got, target = estimate(STEPS, GAMMA, 0.5, advantage=estimator)
    torch.testing.assert_close(got, advantage)
    torch.testing.assert_close(target, own_target)


def test_vtrace_of_fresh_rollouts_by_hand() -> None:
    advantage, target = estimate(STEPS, GAMMA, 1.0, advantage="vtrace")
    # with ratios of 1 the targets are the returns, and advantages look one step ahead at them
    torch.testing.assert_close(target, torch.tensor(RETURNS))
    torch.testing.assert_close(advantage, torch.tensor(RETURNS) - VALUE)


def test_vtrace_averages_over_horizons_by_lambda() -> None:
    advantage, target = estimate(STEPS, GAMMA, 0.5, advantage="vtrace")
    # with ratios of 1 the targets are those of GAE, here of the third environment
    torch.testing.assert_close(target[:, 2], torch.tensor([2.4375, 3.75, 6.0]))
    torch.testing.assert_close(advantage[:, 2], torch.tensor([-0.125, 3.0, 5.0]))


def test_vtrace_bounds_the_ratio() -> None:
    ratios = torch.full_like(VALUE, 0.5)
    ratios[2] = 3.0
    steps = Steps(
        STEPS.reward,
        VALUE,
        STEPS.next_value,
        STEPS.terminated,
        STEPS.truncated,
        log_rho=ratios.log(),
    )
    advantage, target = estimate(steps, GAMMA, 1.0, advantage="vtrace")
    # third environment: corrections 5; 0.5 * 0.5 + 0.25 * 5 = 1.5; 0.5 * -1 + 0.25 * 1.5 = -0.125
    torch.testing.assert_close(target[:, 2], torch.tensor([2.875, 3.5, 6.0]))
    torch.testing.assert_close(
        advantage[:, 2],
        torch.tensor([0.5 * (1 + 0.5 * 3.5 - 3), 0.5 * (2 + 0.5 * 6.0 - 2), 5.0]),
    )


@pytest.mark.parametrize("estimator", get_args(AdvantageEstimator))
def test_the_target_can_be_chosen_apart_from_the_estimator(estimator: AdvantageEstimator) -> None:
    plain, _ = estimate(STEPS, GAMMA, 0.9, advantage=estimator)
    targets: dict[ValueTarget, list[list[float]]] = {"return": RETURNS, "td": ONE_STEP}
    for name, expected in targets.items():
        advantage, target = estimate(STEPS, GAMMA, 0.9, advantage=estimator, value_target=name)
        assert torch.equal(advantage, plain)
        torch.testing.assert_close(target, torch.tensor(expected))


@pytest.mark.parametrize("estimator", get_args(AdvantageEstimator))
def test_a_value_behind_the_end_is_not_read(estimator: AdvantageEstimator) -> None:
    wild = STEPS.next_value.masked_fill(STEPS.terminated, torch.nan)
    steps = Steps(STEPS.reward, VALUE, wild, STEPS.terminated, STEPS.truncated)
    for ours, theirs in zip(
        estimate(steps, GAMMA, 0.9, advantage=estimator),
        estimate(STEPS, GAMMA, 0.9, advantage=estimator),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


def test_shifting_leaves_out_what_does_not_count() -> None:
    x = torch.tensor([3.0, -9.0, -1.0])
    assert shift_to_positive(x, torch.tensor([1.0, 0.0, 1.0])).tolist() == [4.0, 0.0, 0.0]
    assert shift_to_positive(x, torch.ones(3).bool()).tolist() == [12.0, 0.0, 8.0]
    assert shift_to_positive(x, torch.zeros(3)).tolist() == [0.0, 0.0, 0.0]
