import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from rl_algos_onpolicy import (
    A2C,
    TRPO,
    VPG,
    A2CConfig,
    OnPolicyActor,
    OnPolicyActorConfig,
    TRPOConfig,
    VPGConfig,
)
from rl_algos_onpolicy.advantages import advantage_columns
from rl_algos_onpolicy.config import OnPolicyConfig
from rl_core.algorithm import AnyAlgorithm, evaluate_rollout
from rl_core.algorithm.hyper import schedules_of
from rl_core.batch import Rollout
from rl_core.gradients import HyperParameters
from rl_core.nn.distributions import from_columns

NUMBER = spaces.Box(-np.inf, np.inf, (1,), np.float32)


def _actor(memory: str = "none") -> OnPolicyActor:
    """An actor whose value is the observation itself."""
    torch.manual_seed(0)
    config = OnPolicyActorConfig(hidden_sizes=(), recurrent_net=memory)  # type: ignore[arg-type]  # a name
    actor = OnPolicyActor(NUMBER, spaces.Discrete(2), config)
    if memory == "none":
        assert actor.value_head.out is not None
        torch.nn.init.ones_(actor.value_head.out.weight)
    return actor


def _rollout(
    observation: list[list[float]],
    next_observation: list[float],
    reward: list[list[float]],
    *,
    terminated: list[tuple[int, int]] = [],  # noqa: B006  # never written to
    truncated: list[tuple[int, int]] = [],  # noqa: B006
    invalid: list[tuple[int, int]] = [],  # noqa: B006
    start: list[tuple[int, int]] = [],  # noqa: B006
    finals: dict[tuple[int, int], float] | None = None,
    state: dict[str, Tensor] | None = None,
) -> Rollout:
    shape = (len(reward), len(reward[0]))

    def flags(places: list[tuple[int, int]]) -> Tensor:
        flag = torch.zeros(shape, dtype=torch.bool)
        for place in places:
            flag[place] = True
        return flag

    finals = finals or {}
    return Rollout(
        observation=torch.tensor(observation).unsqueeze(-1),
        next_observation=torch.tensor(next_observation).unsqueeze(-1),
        action=torch.zeros(shape, dtype=torch.int64),
        reward=torch.tensor(reward),
        terminated=flags(terminated),
        truncated=flags(truncated),
        valid=~flags(invalid),
        episode_start=flags(start),
        state=state or {},
        final_index=torch.tensor(list(finals), dtype=torch.int64).reshape(-1, 2),
        final_observation=torch.tensor(list(finals.values())).reshape(-1, 1),
    )


def _columns(
    actor: OnPolicyActor,
    rollout: Rollout,
    config: OnPolicyConfig,
    *,
    normalize: bool = False,
    **options: bool,
) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
    hyper = {name: schedule.value(0.0) for name, schedule in schedules_of(config).items()}
    return advantage_columns(
        actor,
        rollout,
        replace(config, normalize_advantage=normalize),
        HyperParameters(hyper),
        **options,
    )


SHIFTED: list[Callable[[bool], AnyAlgorithm]] = [
    lambda shift: VPG(_actor(), VPGConfig(positive_advantage=shift)),
    lambda shift: A2C(_actor(), A2CConfig(normalize_advantage=True, positive_advantage=shift)),
    lambda shift: TRPO(_actor(), TRPOConfig(positive_advantage=shift)),
]
"""Algorithms that normalize advantages over the rollout, and may shift them."""


def test_termination_truncation_and_the_end_of_the_rollout_by_hand() -> None:
    # One environment terminates, one is truncated inside the step, one goes on.
    rollout = _rollout(
        observation=[[1.0, 1.0, 1.0], [2.0, 2.0, 2.0]],
        next_observation=[3.0, 3.0, 3.0],
        reward=[[10.0, 10.0, 10.0], [20.0, 20.0, 20.0]],
        terminated=[(0, 0)],
        truncated=[(0, 1)],
        start=[(1, 0), (1, 1)],
        finals={(0, 1): 8.0},
    )
    columns, _ = _columns(_actor(), rollout, OnPolicyConfig(gamma=0.5, gae_lambda=0.5))
    last = 20.0 + 0.5 * 3.0 - 2.0  # 19.5
    expected = [
        [10.0 - 1.0, 10.0 + 0.5 * 8.0 - 1.0, 10.0 + 0.5 * 2.0 - 1.0 + 0.25 * last],
        [last, last, last],
    ]
    torch.testing.assert_close(columns["advantage"], torch.tensor(expected))
    torch.testing.assert_close(
        columns["value_target"],
        torch.tensor(expected) + rollout.observation.squeeze(-1),  # type: ignore[union-attr]  # one tensor
    )


def test_a_row_that_only_resets_hands_nothing_on() -> None:
    # Row 0 is truncated; row 1 sees its final observation and only resets; row 2 starts anew.
    rollout = _rollout(
        observation=[[1.0], [8.0], [5.0]],
        next_observation=[6.0],
        reward=[[10.0], [0.0], [20.0]],
        truncated=[(0, 0)],
        invalid=[(1, 0)],
        start=[(2, 0)],
    )
    config = OnPolicyConfig(gamma=1.0, gae_lambda=1.0)
    columns, metrics = _columns(_actor(), rollout, config, logs_entropy=True)
    assert columns["advantage"][0].item() == pytest.approx(10.0 + 8.0 - 1.0)
    assert columns["advantage"][2].item() == pytest.approx(20.0 + 6.0 - 5.0)
    assert metrics["policy/entropy"].item() == pytest.approx(math.log(2.0), abs=1e-3)
    # targets 18 and 26, errors 17 and 21: 1 - 4 / 16
    assert metrics["value/explained_variance"].item() == pytest.approx(0.75)


def test_the_mean_entropy_leaves_rows_that_only_reset_out() -> None:
    actor = _actor()
    head = actor.get_submodule("action_head")
    weight, bias = head.parameters()
    with torch.no_grad():
        weight.copy_(torch.tensor([[20.0], [0.0]]))  # logits (20 s, 0)
        bias.zero_()
    rollout = _rollout(
        [[0.0], [1.0], [0.0]], [0.0], [[0.0]] * 3, truncated=[(0, 0)], invalid=[(1, 0)]
    )
    _, metrics = _columns(actor, rollout, OnPolicyConfig(), logs_entropy=True)
    assert metrics["policy/entropy"].item() == pytest.approx(math.log(2.0))


def test_targets_belong_to_advantages_that_are_not_normalized() -> None:
    rollout = _rollout([[1.0], [2.0]], [3.0], [[10.0], [20.0]])
    config = OnPolicyConfig(gamma=0.5, gae_lambda=0.5)
    plain, _ = _columns(_actor(), rollout, config)
    scaled, _ = _columns(_actor(), rollout, config, normalize=True)
    assert torch.equal(scaled["value_target"], plain["value_target"])
    torch.testing.assert_close(scaled["advantage"], torch.tensor([[-1.0], [1.0]]))


def test_a_lambda_of_one_is_the_complete_return() -> None:
    rollout = _rollout([[1.0], [2.0], [0.0]], [4.0], [[1.0], [1.0], [1.0]])
    columns, _ = _columns(_actor(), rollout, OnPolicyConfig(gamma=0.5, gae_lambda=1.0))
    returns = [1 + 0.5 * (1 + 0.5 * (1 + 0.5 * 4)), 1 + 0.5 * (1 + 0.5 * 4), 1 + 0.5 * 4]
    torch.testing.assert_close(columns["value_target"].squeeze(-1), torch.tensor(returns))


@pytest.mark.parametrize("memory", ["gru", "lstm"])
def test_memory_is_carried_to_every_successor(memory: str) -> None:
    actor = _actor(memory)
    generator = torch.Generator().manual_seed(1)
    state = {
        name: torch.randn(1, size, generator=generator) for name, size in actor.state_sizes.items()
    }
    rollout = _rollout(
        observation=[[1.0], [2.0], [5.0]],
        next_observation=[6.0],
        reward=[[0.0], [0.0], [0.0]],
        truncated=[(1, 0)],
        start=[(2, 0)],
        finals={(1, 0): 3.0},
        state=state,
    )
    values = evaluate_rollout(actor, rollout)
    # The true sequences: 1, 2, 3 from the given state, and 5, 6 from zero.
    empty = actor.actor_initial_states(1)
    first, _ = actor.value(
        torch.tensor([1.0, 2.0, 3.0]).view(3, 1, 1), state, torch.zeros(3, 1).bool()
    )
    second, _ = actor.value(torch.tensor([5.0, 6.0]).view(2, 1, 1), empty, torch.zeros(2, 1).bool())
    torch.testing.assert_close(values.value, torch.cat([first[:2], second[:1]]))
    torch.testing.assert_close(values.next_value, torch.cat([first[1:], second[1:]]))
    assert not values.value.requires_grad


def test_without_a_value_function_nothing_is_bootstrapped() -> None:
    rollout = _rollout([[1.0], [2.0]], [3.0], [[10.0], [20.0]])
    config = OnPolicyConfig(gamma=0.5, gae_lambda=1.0)
    columns, metrics = _columns(_actor(), rollout, config, has_value=False)
    assert columns["advantage"].squeeze(-1).tolist() == [20.0, 20.0]
    assert not columns["value"].any()
    assert "value/explained_variance" not in metrics


def test_a_bonus_is_rewarded_before_advantages_are_estimated() -> None:
    rollout = _rollout(
        [[1.0], [2.0], [0.0]], [3.0], [[10.0], [20.0], [0.0]], terminated=[(1, 0)], invalid=[(2, 0)]
    )
    actor = _actor()
    for parameter in actor.action_head.parameters():
        torch.nn.init.zeros_(parameter)  # two actions alike: an entropy of log 2
    config = OnPolicyConfig(
        gamma=0.5,
        advantage_estimator="return",
        entropy_method="max",
        entropy_coef=4.0 / math.log(2.0),
        stop_entropy_gradient=True,
    )
    columns, _ = _columns(actor, rollout, config)
    # a row that only resets earns nothing: it is worth what follows it
    returns = [14.0 + 0.5 * 24.0, 24.0, 1.5]
    assert columns["advantage"].squeeze(-1).tolist() == pytest.approx(returns)


def test_advantages_are_normalized_before_they_are_shifted() -> None:
    rollout = _rollout([[0.0], [0.0]], [0.0], [[10.0], [20.0]], terminated=[(0, 0), (1, 0)])
    config = OnPolicyConfig(gamma=1.0, gae_lambda=1.0, positive_advantage=True)
    columns, _ = _columns(_actor(), rollout, config, normalize=True)
    torch.testing.assert_close(columns["advantage"], torch.tensor([[0.0], [2.0]]))


def test_rows_that_only_reset_do_not_shift_advantages() -> None:
    reward = [[10.0], [-5.0], [20.0]]
    rollout = _rollout([[0.0], [0.0], [0.0]], [0.0], reward, terminated=[(2, 0)], invalid=[(1, 0)])
    config = OnPolicyConfig(gamma=0.0, advantage_estimator="return", positive_advantage=True)
    columns, _ = _columns(_actor(), rollout, config)
    assert columns["advantage"].squeeze(-1).tolist() == [0.0, 0.0, 10.0]


@pytest.mark.parametrize("make", SHIFTED, ids=["vpg", "a2c", "trpo"])
def test_algorithms_shift_advantages_where_asked(make: Callable[[bool], AnyAlgorithm]) -> None:
    rollout = _rollout(
        [[0.0], [0.0], [0.0]],
        [0.0],
        [[10.0], [0.0], [20.0]],
        terminated=[(0, 0), (2, 0)],
        invalid=[(1, 0)],
    )
    # A reset beside 10 and 20, which are -1 and 1 as they are normalized, and then 0 and 2.
    for shift, expected in ((False, [-1.0, 1.0]), (True, [0.0, 2.0])):
        columns, _ = make(shift).prepare(rollout)
        assert columns["advantage"][rollout.valid].tolist() == pytest.approx(expected)


def test_the_behaviors_policy_is_kept_on_request() -> None:
    rollout = _rollout([[1.0], [2.0]], [3.0], [[10.0], [20.0]])
    actor = _actor()
    columns, _ = _columns(actor, rollout, OnPolicyConfig(), keeps_policy=True)
    policy, _ = actor.distribution(rollout.observation, {})
    again = from_columns(policy, columns)
    assert torch.equal(again.kl_divergence(policy), torch.zeros(2, 1))
    assert not any(column.requires_grad for column in columns.values())


def test_the_kept_policy_does_not_follow_the_one_that_learns() -> None:
    torch.manual_seed(0)
    space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    actor = OnPolicyActor(NUMBER, space, OnPolicyActorConfig(hidden_sizes=()))
    rollout = replace(
        _rollout([[1.0], [2.0]], [3.0], [[10.0], [20.0]]), action=torch.zeros(2, 1, 2)
    )
    columns, _ = _columns(actor, rollout, OnPolicyConfig(), keeps_policy=True)
    with torch.no_grad():
        for parameter in actor.parameters():
            parameter.add_(1.0)
    assert columns["old_policy.log_std"].tolist() == [[[0.0, 0.0]], [[0.0, 0.0]]]
