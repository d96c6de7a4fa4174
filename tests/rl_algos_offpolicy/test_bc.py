"""Behavior cloning: its two losses, its experts, and what it refuses."""

from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rl_algos_offpolicy import BC, BCConfig, OffPolicyActor, OffPolicyActorConfig
from rl_algos_offpolicy.actor.config import PolicyKind
from rl_algos_offpolicy.bc import squared_distance
from rl_core.errors import ConfigError
from rl_core.spaces import Space
from rl_testing.algorithms import AlgorithmSuite
from rl_testing.rollouts import make_replay_batch
from rl_testing.toy import ToyActor

VECTOR = spaces.Box(-1.0, 1.0, (3,), np.float32)


BOX = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 1.0], np.float32))


CATEGORIES = spaces.Discrete(3, start=4)


def _actor(
    space: Space, policy: PolicyKind = "stochastic", seed: int = 0, seen: Space = VECTOR
) -> OffPolicyActor:
    torch.manual_seed(seed)
    config = OffPolicyActorConfig(policy=policy, hidden_sizes=(8,), num_critics=1)
    return OffPolicyActor(seen, space, config)


class TestBC(AlgorithmSuite):
    def make_algorithm(self, seed: int) -> BC:
        return BC(_actor(BOX, seed=seed), BCConfig(max_grad_norm=1.0))


class TestMeanSquareBC(AlgorithmSuite):
    has_compile_test: ClassVar[bool] = False

    def make_algorithm(self, seed: int) -> BC:
        return BC(_actor(BOX, "deterministic", seed), BCConfig(loss="mse"))


class TestDiscreteBC(AlgorithmSuite):
    has_compile_test: ClassVar[bool] = False

    def make_algorithm(self, seed: int) -> BC:
        return BC(_actor(CATEGORIES, seed=seed))


def test_the_distance_is_the_mean_of_squares() -> None:
    mode, action = torch.tensor([[1.0, 2.0], [0.0, 0.0]]), torch.tensor([[0.0, 4.0], [0.0, 1.0]])
    assert squared_distance(mode, action).tolist() == [2.5, 0.5]


def test_the_losses_are_those_of_the_policy() -> None:
    actor = _actor(BOX)
    batch = make_replay_batch(BC(actor), seed=1)
    distribution, _ = actor.distribution(batch.observation, {})
    likely = BC(actor).compute_loss(batch).loss
    close = BC(actor, BCConfig(loss="mse")).compute_loss(batch).loss
    counts = batch.mask * batch.weight / batch.mask.sum()
    torch.testing.assert_close(likely, -(counts * distribution.log_prob(batch.action)).sum())
    distance = (distribution.mode() - batch.action).square().sum(-1) / 2.0
    torch.testing.assert_close(close, (counts * distance).sum())


def test_value_functions_are_left_alone() -> None:
    learner = BC(_actor(BOX))
    before = {name: value.clone() for name, value in learner.actor.state_dict().items()}
    learner.gradient_step(make_replay_batch(learner, seed=1))
    for name, value in learner.actor.state_dict().items():
        assert torch.equal(value, before[name]) == ("policy" not in name or "running" in name)


@pytest.mark.parametrize(
    ("space", "policy", "loss", "problem"),
    [
        (BOX, "deterministic", "log_prob", "this one is deterministic; set loss to 'mse', or set"),
        (CATEGORIES, "greedy", "log_prob", "this one is deterministic; set actor.policy to 'sto"),
        (CATEGORIES, "stochastic", "mse", "loss 'mse' needs real actions"),
        (CATEGORIES, "greedy", "mse", "loss 'mse' needs real actions"),
    ],
)
def test_a_loss_that_cannot_teach_the_policy_is_refused(
    space: Space, policy: PolicyKind, loss: str, problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        BC(_actor(space, policy), BCConfig(loss=loss))  # type: ignore[arg-type]  # any text


def test_actors_it_cannot_teach_are_refused() -> None:
    with pytest.raises(ConfigError, match="has no from_env_action"):
        BC(ToyActor(VECTOR, CATEGORIES))


@pytest.mark.parametrize(
    ("option", "value"),
    [("loss", "mae"), ("learning_rate", -1.0), ("update_every", 0), ("num_minibatches", 0)],
)
def test_options_out_of_range_are_refused(option: str, value: object) -> None:
    with pytest.raises(ConfigError, match=option):
        BCConfig(**{option: value})  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.parametrize("options", [{"update_every": 10}, {"deterministic_expert": False}])
def test_options_of_an_expert_need_one(options: dict[str, Any]) -> None:
    config = BCConfig(**options)
    with pytest.raises(ConfigError, match=f"{next(iter(options))} is about an expert"):
        BC(_actor(BOX), config)
    BC(_actor(BOX), config, expert=_actor(BOX))


def test_a_function_is_not_sampled_from() -> None:
    with pytest.raises(ConfigError, match="deterministic_expert=False has no effect on a function"):
        BC(_actor(BOX), BCConfig(deterministic_expert=False), expert=np.zeros_like)


def test_a_deterministic_policy_is_not_sampled_from() -> None:
    expert = _actor(BOX, policy="deterministic")
    with pytest.raises(ConfigError, match="no effect on this expert, whose policy is determin"):
        BC(_actor(BOX), BCConfig(deterministic_expert=False), expert=expert)
