from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from rl_algos_onpolicy import A2C, VPG, A2CConfig, OnPolicyActor, OnPolicyActorConfig
from rl_algos_onpolicy.vpg import policy_gradient_loss
from rl_core.config import Linear
from rl_core.errors import ConfigError
from rl_core.gradients import OptimizerConfig
from rl_testing.algorithms import AlgorithmSuite
from rl_testing.rollouts import make_batch, make_rollout

VECTOR = spaces.Box(-1.0, 1.0, (3,), np.float32)
BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)

SEED_DEFAULTS = A2CConfig(
    policy_learning_rate=1e-4,
    value_learning_rate=1e-4,
    gamma=0.99,
    max_grad_norm=0.5,
    optimizer=OptimizerConfig(name="adam"),
)
"""What PyTorchRL's A2C does when nothing is said."""


class TestA2C(AlgorithmSuite):
    def make_algorithm(self, seed: int) -> A2C:
        torch.manual_seed(seed)
        actor = OnPolicyActor(VECTOR, BOX, OnPolicyActorConfig(hidden_sizes=(8,)))
        return A2C(actor, A2CConfig(entropy_coef=0.01))


class TestA2CWithSeedDefaults(AlgorithmSuite):
    has_compile_test: ClassVar[bool] = False

    def make_algorithm(self, seed: int) -> A2C:
        torch.manual_seed(seed)
        actor = OnPolicyActor(VECTOR, spaces.Discrete(3), OnPolicyActorConfig(hidden_sizes=(8,)))
        return A2C(actor, SEED_DEFAULTS)


class TestSharedA2C(AlgorithmSuite):
    has_compile_test: ClassVar[bool] = False

    def make_algorithm(self, seed: int) -> A2C:
        torch.manual_seed(seed)
        config = OnPolicyActorConfig(
            hidden_sizes=(8,),
            shared_policy_value_network=True,
            recurrent_net="lstm",
            recurrent_hidden_size=4,
        )
        actor = OnPolicyActor(VECTOR, spaces.MultiDiscrete([2, 3]), config)
        return A2C(actor, A2CConfig(max_grad_norm=None, normalize_advantage=True))


def _a2c(config: A2CConfig | None = None) -> A2C:
    torch.manual_seed(0)
    actor = OnPolicyActor(VECTOR, spaces.Discrete(3), OnPolicyActorConfig(hidden_sizes=(8,)))
    return A2C(actor, config)


def test_the_policy_loss_by_hand() -> None:
    log_prob, advantage = torch.tensor([-1.0, -2.0, -3.0]), torch.tensor([2.0, -1.0, 0.5])
    loss = policy_gradient_loss(log_prob, advantage, torch.ones(3))
    assert loss.item() == pytest.approx(-(-2.0 + 2.0 - 1.5) / 3.0)
    loss = policy_gradient_loss(log_prob, advantage, torch.tensor([1.0, 0.0, 1.0]))
    assert loss.item() == pytest.approx(-(-2.0 - 1.5) / 2.0)


def test_the_loss_puts_the_terms_together() -> None:
    algorithm = _a2c(A2CConfig(entropy_coef=0.3))
    batch = make_batch(algorithm, make_rollout(algorithm, seed=1))
    now = algorithm.actor.evaluate_actions(batch.observation, batch.action, {})
    assert now.value is not None
    kept = batch.mask.bool()
    expected = (
        -(now.log_prob * batch.advantage)[kept].mean()
        + (now.value - batch.value_target)[kept].square().mean()
        - 0.3 * now.entropy[kept].mean()
    )
    torch.testing.assert_close(algorithm.compute_loss(batch).loss, expected)


def test_without_saying_so_there_is_no_entropy_term() -> None:
    algorithm = _a2c(SEED_DEFAULTS)
    batch = make_batch(algorithm, make_rollout(algorithm, seed=1))
    output = algorithm.compute_loss(batch)
    parts = output.metrics["loss/policy"] + output.metrics["loss/value"]
    torch.testing.assert_close(output.loss, parts)


def test_each_loss_moves_its_own_network() -> None:
    algorithm = _a2c()
    batch = make_batch(algorithm, make_rollout(algorithm, seed=1))
    now = algorithm.actor.evaluate_actions(batch.observation, batch.action, {})
    assert now.value is not None
    gradients = algorithm.compute_gradients(replace(batch, advantage=torch.zeros_like(now.value)))
    assert not gradients.tensors["policy"].any()
    assert gradients.tensors["value"].any()
    gradients = algorithm.compute_gradients(replace(batch, value_target=now.value.detach()))
    assert gradients.tensors["policy"].any()
    assert not gradients.tensors["value"].any()


def test_both_networks_are_clipped_by_their_joint_norm() -> None:
    sgd = OptimizerConfig(name="sgd")
    config = A2CConfig(
        policy_learning_rate=1.0, value_learning_rate=1.0, max_grad_norm=0.01, optimizer=sgd
    )
    algorithm = _a2c(config)
    before = algorithm.named_parameters()
    before = {name: tensor.detach().clone() for name, tensor in before.items()}
    algorithm.gradient_step(make_batch(algorithm, make_rollout(algorithm, seed=1)))
    moved = torch.cat(
        [(p.detach() - before[name]).flatten() for name, p in algorithm.named_parameters().items()]
    )
    assert moved.norm().item() == pytest.approx(0.01, rel=1e-3)


def test_each_rate_moves_its_own_network() -> None:
    for still, moving in (("policy", "value"), ("value", "policy")):
        algorithm = _a2c()
        algorithm.update_algorithm_parameter(f"{still}_learning_rate", 0.0)
        vectors = algorithm.gradients.vectors
        before = {name: vector.values.clone() for name, vector in vectors.items()}
        algorithm.gradient_step(make_batch(algorithm, make_rollout(algorithm, seed=1)))
        assert torch.equal(vectors[still].values, before[still])
        assert not torch.equal(vectors[moving].values, before[moving])
        assert algorithm.gradients.learns


def test_a_shared_torso_has_one_rate() -> None:
    actor = OnPolicyActor(
        VECTOR, spaces.Discrete(2), OnPolicyActorConfig(shared_policy_value_network=True)
    )
    with pytest.raises(ConfigError, match=r"share policy_torso.*must be equal, got 0\.001"):
        A2C(actor, A2CConfig(policy_learning_rate=1e-3, value_learning_rate=5e-4))
    for only in ("policy_learning_rate", "value_learning_rate"):
        given = A2C(actor, A2CConfig(**{only: 1e-3}))  # type: ignore[arg-type]  # by name
        assert {group.learning_rate for group in given.parameter_groups()} == {only}
    usual = VPG(actor)  # whose rates differ where nothing is shared
    assert {group.learning_rate for group in usual.parameter_groups()} == {"policy_learning_rate"}
    algorithm = A2C(actor, A2CConfig(policy_learning_rate=1e-3, value_learning_rate=1e-3))
    for name, rate in (("value_learning_rate", 0.5), ("policy_learning_rate", 0.25)):
        algorithm.update_algorithm_parameter(name, rate)
        rates = [algorithm.hyper[f"{part}_learning_rate"] for part in ("policy", "value")]
        assert rates == [rate, rate]
    alone = A2C(OnPolicyActor(VECTOR, spaces.Discrete(2)), A2CConfig())
    alone.update_algorithm_parameter("value_learning_rate", 0.5)
    assert alone.hyper["policy_learning_rate"] != 0.5


def test_a_shared_extractor_has_one_rate_too() -> None:
    extractor = nn.Linear(3, 4)
    actor = OnPolicyActor(VECTOR, spaces.Discrete(2), feature_extractor=extractor)
    config = A2CConfig(policy_learning_rate=1e-3, value_learning_rate=5e-4)
    with pytest.raises(ConfigError, match=r"share policy_torso\.encoder"):
        A2C(actor, config)
    A2C(OnPolicyActor(VECTOR, spaces.Discrete(2), feature_extractor=extractor), A2CConfig())
    frozen = nn.Linear(3, 4).requires_grad_(False)
    A2C(OnPolicyActor(VECTOR, spaces.Discrete(2), feature_extractor=frozen), config)


def test_the_schedule_is_one_step_per_rollout() -> None:
    schedule = _a2c(SEED_DEFAULTS).schedule
    assert (schedule.start_steps, schedule.update_every) == (0, None)
    assert (schedule.num_epochs, schedule.num_minibatches, schedule.minibatch_size) == (1, 1, None)


def test_estimator_and_target_can_be_chosen() -> None:
    rollout = make_rollout(_a2c(), seed=1)
    columns, _ = _a2c(A2CConfig(advantage_estimator="td", value_target="return")).prepare(rollout)
    short, _ = _a2c(A2CConfig(gae_lambda=0.0)).prepare(rollout)
    long, _ = _a2c(A2CConfig(gae_lambda=1.0)).prepare(rollout)
    torch.testing.assert_close(columns["advantage"], short["advantage"])
    torch.testing.assert_close(columns["value_target"], long["value_target"])
    with pytest.raises(ConfigError, match="did you mean 'td'"):
        A2CConfig(advantage_estimator="tdd")  # type: ignore[arg-type]  # the mistake


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("policy_learning_rate", -1e-4),
        ("value_learning_rate", Linear(1e-4, -1e-4)),
        ("gamma", -0.01),
        ("gae_lambda", 1.01),
        ("max_grad_norm", 0.0),
        ("entropy_coef", -0.01),
    ],
)
def test_options_out_of_range_are_refused(option: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"{option} must be"):
        A2CConfig(**{option: value})  # type: ignore[arg-type]  # one option by name
