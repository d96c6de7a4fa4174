"""Smooth actions of SAC: which pairs are compared, and from which storages."""

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from rl_algos_offpolicy import SAC, OffPolicyActor, OffPolicyActorConfig, SACConfig
from rl_core.batch import ReplayBatch
from rl_core.config import Linear
from rl_core.errors import ConfigError

VECTOR = spaces.Box(-9.0, 9.0, (1,), np.float32)


BOX = spaces.Box(-1.0, 1.0, (1,), np.float32)


def _actor() -> OffPolicyActor:
    """The mode of its policy is tanh(s + 0.5)."""
    actor = OffPolicyActor(VECTOR, BOX, OffPolicyActorConfig(hidden_sizes=()))
    assert actor.policy is not None
    linear = actor.policy.head.linear
    assert isinstance(linear, torch.nn.Linear)
    linear.weight.data = torch.tensor([[1.0], [0.0]])
    linear.bias.data = torch.tensor([0.5, 0.0])
    return actor


def _batch(num_steps: int = 1) -> ReplayBatch:
    """From 0 to 2 with weight 1, and from 1 to 1.5 with weight 0.5."""
    return ReplayBatch(
        observation=torch.tensor([[0.0], [1.0]]),
        action=torch.zeros(2, 1),
        reward=torch.zeros(2, num_steps),
        num_steps=torch.tensor([num_steps, 1]),
        terminated=torch.zeros(2, dtype=torch.bool),
        next_observation=torch.tensor([[2.0], [1.5]]),
        weight=torch.tensor([1.0, 0.5]),
        mask=torch.ones(2),
        index=torch.zeros(2, 2, dtype=torch.int64),
    )


def _smoothness(algorithm: SAC, batch: ReplayBatch, noise: Tensor) -> float:
    here = algorithm.actor.get_action(batch.observation, {}, None, True).action
    return algorithm.smoothness(batch, here, noise).item()


def test_smoothness_compares_matching_pairs() -> None:
    config = SACConfig(temporal_smoothness=2.0, spatial_smoothness=3.0, smoothness_std=0.1)
    algorithm = SAC(_actor(), config)
    smoothness = _smoothness(algorithm, _batch(), torch.tensor([[1.0], [-2.0]]))
    # The policy's outputs before squashing, here, after it, and nearby: 0.5, 2.5, 0.6 with weight
    # 1, and 1.5, 2, 1.3 with weight 0.5.
    first = 2.0 * (math.tanh(2.5) - math.tanh(0.5)) + 3.0 * (math.tanh(0.6) - math.tanh(0.5))
    second = 2.0 * (math.tanh(2.0) - math.tanh(1.5)) + 3.0 * (math.tanh(1.5) - math.tanh(1.3))
    assert smoothness == pytest.approx((first + 0.5 * second) / 2.0, rel=1e-5)


@pytest.mark.parametrize("smoothness", [0.5, Linear(0.0, 0.5)])
def test_smoothness_over_time_is_refused_for_several_steps(smoothness: float | Linear) -> None:
    algorithm = SAC(_actor(), SACConfig(temporal_smoothness=smoothness))
    algorithm.gradient_step(_batch())
    with pytest.raises(ConfigError, match=r"transitions of up to 3 steps; set storage.n_step to 1"):
        algorithm.gradient_step(_batch(num_steps=3))


def test_smoothness_nearby_goes_with_several_steps() -> None:
    algorithm = SAC(_actor(), SACConfig(spatial_smoothness=3.0, smoothness_std=0.1))
    algorithm.gradient_step(_batch(num_steps=3))
    algorithm = SAC(_actor(), algorithm.config)
    smoothness = _smoothness(algorithm, _batch(num_steps=3), torch.ones(2, 1))
    first, second = math.tanh(0.6) - math.tanh(0.5), math.tanh(1.6) - math.tanh(1.5)
    assert smoothness == pytest.approx(3.0 * (first + 0.5 * second) / 2.0, rel=1e-4)


def test_smoothness_over_time_that_is_set_later_is_refused_too() -> None:
    algorithm = SAC(_actor(), SACConfig(spatial_smoothness=3.0))
    algorithm.gradient_step(_batch(num_steps=3))
    algorithm.update_algorithm_parameter("temporal_smoothness", 0.5)
    with pytest.raises(ConfigError, match="temporal_smoothness compares"):
        algorithm.gradient_step(_batch(num_steps=3))


@pytest.mark.parametrize("name", ["temporal_smoothness", "spatial_smoothness"])
def test_smoothness_does_not_begin_in_the_course_of_a_run(name: str) -> None:
    algorithm = SAC(_actor(), SACConfig())
    for value in (0.5, Linear(0.0, 0.5)):
        with pytest.raises(ConfigError, match=f"{name} cannot become .* without smoothness"):
            algorithm.update_algorithm_parameter(name, value)
    algorithm.update_algorithm_parameter(name, 0.0)
    assert "loss/smoothness" not in algorithm.compute_loss(_batch()).metrics
