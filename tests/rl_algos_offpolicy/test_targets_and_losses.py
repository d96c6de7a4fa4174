"""Targets and losses against numbers worked out by hand."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor
from torch.utils._pytree import tree_map_only

from rl_algos_offpolicy import (
    DDPG,
    DQN,
    SAC,
    TD3,
    DDPGConfig,
    DQNConfig,
    OffPolicyActor,
    OffPolicyActorConfig,
    SACConfig,
    TD3Config,
)
from rl_algos_offpolicy.exploration_noise import OrnsteinUhlenbeck, draw_exploration_noise
from rl_core.batch import ReplayBatch
from rl_core.compile import has_cpp_compiler
from rl_core.config import Linear
from rl_core.errors import ConfigError
from rl_core.gradients import OptimizerConfig, OptimizerName

VECTOR = spaces.Box(-9.0, 9.0, (1,), np.float32)
BOX = spaces.Box(-1.0, 1.0, (1,), np.float32)


def _batch(action: Tensor, *, terminated: bool = False, weight: float = 1.0) -> ReplayBatch:
    """One transition over two rewards, 1 and 2, from 0.0 to 2.0."""
    return ReplayBatch(
        observation=torch.zeros(1, 1),
        action=action,
        reward=torch.tensor([[1.0, 2.0]]),
        num_steps=torch.tensor([2]),
        terminated=torch.tensor([terminated]),
        next_observation=torch.full((1, 1), 2.0),
        weight=torch.tensor([weight]),
        mask=torch.ones(1),
        index=torch.zeros(1, 2, dtype=torch.int64),
    )


def _linear(actor: OffPolicyActor, weights: Tensor, biases: Tensor) -> None:
    """Make the critics linear in what they are given."""
    actor.critics.head.weights[0].data = weights.mT  # rows are outputs
    actor.critics.head.biases[0].data = biases


def _q_actor() -> OffPolicyActor:
    """Q(s, ·) = (s, 1, 5 - s)."""
    config = OffPolicyActorConfig(policy="greedy", hidden_sizes=(), num_critics=1)
    actor = OffPolicyActor(VECTOR, spaces.Discrete(3, start=10), config)
    _linear(actor, torch.tensor([[[1.0, 0.0, -1.0]]]), torch.tensor([[[0.0, 1.0, 5.0]]]))
    return actor


def test_dqn_bootstraps_from_the_best_action() -> None:
    algorithm = DQN(_q_actor(), DQNConfig(gamma=0.5, double=False))
    batch = _batch(torch.tensor([1]))
    # Q(2, ·) = (2, 1, 3): 1 + 0.5 * 2 + 0.25 * 3
    assert algorithm.target(batch, {}).tolist() == [2.75]
    assert algorithm.target(_batch(torch.tensor([1]), terminated=True), {}).tolist() == [2.0]
    assert algorithm.loss(batch, {}).loss.item() == pytest.approx(1.75 - 0.5)  # Huber of 1 - 2.75
    square = DQN(_q_actor(), DQNConfig(gamma=0.5, double=False, loss="square"))
    assert square.loss(batch, {}).loss.item() == pytest.approx(0.5 * 1.75**2)
    weighted = _batch(torch.tensor([1]), weight=0.5)
    assert square.loss(weighted, {}).loss.item() == pytest.approx(0.25 * 1.75**2)
    assert square.loss(batch, {}).samples["td_error"].tolist() == [1.75]


def test_double_dqn_lets_the_online_network_choose() -> None:
    algorithm = DQN(_q_actor(), DQNConfig(gamma=0.5))
    algorithm.target_critics.head.biases[0].data = torch.tensor([[[7.0, 1.0, 5.0]]])
    batch = _batch(torch.tensor([1]))
    # The target's best is the first, worth 9; the online network takes the third, worth 3.
    assert algorithm.target(batch, {}).tolist() == [2.75]
    algorithm.config = DQNConfig(gamma=0.5, double=False)
    assert algorithm.target(batch, {}).tolist() == [1.0 + 1.0 + 0.25 * 9.0]


@pytest.mark.parametrize(("double", "target"), [(False, 2.5), (True, 2.25)])
def test_two_critics_of_dqn_bootstrap_from_the_smaller(double: bool, target: float) -> None:
    config = OffPolicyActorConfig(policy="greedy", hidden_sizes=(), num_critics=2)
    actor = OffPolicyActor(VECTOR, spaces.Discrete(3), config)
    _linear(actor, torch.zeros(2, 1, 3), torch.tensor([[[1.0, 2.0, 3.0]], [[5.0, 2.5, 1.0]]]))
    algorithm = DQN(actor, DQNConfig(gamma=0.5, double=double))
    batch = _batch(torch.tensor([0]))
    # Of all actions the smaller values are 1, 2 and 1; the first critic, which acts, likes the
    # third one, for which they are 3 and 1: 2 + 0.25 * 2, or 2 + 0.25 * 1.
    assert algorithm.target(batch, {}).tolist() == [target]
    output = algorithm.loss(batch, {})
    errors = [abs(1.0 - target), abs(5.0 - target)]
    assert output.loss.item() == pytest.approx(sum(errors) - 2 * 0.5)  # Huber, both above 1
    assert output.samples["td_error"].tolist() == pytest.approx([sum(errors) / 2.0])


def test_dqn_scales_rewards_before_it_clips_them() -> None:
    algorithm = DQN(_q_actor(), DQNConfig(gamma=0.5, reward_scale=3.0, clip_reward=4.0))
    # 3 and 6, which is cut to 4
    assert algorithm.target(_batch(torch.tensor([1]), terminated=True), {}).tolist() == [5.0]


def test_dqn_explores_with_probability_epsilon() -> None:
    algorithm = DQN(_q_actor(), DQNConfig(epsilon=0.25))
    observation = torch.full((4, 1), 9.0)
    largest = 1.0 - 2.0**-24  # that torch.rand draws
    noise = torch.tensor([[0.2, 0.0], [0.2, 0.5], [0.2, largest], [0.3, 0.5]])
    output = algorithm.explore(observation, {}, noise)
    assert output.action.tolist() == [0, 1, 2, 0]  # the last is greedy
    assert output.env_action.tolist() == [10, 11, 12, 10]


def test_dueling_values_are_centred_on_the_state_value() -> None:
    config = OffPolicyActorConfig(policy="greedy", hidden_sizes=(), num_critics=1, dueling=True)
    actor = OffPolicyActor(VECTOR, spaces.Discrete(3), config)
    _linear(actor, torch.tensor([[[1.0, 2.0, 3.0]]]), torch.zeros(1, 1, 3))
    assert actor.critics.value_stream is not None
    actor.critics.value_stream.weights[0].data = torch.tensor([[[10.0]]])
    actor.critics.value_stream.biases[0].data = torch.zeros(1, 1, 1)
    values = actor.q_values(torch.ones(1, 1), None, {})
    assert values[0, 0].tolist() == [9.0, 10.0, 11.0]


def _twin_actor(policy: str) -> OffPolicyActor:
    """Q₁ = s + 2 a and Q₂ = 2 s - a; the policy's output before squashing is 0.5."""
    config = OffPolicyActorConfig(policy=policy, hidden_sizes=())  # type: ignore[arg-type]
    actor = OffPolicyActor(VECTOR, BOX, config)
    _linear(actor, torch.tensor([[[1.0], [2.0]], [[2.0], [-1.0]]]), torch.zeros(2, 1, 1))
    assert actor.policy is not None
    linear = actor.policy.head.linear
    assert isinstance(linear, torch.nn.Linear)
    linear.weight.data.zero_()
    linear.bias.data.zero_()
    linear.bias.data[0] = 0.5
    return actor


A = math.tanh(0.5)
_RATES: dict[str, Any] = {"policy_learning_rate": 0.1, "critic_learning_rate": 0.1}


def test_td3_smooths_and_takes_the_smaller_critic() -> None:
    algorithm = TD3(
        _twin_actor("deterministic"),
        TD3Config(gamma=0.5, target_noise=1.0, target_noise_clip=0.25),
    )
    batch = _batch(torch.tensor([[0.5]]))
    # The noise of 3 is cut to 0.25: min(2 + 2 a, 4 - a) at a = tanh(0.5) + 0.25
    expected = 2.0 + 0.25 * min(2.0 + 2.0 * (A + 0.25), 4.0 - (A + 0.25))
    target = algorithm.target(batch, {"target": torch.tensor([[3.0]])})
    assert target.item() == pytest.approx(expected)
    # Smoothed actions stay in the space: tanh(0.5) + 1 is cut to 1.
    algorithm.hyper["target_noise_clip"].fill_(1.0)
    target = algorithm.target(batch, {"target": torch.tensor([[3.0]])})
    assert target.item() == pytest.approx(2.0 + 0.25 * 3.0)


def test_td3_loses_by_both_critics_and_climbs_the_first() -> None:
    algorithm = TD3(_twin_actor("deterministic"), TD3Config(gamma=0.0))
    batch = _batch(torch.tensor([[0.5]]))
    # y = 1, Q = (1, -0.5); the policy's value is Q₁(0, tanh 0.5) = 2 tanh 0.5
    output = algorithm.loss(batch, {"target": torch.zeros(1, 1)})
    assert output.loss.item() == pytest.approx(1.5**2 - 2.0 * A)
    assert output.samples["td_error"].tolist() == [0.75]
    parameters = algorithm.named_parameters()
    gradients = torch.autograd.grad(
        output.loss, [parameters["actor.policy.head.linear.bias"]], retain_graph=True
    )
    assert gradients[0].item() == pytest.approx(-2.0 * (1.0 - A**2))
    # The policy's loss does not reach the critics: ∂/∂b of the squared errors alone.
    (biases,) = torch.autograd.grad(output.loss, [parameters["actor.critics.head.biases.0"]])
    assert biases.flatten().tolist() == [0.0, -3.0]


def test_td3_moves_policy_and_targets_with_the_delay() -> None:
    algorithm = TD3(_twin_actor("deterministic"), TD3Config(policy_delay=3))
    batch = _batch(torch.tensor([[0.5]]))
    moved = []
    for _ in range(6):
        before = {name: v.values.clone() for name, v in algorithm.gradients.vectors.items()}
        algorithm.gradient_step(batch)
        moved.append(
            [
                not torch.equal(algorithm.gradients.vectors[name].values, before[name])
                for name in ("critic", "policy", "target_critics", "target_policy")
            ]
        )
    assert moved == [[True] + [k in (2, 5)] * 3 for k in range(6)]


@pytest.mark.parametrize("compiled", [False, True])
def test_the_policy_follows_critics_that_have_stepped(compiled: bool) -> None:
    if compiled and not has_cpp_compiler():
        pytest.skip("no C++ compiler")
    ddpg = DDPGConfig(gamma=0.0, optimizer=OptimizerConfig(name="sgd"), **_RATES)
    td3 = TD3Config(gamma=0.0, policy_delay=1, optimizer=ddpg.optimizer, **_RATES)
    ours, twin = _twin_actor("deterministic"), _twin_actor("deterministic")
    for algorithm in (DDPG(ours, ddpg), TD3(twin, td3)):
        if compiled:
            algorithm.compiled.set_mode("on")
        algorithm.gradient_step(_batch(torch.tensor([[-0.5]])))
        # Q₁ = -1 and y = 1, so that the weight of the action steps from 2 to 2 - 0.1 · 2(-2)(-0.5).
        assert algorithm.actor.critics.head.weights[0][0, 0, 1].item() == pytest.approx(1.8)
        bias = algorithm.named_parameters()["actor.policy.head.linear.bias"]
        assert bias[0].item() == pytest.approx(0.5 + 0.1 * 1.8 * (1.0 - A**2))


def test_ddpg_clips_returns() -> None:
    batch = _batch(torch.tensor([[0.5]]))
    plain = DDPG(_twin_actor("deterministic"), DDPGConfig(gamma=0.5))
    expected = 2.0 + 0.25 * min(2.0 + 2.0 * A, 4.0 - A)
    assert plain.target(batch, {}).item() == pytest.approx(expected)
    clipped = DDPG(_twin_actor("deterministic"), DDPGConfig(gamma=0.5, clip_return=1.5))
    assert clipped.target(batch, {}).item() == 1.5
    for bound in (1.5, None):
        config = DDPGConfig(gamma=0.5, clip_return=bound, clip_positive_returns=True)
        negative = DDPG(_twin_actor("deterministic"), config)
        assert negative.target(batch, {}).item() == 0.0
        returns = torch.tensor([-7.0, -1.0, 1.0])
        assert negative.clip_returns(returns).tolist() == [
            -7.0 if bound is None else -1.5,
            -1.0,
            0.0,
        ]


def test_td3_clips_returns() -> None:
    batch, nothing = _batch(torch.tensor([[0.5]])), {"target": torch.zeros(1, 1)}
    for is_positive_clipped, expected in ((False, 1.5), (True, 0.0)):
        config = TD3Config(gamma=0.5, clip_return=1.5, clip_positive_returns=is_positive_clipped)
        assert TD3(_twin_actor("deterministic"), config).target(batch, nothing).item() == expected


def test_ddpg_decays_each_network_by_its_own_weight() -> None:
    config = DDPGConfig(policy_weight_decay=0.1, critic_weight_decay=0.2)
    groups = DDPG(_twin_actor("deterministic"), config).parameter_groups()
    decays = {group.name: group.optimizer.weight_decay for group in groups}
    assert decays == {"policy": 0.1, "critic": 0.2}


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_sac_does_not_decay_the_temperature(name: OptimizerName) -> None:
    config = SACConfig(optimizer=OptimizerConfig(name=name, weight_decay=0.1))
    groups = SAC(_twin_actor("stochastic"), config).parameter_groups()
    decays = {group.name: group.optimizer.weight_decay for group in groups}
    assert decays == {"policy": 0.1, "critic": 0.1, "temperature": 0.0}
    assert {group.optimizer.name for group in groups} == {name}


def test_sac_subtracts_what_the_action_costs_in_entropy() -> None:
    algorithm = SAC(_twin_actor("stochastic"), SACConfig(gamma=0.5, initial_temperature=0.3))
    batch = _batch(torch.tensor([[0.5]]))
    # Standard deviation exp(0); noise 0 gives tanh 0.5, of density N(0) / (1 - tanh² 0.5).
    log_prob = -0.5 * math.log(2.0 * math.pi) - math.log(1.0 - A**2)
    value = min(2.0 + 2.0 * A, 4.0 - A) - 0.3 * log_prob
    noise = {"now": torch.zeros(1, 1), "next": torch.zeros(1, 1)}
    target = algorithm.target(batch, {"next": noise["next"]})
    assert target.item() == pytest.approx(2.0 + 0.25 * value)

    output = algorithm.loss(batch, noise)
    policy = 0.3 * log_prob - min(2.0 * A, -A)
    assert output.metrics["loss/policy"].item() == pytest.approx(policy, abs=1e-6)
    # The default target entropy is minus the number of real actions.
    temperature = -math.log(0.3) * (log_prob - 1.0)
    assert output.metrics["loss/temperature"].item() == pytest.approx(temperature)
    (slope,) = torch.autograd.grad(output.loss, [algorithm.named_parameters()["temperature.log"]])
    assert slope.item() == pytest.approx(-(log_prob - 1.0))


def test_the_losses_of_policy_and_temperature_reach_neither_each_other_nor_the_critics() -> None:
    slopes = []
    for is_learned in (True, False):
        config = SACConfig(initial_temperature=0.3, learn_temperature=is_learned)
        algorithm = SAC(_twin_actor("stochastic"), config)
        output = algorithm.policy_loss(_batch(torch.zeros(1, 1)), {"now": torch.ones(1, 1)})
        output.loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        critics = algorithm.actor.critics.parameters()
        assert not any(p.grad is not None and p.grad.any() for p in critics)
        slope = algorithm.policy.get_parameter("head.linear.bias").grad
        assert slope is not None
        slopes.append(slope.clone())
    assert slopes[0].any()
    torch.testing.assert_close(*slopes)


def test_the_temperature_learns_from_the_samples_that_count() -> None:
    algorithm = SAC(_twin_actor("stochastic"), SACConfig(initial_temperature=0.3))
    one = _batch(torch.zeros(1, 1))
    two: ReplayBatch = tree_map_only(Tensor, lambda column: torch.cat([column, column]), one)
    two = replace(two, mask=torch.tensor([1.0, 0.0]))
    noise = {"now": torch.tensor([[0.0], [2.0]])}
    alone = algorithm.policy_loss(one, {"now": noise["now"][:1]}).metrics
    both = algorithm.policy_loss(two, noise).metrics
    for name in ("loss/temperature", "policy/entropy", "loss/policy"):
        assert both[name].item() == pytest.approx(alone[name].item())


def test_a_target_entropy_of_zero_is_honoured() -> None:
    config = SACConfig(target_entropy=0.0, initial_temperature=0.3)
    algorithm = SAC(_twin_actor("stochastic"), config)
    noise = {"now": torch.zeros(1, 1), "next": torch.zeros(1, 1)}
    log_prob = -0.5 * math.log(2.0 * math.pi) - math.log(1.0 - A**2)
    loss = algorithm.loss(_batch(torch.tensor([[0.5]])), noise).metrics["loss/temperature"]
    assert loss.item() == pytest.approx(-math.log(0.3) * log_prob)


def test_the_usual_target_entropy_is_minus_the_number_of_actions() -> None:
    config = OffPolicyActorConfig(policy="stochastic", hidden_sizes=())
    actor = OffPolicyActor(VECTOR, spaces.Box(-1.0, 1.0, (3,), np.float32), config)
    assert actor.policy is not None
    for parameter in actor.policy.head.parameters():
        parameter.data.zero_()  # mean 0 and standard deviation 1
    algorithm = SAC(actor, SACConfig(initial_temperature=0.3))
    noise = {"now": torch.zeros(1, 3), "next": torch.zeros(1, 3)}
    loss = algorithm.loss(_batch(torch.zeros(1, 3)), noise).metrics["loss/temperature"]
    log_prob = -1.5 * math.log(2.0 * math.pi)
    assert loss.item() == pytest.approx(-math.log(0.3) * (log_prob - 3.0))  # -6.93


def test_a_fixed_temperature_stays_exactly_as_it_is() -> None:
    # exp(log 0.1) is another number in float32.
    assert torch.tensor(math.log(0.1)).exp() != torch.tensor(0.1)
    config = SACConfig(learn_temperature=False, initial_temperature=0.1)
    algorithm = SAC(_twin_actor("stochastic"), config)
    for _ in range(3):
        algorithm.gradient_step(_batch(torch.tensor([[0.5]])))
    assert torch.equal(algorithm.temperature(), torch.tensor(0.1))
    assert "loss/temperature" not in algorithm.read_metrics()


def test_sac_puts_its_loss_together_from_two() -> None:
    algorithm = SAC(_twin_actor("stochastic"))
    batch = _batch(torch.zeros(1, 1))
    noise = algorithm.draw_update_noise(batch)
    critic = algorithm.critic_loss(batch, noise)
    policy = algorithm.policy_loss(batch, noise)
    whole = algorithm.loss(batch, noise)
    assert whole.loss.item() == pytest.approx((critic.loss + policy.loss).item())
    assert whole.metrics.keys() == {*critic.metrics, *policy.metrics}
    critic.loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    actor = algorithm.actor
    assert all(p.grad is None or not p.grad.any() for p in algorithm.policy.parameters())
    assert any(p.grad is not None and p.grad.any() for p in actor.critics.parameters())


def test_sac_sums_over_discrete_actions() -> None:
    config = OffPolicyActorConfig(hidden_sizes=(), num_critics=1)
    actor = OffPolicyActor(VECTOR, spaces.Discrete(2), config)
    _linear(actor, torch.tensor([[[1.0, -1.0]]]), torch.zeros(1, 1, 2))
    assert actor.policy is not None
    linear = actor.policy.head.linear
    assert isinstance(linear, torch.nn.Linear)
    linear.weight.data.zero_()
    linear.bias.data = torch.tensor([math.log(3.0), 0.0])  # probabilities 3/4 and 1/4
    algorithm = SAC(actor, SACConfig(gamma=0.5, initial_temperature=0.2))
    batch = _batch(torch.tensor([1]))
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    value = 0.75 * 2.0 + 0.25 * -2.0 + 0.2 * entropy
    assert algorithm.target(batch, {}).item() == pytest.approx(2.0 + 0.25 * value)
    noise = algorithm.draw_update_noise(batch)
    output = algorithm.loss(batch, noise)
    # At observation 0 both actions are worth 0.
    assert output.metrics["loss/policy"].item() == pytest.approx(-0.2 * entropy)
    excess = -entropy + 0.89 * math.log(2.0)
    expected = -math.log(0.2) * excess
    assert output.metrics["loss/temperature"].item() == pytest.approx(expected)


def test_an_ornstein_uhlenbeck_process_pulls_back_and_starts_with_episodes() -> None:
    process = OrnsteinUhlenbeck(theta=0.5, dt=0.25)
    start = torch.tensor([True, True])
    first = process.step(torch.tensor([[1.0], [2.0]]), start)
    assert first.tolist() == [[0.5], [1.0]]
    second = process.step(torch.tensor([[0.0], [2.0]]), torch.tensor([False, True]))
    assert second.tolist() == [[0.5 * 0.875], [1.0]]


def test_a_process_that_would_swing_ever_wider_is_refused() -> None:
    DDPGConfig(exploration_noise="ou", ou_theta=3.9, ou_dt=0.25)
    with pytest.raises(ConfigError, match=r"ou_theta \* ou_dt must be below 1, got 0.15 \* 7.0"):
        DDPGConfig(exploration_noise="ou", ou_dt=7.0)


@pytest.mark.parametrize("kind", ["gaussian", "uniform", "ou"])
def test_noise_has_unit_spread_and_differs_everywhere(kind: str) -> None:
    generator = torch.Generator().manual_seed(0)
    noise = draw_exploration_noise(kind, (1000, 4, 3), generator)  # type: ignore[arg-type]
    assert noise.std().item() == pytest.approx(1.0, abs=0.03)
    assert noise.mean().item() == pytest.approx(0.0, abs=0.03)
    assert len(torch.unique(noise)) > 11_900
    assert draw_exploration_noise("none", (2, 3), generator).eq(0.0).all()


def test_deterministic_policies_explore_around_their_action() -> None:
    algorithm = TD3(_twin_actor("deterministic"), TD3Config(exploration_std=0.2))
    output = algorithm.explore(torch.zeros(3, 1), {}, torch.tensor([[0.0], [1.0], [9.0]]))
    assert output.action.flatten().tolist() == pytest.approx([A, A + 0.2, 1.0])


def test_exploration_follows_its_schedule_and_ends_with_an_evaluation() -> None:
    config = TD3Config(exploration_std=Linear(0.4, 0.0))
    algorithm = TD3(_twin_actor("deterministic"), config)
    observation, noise = torch.zeros(1, 1), torch.ones(1, 1)
    for progress, std in ((0.0, 0.4), (0.5, 0.2), (1.0, 0.0)):
        algorithm.schedules.set_progress(progress)
        action = algorithm.acting_step(observation, {}, noise).action
        assert action.item() == pytest.approx(A + std)
        best = algorithm.acting_step(observation, {}, noise, deterministic=True).action
        assert best.item() == pytest.approx(A)
