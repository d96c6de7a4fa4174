"""Importance weights in the losses of critics and policies, by numbers worked out by hand."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rl_algos_offpolicy import (
    DDPG,
    SAC,
    TD3,
    DDPGConfig,
    OffPolicyActor,
    OffPolicyActorConfig,
    SACConfig,
    TD3Config,
)
from rl_core.batch import ReplayBatch
from rl_core.errors import ConfigError

VECTOR = spaces.Box(-9.0, 9.0, (1,), np.float32)
BOX = spaces.Box(-1.0, 1.0, (1,), np.float32)

A = math.tanh(0.5)
LOG_PROB = -0.5 * math.log(2.0 * math.pi) - math.log(1.0 - A**2)
"""Of the action A at a policy's mean and a standard deviation of 1."""


def _actor(policy: str) -> OffPolicyActor:
    """Q = s + 2 a; the policy's action is A everywhere."""
    config = OffPolicyActorConfig(policy=policy, hidden_sizes=(), num_critics=1)  # type: ignore[arg-type]
    actor = OffPolicyActor(VECTOR, BOX, config)
    actor.critics.head.weights[0].data = torch.tensor([[[1.0, 2.0]]])
    actor.critics.head.biases[0].data.zero_()
    assert actor.policy is not None
    linear = actor.policy.head.linear
    assert isinstance(linear, torch.nn.Linear)
    linear.weight.data.zero_()
    linear.bias.data.zero_()
    linear.bias.data[0] = 0.5
    return actor


def _batch() -> ReplayBatch:
    """Two last steps: at 0 with weight 1, and at 1 with weight 0.25."""
    return ReplayBatch(
        observation=torch.tensor([[0.0], [1.0]]),
        action=torch.tensor([[0.5], [-0.5]]),
        reward=torch.tensor([[3.0], [1.0]]),
        num_steps=torch.tensor([1, 1]),
        terminated=torch.tensor([True, True]),
        next_observation=torch.zeros(2, 1),
        weight=torch.tensor([1.0, 0.25]),
        mask=torch.ones(2),
        index=torch.zeros(2, 2, dtype=torch.int64),
    )


@pytest.mark.parametrize(
    ("algorithm", "policy_loss"),
    [
        (lambda: DDPG(_actor("deterministic"), DDPGConfig()), -(2.0 * A + 0.25 * (1.0 + 2.0 * A))),
        (lambda: TD3(_actor("deterministic"), TD3Config()), -(2.0 * A + 0.25 * (1.0 + 2.0 * A))),
        (
            lambda: SAC(_actor("stochastic"), SACConfig(initial_temperature=0.3)),
            1.25 * 0.3 * LOG_PROB - (2.0 * A + 0.25 * (1.0 + 2.0 * A)),
        ),
    ],
)
def test_samples_count_by_their_importance_weights(
    algorithm: Callable[[], Any], policy_loss: float
) -> None:
    learner = algorithm()
    noise = {name: torch.zeros(2, 1) for name in ("now", "next", "target")}
    output = learner.loss(_batch(), noise)
    # The critic says 1 and 0 of what is worth 3 and 1.
    squared_errors = (4.0 + 0.25 * 1.0) / 2.0
    share = 0.5 if isinstance(learner, SAC) else 1.0
    assert output.metrics["loss/critic"].item() == pytest.approx(share * squared_errors)
    assert output.metrics["loss/policy"].item() == pytest.approx(policy_loss / 2.0, abs=1e-6)
    assert output.samples["td_error"].tolist() == [2.0, 1.0]


def test_a_temperature_that_is_not_learned_may_be_zero() -> None:
    algorithm = SAC(
        _actor("stochastic"), SACConfig(initial_temperature=0.0, learn_temperature=False)
    )
    assert algorithm.temperature().item() == 0.0
    with pytest.raises(
        ConfigError, match="initial_temperature must be a finite number of at least 0"
    ):
        SACConfig(initial_temperature=-0.1, learn_temperature=False)


def test_the_temperature_follows_the_entropy_of_what_was_drawn() -> None:
    learner = SAC(_actor("stochastic"), SACConfig(initial_temperature=0.3))
    output = learner.loss(_batch(), {name: torch.zeros(2, 1) for name in ("now", "next")})
    # Whatever the weights are; the target entropy is minus the number of real actions.
    expected = -math.log(0.3) * (LOG_PROB - 1.0)
    assert output.metrics["loss/temperature"].item() == pytest.approx(expected)
