import math

import pytest
import torch
from torch import Tensor

from rl_core.errors import DataError
from rl_core.returns import (
    baseline_advantages,
    discounted_returns,
    explained_variance,
    gae,
    normalize,
    td_advantages,
    td_targets,
    vtrace,
)

# One environment, five steps: step 1 terminates, step 3 is cut by a time limit, step 4 is last.
# next_value[1] belongs to no state and must not be read; next_value[3] is the final observation's.
REWARD = torch.tensor([[1.0], [2.0], [3.0], [4.0], [5.0]])
VALUE = torch.tensor([[10.0], [20.0], [30.0], [40.0], [50.0]])
NEXT_VALUE = torch.tensor([[20.0], [math.nan], [40.0], [100.0], [60.0]])
TERMINATED = torch.tensor([[False], [True], [False], [False], [False]])
TRUNCATED = torch.tensor([[False], [False], [False], [True], [False]])
GAMMA, GAE_LAMBDA = 0.5, 0.5


def column(*values: float) -> Tensor:
    return torch.tensor(values).unsqueeze(1)


def random_rollout(num_steps: int, num_envs: int = 3) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(num_steps)

    def draw() -> Tensor:
        return torch.randn(num_steps, num_envs, generator=generator, dtype=torch.float64)

    def flags() -> Tensor:
        return torch.rand(num_steps, num_envs, generator=generator) < 0.15

    return {
        "reward": draw(),
        "value": draw(),
        "next_value": draw(),
        "terminated": flags(),
        "truncated": flags(),
    }


def test_td_targets_bootstrap_unless_terminated() -> None:
    targets = td_targets(REWARD, NEXT_VALUE, TERMINATED, GAMMA)
    torch.testing.assert_close(targets, column(11.0, 2.0, 23.0, 54.0, 35.0))


def test_td_advantages_subtract_the_value() -> None:
    advantages = td_advantages(REWARD, VALUE, NEXT_VALUE, TERMINATED, GAMMA)
    torch.testing.assert_close(advantages, column(1.0, -18.0, -7.0, 14.0, -15.0))


def test_discounted_returns_by_hand() -> None:
    returns = discounted_returns(REWARD, NEXT_VALUE, TERMINATED, TRUNCATED, GAMMA)
    # 5 + 60/2 = 35; 4 + 100/2 = 54; 3 + 54/2 = 30; 2; 1 + 2/2 = 2
    torch.testing.assert_close(returns, column(2.0, 2.0, 30.0, 54.0, 35.0))


def test_baseline_advantages_by_hand() -> None:
    advantages = baseline_advantages(REWARD, VALUE, NEXT_VALUE, TERMINATED, TRUNCATED, GAMMA)
    torch.testing.assert_close(advantages, column(-8.0, -18.0, 0.0, 14.0, -15.0))


def test_gae_by_hand() -> None:
    advantages = gae(REWARD, VALUE, NEXT_VALUE, TERMINATED, TRUNCATED, GAMMA, GAE_LAMBDA)
    # -15; 14, cut; -7 + 14/4 = -3.5; -18, ended; 1 - 18/4 = -3.5
    torch.testing.assert_close(advantages, column(-3.5, -18.0, -3.5, 14.0, -15.0))


def test_a_step_that_is_both_terminated_and_truncated_counts_as_terminated() -> None:
    both = torch.tensor([[True], [False]])
    reward, next_value = column(1.0, 2.0), column(100.0, 10.0)
    returns = discounted_returns(reward, next_value, both, both, 1.0)
    torch.testing.assert_close(returns, column(1.0, 12.0))


def test_a_single_step_is_its_one_step_target() -> None:
    one = {"reward": column(1.0), "next_value": column(4.0)}
    no = torch.tensor([[False]])
    torch.testing.assert_close(
        discounted_returns(**one, terminated=no, truncated=no, gamma=0.5), column(3.0)
    )
    torch.testing.assert_close(
        discounted_returns(**one, terminated=~no, truncated=no, gamma=0.5), column(1.0)
    )


@pytest.mark.parametrize("num_steps", [1, 2, 3, 4, 5, 7, 8, 9, 31, 32, 33, 200])
def test_gae_is_the_recursion_row_by_row(num_steps: int) -> None:
    rollout = random_rollout(num_steps)
    advantage = torch.zeros(3, dtype=torch.float64)
    expected = torch.zeros(num_steps, 3, dtype=torch.float64)
    for t in reversed(range(num_steps)):
        row = {name: column[t] for name, column in rollout.items()}
        bootstrap = torch.where(row["terminated"], 0.0, row["next_value"])
        delta = row["reward"] + 0.97 * bootstrap - row["value"]
        advantage = torch.where(row["terminated"] | row["truncated"], 0.0, advantage)
        advantage = delta + 0.97 * 0.9 * advantage
        expected[t] = advantage
    torch.testing.assert_close(gae(**rollout, gamma=0.97, gae_lambda=0.9), expected)


@pytest.mark.parametrize("num_steps", [1, 2, 6, 33])
def test_discounted_returns_are_the_recursion_row_by_row(num_steps: int) -> None:
    rollout = random_rollout(num_steps)
    del rollout["value"]
    following = rollout["next_value"][-1]
    expected = torch.zeros(num_steps, 3, dtype=torch.float64)
    for t in reversed(range(num_steps)):
        row = {name: column[t] for name, column in rollout.items()}
        following = torch.where(row["truncated"], row["next_value"], following)
        following = torch.where(row["terminated"], 0.0, following)
        expected[t] = following = row["reward"] + 0.97 * following
    torch.testing.assert_close(discounted_returns(**rollout, gamma=0.97), expected)


def test_gae_at_its_two_ends() -> None:
    rollout = random_rollout(20)
    rollout["truncated"] = rollout["truncated"] & ~rollout["terminated"]
    rollout["next_value"][:-1] = torch.where(
        rollout["truncated"][:-1], rollout["next_value"][:-1], rollout["value"][1:]
    )
    no_truncated = {name: item for name, item in rollout.items() if name != "truncated"}
    torch.testing.assert_close(
        gae(**rollout, gamma=0.9, gae_lambda=0.0), td_advantages(**no_truncated, gamma=0.9)
    )
    torch.testing.assert_close(
        gae(**rollout, gamma=0.9, gae_lambda=1.0), baseline_advantages(**rollout, gamma=0.9)
    )


def test_discounts_may_be_tensors() -> None:
    rollout = random_rollout(9)
    gamma, gae_lambda = torch.tensor(0.9).double(), torch.tensor(0.8).double()
    torch.testing.assert_close(
        gae(**rollout, gamma=gamma, gae_lambda=gae_lambda),
        gae(**rollout, gamma=float(gamma), gae_lambda=float(gae_lambda)),
    )


def test_long_rollouts_neither_overflow_nor_lose_digits() -> None:
    steps = 5000
    ones, zeros = torch.ones(steps, 1), torch.zeros(steps, 1)
    never = torch.zeros(steps, 1, dtype=torch.bool)
    returns = discounted_returns(ones, zeros, never, never, 1.0)
    torch.testing.assert_close(returns[:, 0], torch.arange(steps, 0.0, -1.0))
    advantages = gae(ones, zeros, zeros, never, never, 0.5, 0.5)
    torch.testing.assert_close(advantages[:-50], torch.full((steps - 50, 1), 4.0 / 3.0))


def test_vtrace_by_hand() -> None:
    # Ratios 2 (clipped to 1), 0.5, 1, 1, 4 (clipped to 1).
    log_rho = column(2.0, 0.5, 1.0, 1.0, 4.0).log()
    targets, advantages = vtrace(log_rho, REWARD, VALUE, NEXT_VALUE, TERMINATED, TRUNCATED, GAMMA)
    # corrections: -15; 14, cut; -7 + 0.5 * 14 = 0; 0.5 * -18 = -9; 1 + 0.5 * -9 = -3.5
    torch.testing.assert_close(targets, column(6.5, 11.0, 30.0, 54.0, 35.0))
    # step 0: 1 + 0.5 * 11 - 10; step 1: 0.5 * (2 - 20); step 2: 3 + 0.5 * 54 - 30
    # step 3: 4 + 0.5 * 100 - 40; step 4: 5 + 0.5 * 60 - 50
    torch.testing.assert_close(advantages, column(-3.5, -9.0, 0.0, 14.0, -15.0))


def test_vtrace_bounds_are_separate() -> None:
    no = torch.zeros(2, 1, dtype=torch.bool)
    arguments = {
        "log_rho": column(4.0, 4.0).log(),
        "reward": column(1.0, 1.0),
        "value": column(0.0, 0.0),
        "next_value": column(0.0, 0.0),
        "terminated": no,
        "truncated": no,
    }
    # delta = (1, 1); correction[1] = rho; correction[0] = rho + gamma * c * correction[1]
    targets, advantages = vtrace(**arguments, gamma=0.5, rho_clip=2.0, c_clip=3.0, pg_rho_clip=1.5)
    torch.testing.assert_close(targets, column(2.0 + 0.5 * 3.0 * 2.0, 2.0))
    torch.testing.assert_close(advantages, column(1.5 * (1.0 + 0.5 * 2.0), 1.5))
    targets, _ = vtrace(**arguments, gamma=0.5, trace_lambda=0.5)
    torch.testing.assert_close(targets, column(1.0 + 0.5 * 0.5 * 1.0, 1.0))


def test_on_policy_vtrace_is_the_lambda_return() -> None:
    rollout = random_rollout(17)
    targets, _ = vtrace(
        torch.zeros(17, 3, dtype=torch.float64), **rollout, gamma=0.9, trace_lambda=0.8
    )
    expected = gae(**rollout, gamma=0.9, gae_lambda=0.8) + rollout["value"]
    torch.testing.assert_close(targets, expected)


def test_vmap_over_a_leading_axis() -> None:
    tasks = [random_rollout(6), random_rollout(6)]
    tasks[1]["reward"] = tasks[1]["reward"] * 2.0
    stacked = {name: torch.stack([task[name] for task in tasks]) for name in tasks[0]}

    def estimate(rollout: dict[str, Tensor]) -> Tensor:
        return gae(**rollout, gamma=0.9, gae_lambda=0.8)

    torch.testing.assert_close(
        torch.func.vmap(estimate)(stacked),
        torch.stack([gae(**task, gamma=0.9, gae_lambda=0.8) for task in tasks]),
    )


def test_gradients_reach_the_values() -> None:
    rollout = random_rollout(3, 1)
    no = torch.zeros(3, 1, dtype=torch.bool)
    value = rollout["value"].requires_grad_()
    advantage = gae(
        rollout["reward"], value, rollout["next_value"], no, no, gamma=0.5, gae_lambda=0.5
    )
    (gradient,) = torch.autograd.grad(advantage[0, 0], value)
    torch.testing.assert_close(gradient, -column(1.0, 0.25, 0.0625).double())


def test_estimators_trace_as_one_graph() -> None:
    def estimate(rollout: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        advantage = gae(**rollout, gamma=0.9, gae_lambda=0.8)
        _, other = vtrace(rollout["reward"], **rollout, gamma=0.9)
        return normalize(advantage), other

    rollout = random_rollout(10)
    compiled = torch.compile(estimate, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(rollout), estimate(rollout))


def test_shapes_are_not_broadcast() -> None:
    rollout = random_rollout(4)
    for name in ("value", "next_value", "terminated", "truncated"):
        wrong = {**rollout, name: rollout[name][:, :1]}
        with pytest.raises(DataError, match=rf"{name} has shape \(4, 1\).*\(4, 3\)"):
            gae(**wrong, gamma=0.9, gae_lambda=0.8)
    with pytest.raises(DataError, match="value has shape"):
        baseline_advantages(**{**rollout, "value": rollout["value"][:, :1]}, gamma=0.9)
    with pytest.raises(DataError, match="log_rho has shape"):
        vtrace(torch.zeros(4), **rollout, gamma=0.9)


@pytest.mark.parametrize("name", ["terminated", "truncated"])
def test_flags_must_be_booleans(name: str) -> None:
    rollout = random_rollout(4)
    rollout[name] = rollout[name].float()
    with pytest.raises(DataError, match=rf"{name} has dtype torch.float32; expected torch.bool"):
        gae(**rollout, gamma=0.9, gae_lambda=0.8)


def test_normalize_by_hand() -> None:
    # Mean 2, population variance (1 + 0 + 1) / 3.
    expected = torch.tensor([-1.0, 0.0, 1.0]) / math.sqrt(2.0 / 3.0)
    torch.testing.assert_close(normalize(torch.tensor([1.0, 2.0, 3.0])), expected)


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
def test_normalize_looks_only_at_what_counts(dtype: torch.dtype) -> None:
    x = torch.tensor([[1.0, 1000.0], [2.0, 3.0]])
    mask = torch.tensor([[1, 0], [1, 1]]).to(dtype)
    deviation = math.sqrt(2.0 / 3.0)
    expected = torch.tensor([[-1.0 / deviation, 0.0], [0.0, 1.0 / deviation]])
    torch.testing.assert_close(normalize(x, mask), expected)


def test_normalize_of_equal_or_no_entries_is_zero() -> None:
    zeros = torch.zeros(3)
    ones = torch.ones(3)
    torch.testing.assert_close(normalize(ones), zeros)
    torch.testing.assert_close(normalize(torch.ones(1)), torch.zeros(1))
    torch.testing.assert_close(normalize(ones, ones), zeros)
    torch.testing.assert_close(normalize(ones, zeros), zeros)


def test_normalize_adds_eps_to_the_standard_deviation() -> None:
    x = torch.tensor([-1.0, 1.0])
    torch.testing.assert_close(normalize(x, eps=1.0), x / 2.0)
    torch.testing.assert_close(normalize(x, torch.ones(2), eps=1.0), x / 2.0)


def test_normalize_refuses_a_mask_of_another_shape() -> None:
    with pytest.raises(DataError, match="mask has shape"):
        normalize(torch.ones(3), torch.ones(3, 1))


def test_explained_variance_by_hand() -> None:
    target = torch.tensor([1.0, 2.0, 3.0, 4.0])
    assert explained_variance(target, target).item() == 1.0
    assert explained_variance(target + 7.0, target).item() == 1.0
    assert explained_variance(torch.zeros(4), target).item() == 0.0
    assert explained_variance(-target, target).item() == -3.0
    # Errors (1, -1, 1, -1) have variance 1, the target 1.25.
    prediction = target - torch.tensor([1.0, -1.0, 1.0, -1.0])
    assert explained_variance(prediction, target).item() == pytest.approx(1.0 - 1.0 / 1.25)


def test_explained_variance_looks_only_at_what_counts() -> None:
    target = torch.tensor([1.0, 2.0, 3.0, 4.0, 500.0])
    prediction = torch.tensor([0.0, 3.0, 2.0, 5.0, -900.0])
    mask = torch.tensor([True, True, True, True, False])
    for weight in (mask, mask.float()):
        assert explained_variance(prediction, target, weight).item() == pytest.approx(0.2)


def test_explained_variance_of_a_constant_target_is_zero() -> None:
    assert explained_variance(torch.tensor([1.0, 5.0]), torch.tensor([2.0, 2.0])).item() == 0.0
    # The mean of seven times 0.1 is not 0.1 in float32; a small spread is still a spread.
    assert explained_variance(torch.arange(7.0), torch.full((7,), 0.1)).item() == 0.0
    near = torch.tensor([1.0, 1.001])
    assert explained_variance(near, near).item() == 1.0
    nothing = torch.zeros(2, dtype=torch.bool)
    assert explained_variance(torch.ones(2), torch.tensor([1.0, 2.0]), nothing).item() == 0.0


def test_explained_variance_refuses_other_shapes() -> None:
    with pytest.raises(DataError, match="target has shape"):
        explained_variance(torch.ones(3), torch.ones(3, 1))
    with pytest.raises(DataError, match="mask has shape"):
        explained_variance(torch.ones(3), torch.ones(3), torch.ones(1))
