"""Distributions of returns against numbers worked out by hand."""

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from rl_algos_offpolicy import DQN, DQNConfig, OffPolicyActor, OffPolicyActorConfig
from rl_algos_offpolicy.critics.critics import Critics, of_action
from rl_algos_offpolicy.critics.distributional import (
    CategoricalReturns,
    QuantileReturns,
    categorical_cross_entropy,
    project,
    quantile_huber_loss,
)
from rl_core.batch import ReplayBatch
from rl_core.errors import ConfigError
from rl_core.nn.mlp import EnsembleMLP
from rl_core.nn.torso import ObservationEncoder

VECTOR = spaces.Box(-9.0, 9.0, (1,), np.float32)
LOG2, LOG4 = math.log(2.0), math.log(4.0)


def _batch(action: int, *, terminated: bool = False) -> ReplayBatch:
    """One transition over two rewards, 1 and 2, from 0.0 to 2.0."""
    return ReplayBatch(
        observation=torch.zeros(1, 1),
        action=torch.tensor([action]),
        reward=torch.tensor([[1.0, 2.0]]),
        num_steps=torch.tensor([2]),
        terminated=torch.tensor([terminated]),
        next_observation=torch.full((1, 1), 2.0),
        weight=torch.ones(1),
        mask=torch.ones(1),
        index=torch.zeros(1, 2, dtype=torch.int64),
    )


ATOMS = torch.tensor([0.0, 1.0, 2.0])


def _project(moved: list[float], probabilities: tuple[float, ...] = (0.2, 0.3, 0.5)) -> list[float]:
    projected: list[float] = project(torch.tensor([probabilities]), torch.tensor([moved]), ATOMS)[
        0
    ].tolist()
    return projected


def test_a_distribution_stays_where_nothing_moves_it() -> None:
    assert _project([0.0, 1.0, 2.0]) == pytest.approx([0.2, 0.3, 0.5])


def test_mass_between_atoms_is_shared_by_distance() -> None:
    # The last of the moved atoms is cut to 2.
    assert _project([0.25, 1.25, 2.25]) == pytest.approx(
        [0.75 * 0.2, 0.25 * 0.2 + 0.75 * 0.3, 0.25 * 0.3 + 0.5]
    )


def test_atoms_that_were_drawn_together_share_their_mass() -> None:
    assert _project([0.0, 0.5, 1.0]) == pytest.approx([0.2 + 0.15, 0.15 + 0.5, 0])


def test_returns_that_are_all_the_same_share_two_atoms_or_one_end() -> None:
    assert _project([1.5, 1.5, 1.5]) == pytest.approx([0.0, 0.5, 0.5])
    assert _project([-7.0, -7.0, -7.0]) == pytest.approx([1.0, 0.0, 0.0])


@pytest.mark.parametrize(
    ("terminated", "expected"), [(False, [0.0, 0.0, 0.25, 0.75]), (True, [0.0, 0.0, 1.0, 0.0])]
)
def test_a_categorical_target_moves_over_all_rewards_and_stops_at_the_end(
    terminated: bool, expected: list[float]
) -> None:
    returns = CategoricalReturns(4, 0.0, 3.0)
    outputs = torch.tensor([[-90.0, -90.0, -90.0, 0.0]])  # the return that follows is 3
    batch, gamma = _batch(0, terminated=terminated), torch.tensor(0.5)
    target = returns.target(outputs, batch, batch.reward, gamma)
    # 1 + 0.5 * 2 = 2, and without an end 0.25 * 3 on top
    assert target[0].tolist() == pytest.approx(expected)


def _actor(biases: Tensor, **options: object) -> OffPolicyActor:
    """Two actions whose outputs are the biases, shape `(C, 2 K)`, at every observation."""
    config = OffPolicyActorConfig(
        policy="greedy",
        hidden_sizes=(),
        num_critics=len(biases),
        **options,  # type: ignore[arg-type]  # of many types
    )
    actor = OffPolicyActor(VECTOR, spaces.Discrete(2), config)
    actor.critics.head.weights[0].data.zero_()
    actor.critics.head.biases[0].data = biases.unsqueeze(1)
    return actor


def test_cross_entropy_by_hand() -> None:
    logits = torch.tensor([[0.0, 0.0], [math.log(3.0), 0.0]])
    target = torch.tensor([[0.5, 0.5], [0.0, 1.0]])
    assert categorical_cross_entropy(logits, target).tolist() == pytest.approx([LOG2, LOG4])


def test_quantile_huber_loss_by_hand() -> None:
    # Levels 1/4 and 3/4. Of target 2 the quantiles 0 and 1.5 miss by 2 and 0.5, of target 1 by 1
    # and -0.5; Huber's losses are 1.5, 0.125, 0.5 and 0.125.
    difference = torch.tensor([2.0, 1.0]) - torch.tensor([[0.0], [1.5]])
    loss = quantile_huber_loss(difference, torch.tensor([0.25, 0.75]))
    below_two = 0.25 * 1.5 + 0.75 * 0.125
    below_one = 0.25 * 0.5 + 0.25 * 0.125
    assert loss.item() == pytest.approx(0.5 * (below_two + below_one))


def test_the_quantile_loss_is_least_at_the_quantiles() -> None:
    returns = QuantileReturns(4)
    assert returns.levels.tolist() == [0.125, 0.375, 0.625, 0.875]
    target = 1000.0 * torch.arange(1, 9).unsqueeze(0)  # wide apart: Huber's corner does not count
    outputs = torch.full((1, 1, 4), 3000.0, requires_grad=True)
    for _ in range(300):
        loss, _ = returns.errors(outputs, target)
        (gradient,) = torch.autograd.grad(loss.sum(), outputs)
        outputs = (outputs - 200.0 * gradient).detach().requires_grad_()
    # An eighth of the mass lies at each of 1000 to 8000, so the level 0.125 lies between 1000
    # and 2000, and so on.
    reached = (outputs / 1000.0).flatten().tolist()
    for value, lower in zip(reached, (1, 3, 5, 7), strict=True):
        assert lower - 0.2 <= value <= lower + 1.2


def test_expected_returns() -> None:
    categorical = CategoricalReturns(3, 0.0, 2.0)
    logits = torch.tensor([[0.2, 0.3, 0.5]]).log()
    assert categorical.expected(logits).tolist() == pytest.approx([1.3])
    assert QuantileReturns(3).expected(torch.tensor([[1.0, 2.0, 6.0]])).tolist() == [3.0]


def test_priorities_are_zero_where_the_target_is_met() -> None:
    probabilities = torch.tensor([[0.25, 0.75, 0.0]])
    outputs = torch.tensor([[[0.25, 0.75, 1e-30]], [[0.5, 0.5, 1e-30]]]).log()
    loss, priority = CategoricalReturns(3, 0.0, 2.0).errors(outputs, probabilities)
    assert priority[0].item() == pytest.approx(0.0, abs=1e-6)
    divergence = 0.25 * math.log(0.5) + 0.75 * math.log(1.5)
    assert priority[1].item() == pytest.approx(divergence, rel=1e-5)
    assert loss[1].item() == pytest.approx(LOG2)
    _, absolute = QuantileReturns(2).errors(
        torch.tensor([[[1.0, 3.0]]]), torch.tensor([[1.0, 5.0]])
    )
    assert absolute.item() == pytest.approx((0.0 + 4.0 + 2.0 + 2.0) / 4.0)


def test_categorical_dqn_moves_the_best_actions_distribution() -> None:
    # Atoms 0, 2, 4; the first action expects 2, the second 0.25 * 2 + 0.75 * 4 = 3.5.
    biases = torch.tensor([[0.25, 0.5, 0.25, 1e-9, 0.25, 0.75]]).log()
    actor = _actor(biases, distribution="categorical", num_atoms=3, value_range=(0.0, 4.0))
    values = actor.q_values(torch.zeros(1, 1), None, {})
    assert values.flatten().tolist() == pytest.approx([2.0, 3.5])
    assert actor.get_action(torch.zeros(1, 1), {}, None, deterministic=True).action.item() == 1
    algorithm = DQN(actor, DQNConfig(gamma=0.5))
    # 1 + 0.5 * 2 + 0.25 z is 2.5 and 3 for z of 2 and 4: 3/4 and 1/2 of 2, the rest of 4.
    target = algorithm.target(_batch(0), {})
    expected = [0.0, 0.75 * 0.25 + 0.5 * 0.75, 0.25 * 0.25 + 0.5 * 0.75]
    assert target[0].tolist() == pytest.approx(expected, abs=1e-6)
    output = algorithm.loss(_batch(0), {})
    cross_entropy = expected[1] * LOG2 + expected[2] * LOG4
    assert output.loss.item() == pytest.approx(cross_entropy, rel=1e-5)
    divergence = cross_entropy + sum(p * math.log(p) for p in expected[1:])
    assert output.samples["td_error"].tolist() == pytest.approx([divergence], rel=1e-4)
    assert output.metrics["value/mean"].item() == pytest.approx(2.0)
    assert output.metrics["value/at_range_ends"].item() == pytest.approx(expected[2])
    ended = algorithm.target(_batch(0, terminated=True), {})
    assert ended[0].tolist() == pytest.approx([0.0, 1.0, 0.0], abs=1e-6)


def test_what_does_not_count_is_at_no_end_of_the_range() -> None:
    """Atoms -1, 0, 1: the target that counts has 0.3 at the ends, the other all."""
    returns = CategoricalReturns(3, -1.0, 1.0)
    target = torch.tensor([[0.1, 0.7, 0.2], [0.5, 0.0, 0.5]])
    share = returns.metrics(target, torch.tensor([1.0, 0.0]))["value/at_range_ends"]
    assert share.item() == pytest.approx(0.3)


def test_rewards_of_distributions_are_scaled_and_clipped() -> None:
    actor = _actor(torch.zeros(1, 4), distribution="quantile", num_quantiles=2)
    config = DQNConfig(gamma=0.5, reward_scale=3.0, clip_reward=4.0)
    ended = DQN(actor, config).target(_batch(0, terminated=True), {})
    assert ended.tolist() == [[5.0, 5.0]]  # 3 + 0.5 * 4


def test_quantile_dqn_takes_the_critic_that_expects_least() -> None:
    # By the first critic action 0 is worth 2, action 1 is worth 3; by the second 4 and 2.
    biases = torch.tensor([[1.0, 3.0, 2.0, 4.0], [3.0, 5.0, 0.0, 4.0]])
    actor = _actor(biases, distribution="quantile", num_quantiles=2)
    double = DQN(actor, DQNConfig(gamma=0.5))
    # The first online critic chooses action 1, of which the second expects least: (0, 4).
    assert double.target(_batch(0), {}).tolist() == [[2.0, 3.0]]
    # Without double the smallest values count, 2 and 2, so the first action: (1, 3).
    single = DQN(actor, DQNConfig(gamma=0.5, double=False))
    assert single.target(_batch(0), {}).tolist() == [[2.25, 2.75]]


def test_dueling_distributions_are_centred_output_by_output() -> None:
    biases = torch.tensor([[1.0, 2.0, 3.0, 6.0]])
    actor = _actor(biases, distribution="quantile", num_quantiles=2, dueling=True)
    assert actor.critics.value_stream is not None
    actor.critics.value_stream.weights[0].data.zero_()
    actor.critics.value_stream.biases[0].data = torch.tensor([[[10.0, 20.0]]])
    outputs = actor.critics.outputs(torch.zeros(1, 1))
    assert outputs[0, 0].tolist() == [[9.0, 18.0], [11.0, 22.0]]


def test_picking_actions_keeps_all_other_axes() -> None:
    outputs = torch.randn(2, 5, 6, 3, 4)
    action = torch.randint(3, (5, 6))
    picked = of_action(outputs, action)
    assert picked.shape == (2, 5, 6, 4)
    assert torch.equal(picked[1, 4, 2], outputs[1, 4, 2, action[4, 2]])
    assert torch.equal(of_action(outputs[..., 0], action), picked[..., 0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"distribution": "gaussian"}, "distribution: unknown name"),
        ({"num_atoms": 51}, "num_atoms has no effect with distribution='none'"),
        ({"distribution": "quantile", "value_range": (0.0, 1.0)}, "value_range has no effect"),
        ({"distribution": "categorical", "num_quantiles": 9}, "num_quantiles has no effect"),
        (
            {"distribution": "categorical", "num_atoms": 1},
            "num_atoms must be .* of at least 2",
        ),
        (
            {"distribution": "quantile", "num_quantiles": 0},
            "num_quantiles must be a whole number of at least 1",
        ),
        ({"distribution": "categorical", "value_range": (1.0, 1.0)}, "the smaller number first"),
        ({"distribution": "categorical", "value_range": (0.0, math.inf)}, "a finite number"),
        ({"distribution": "categorical", "value_range": (0.0, 1.0, 2.0)}, "a list of 2"),
        ({"distribution": "quantile", "policy": "stochastic"}, "set policy to 'greedy'"),
        (
            {"noisy": True, "policy": "deterministic"},
            "noisy has no effect with policy=",
        ),
        ({"noisy_sigma": 0.5}, "noisy_sigma has no effect with noisy=False"),
        ({"noisy": True, "noisy_sigma": 0.0}, "noisy_sigma must be a finite number above 0"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        OffPolicyActorConfig(**{"policy": "greedy", **options})  # type: ignore[arg-type]  # wrong on purpose


def test_real_actions_have_no_distributions() -> None:
    box = spaces.Box(-1.0, 1.0, (1,), np.float32)
    config = OffPolicyActorConfig(policy="greedy", distribution="quantile")
    with pytest.raises(ConfigError, match="need Discrete actions"):
        OffPolicyActor(VECTOR, box, config)


def test_another_loss_than_the_distributions_own_is_refused() -> None:
    actor = _actor(torch.zeros(1, 4), distribution="quantile", num_quantiles=2)
    with pytest.raises(ConfigError, match="loss='square' has no effect"):
        DQN(actor, DQNConfig(loss="square"))


def test_critics_of_real_actions_may_know_distributions() -> None:
    returns = QuantileReturns(5)
    encoders = [ObservationEncoder(VECTOR)]
    critics = Critics(encoders, EnsembleMLP(2, 4, (), 5), takes_action=True, returns=returns)
    observation, action = torch.zeros(7, 1), torch.zeros(7, 3)
    quantiles = critics.outputs(observation, action)
    assert quantiles.shape == (2, 7, 5)
    torch.testing.assert_close(critics(observation, action), quantiles.mean(-1))
