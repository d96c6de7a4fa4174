"""Exploration by noise on the critics' weights."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rl_algos_offpolicy import DQN, DQNConfig, OffPolicyActor, OffPolicyActorConfig
from rl_algos_offpolicy.critics.noisy import NoisyEnsembleMLP
from rl_core.config import Linear, Piecewise
from rl_core.errors import ConfigError
from rl_testing.rollouts import make_replay_batch

VECTOR = spaces.Box(-1.0, 1.0, (2,), np.float32)


def _actor(**options: object) -> OffPolicyActor:
    torch.manual_seed(0)
    config = OffPolicyActorConfig(
        policy="greedy",
        num_critics=2,
        hidden_sizes=(4,),
        **options,  # type: ignore[arg-type]  # of many types
    )
    return OffPolicyActor(VECTOR, spaces.Discrete(3), config)


def test_each_environment_and_step_acts_by_weights_of_its_own() -> None:
    algorithm = DQN(_actor(noisy=True, dueling=True))
    critics = algorithm.actor.critics
    assert critics.noise_size == (2 + 4 + 4 + 3) + (2 + 4 + 4 + 1)
    noise = algorithm.draw_noise((128, 50), torch.Generator().manual_seed(0))
    assert noise.shape == (128, 50, 2, critics.noise_size)
    observation = torch.rand(50, 2)
    output = algorithm.explore(observation, {}, noise[0])
    for k in (0, 7, 49):
        values = critics(observation[k], noise=noise[0, k])
        assert output.action[k] == values[0].argmax()
    same = torch.zeros(50, 2)
    assert len(set(algorithm.explore(same, {}, noise[1]).action.tolist())) > 1
    mean = algorithm.acting_step(same, {}, noise[1], deterministic=True).action
    assert mean.eq(critics(same)[0].argmax(-1)).all()


def test_all_three_networks_have_noise_of_their_own() -> None:
    algorithm = DQN(_actor(noisy=True))
    batch = make_replay_batch(algorithm, seed=1)
    noise = algorithm.draw_update_noise(batch)
    assert set(noise) == {"online", "target", "choice"}
    assert len({float(part.sum()) for part in noise.values()}) == 3
    assert set(DQN(_actor(noisy=True), DQNConfig(double=False)).draw_update_noise(batch)) == {
        "online",
        "target",
    }
    loss = algorithm.loss(batch, noise).loss
    target = algorithm.target(batch, noise)
    for name, reaches_target in (("online", False), ("target", True), ("choice", True)):
        other = {**noise, name: 10.0 * noise[name]}
        assert not torch.equal(algorithm.loss(batch, other).loss, loss), name
        assert torch.equal(algorithm.target(batch, other), target) is not reaches_target, name


def test_the_spread_of_the_weights_is_learned() -> None:
    algorithm = DQN(_actor(noisy=True, noisy_sigma=0.3))
    values = algorithm.actor.critics.head
    assert isinstance(values, NoisyEnsembleMLP)
    sigma = values.weight_sigmas[1]
    before = sigma.clone()
    assert before.flatten().tolist() == pytest.approx([0.3 / 2.0] * before.numel())  # 4 inputs
    algorithm.generator.manual_seed(0)
    algorithm.gradient_step(make_replay_batch(algorithm, seed=1))
    assert not torch.equal(sigma, before)


def test_epsilon_is_the_usual_schedule_only_without_noise() -> None:
    plain = DQN(_actor())
    assert plain.schedules["epsilon"] == Piecewise(((0.0, 1.0), (0.1, 0.05)))
    assert DQN(_actor(), DQNConfig(epsilon=0.2)).schedules["epsilon"].value(0.0) == 0.2
    for epsilon in (None, 0.0):
        assert "epsilon" not in DQN(_actor(noisy=True), DQNConfig(epsilon=epsilon)).schedules


@pytest.mark.parametrize("epsilon", [0.1, Linear(1.0, 0.0)])
def test_noise_and_random_actions_contradict_each_other(epsilon: float) -> None:
    with pytest.raises(ConfigError, match=r"contradicts actor\.noisy"):
        DQN(_actor(noisy=True), DQNConfig(epsilon=epsilon))
