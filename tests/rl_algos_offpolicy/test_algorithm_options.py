"""Which options and actors off-policy algorithms refuse or take, and what they advise instead."""

from typing import Any, cast

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rl_algos_offpolicy import (
    BC,
    DDPG,
    DQN,
    SAC,
    TD3,
    BCConfig,
    DDPGConfig,
    DQNConfig,
    OffPolicyActor,
    OffPolicyActorConfig,
    Rainbow,
    SACConfig,
    TD3Config,
)
from rl_algos_offpolicy.actor.config import LEARNERS, PolicyKind
from rl_algos_offpolicy.config import OffPolicyConfig
from rl_core import plugins
from rl_core.algorithm import AnyAlgorithm, EnvSpec
from rl_core.config import Constant, Linear, Schedule
from rl_core.errors import ConfigError
from rl_core.gradients import OptimizerConfig

VECTOR = spaces.Box(-1.0, 1.0, (3,), np.float32)
BOX = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 1.0], np.float32))
CATEGORIES = spaces.Discrete(3)


def _actor(space: spaces.Space[object], policy: str) -> OffPolicyActor:
    torch.manual_seed(0)
    config = OffPolicyActorConfig(policy=policy, hidden_sizes=(8,))  # type: ignore[arg-type]
    return OffPolicyActor(VECTOR, space, config)


@pytest.mark.parametrize(
    ("algorithm", "policy", "space"),
    [
        (SAC, "deterministic", BOX),
        (SAC, "greedy", CATEGORIES),
        (TD3, "stochastic", BOX),
        (DDPG, "stochastic", BOX),
        (DQN, "stochastic", CATEGORIES),
    ],
)
def test_an_actor_of_another_kind_is_refused(
    algorithm: type[AnyAlgorithm], policy: str, space: spaces.Space[object]
) -> None:
    with pytest.raises(ConfigError, match=f"{algorithm.__name__} needs an OffPolicyActor with a"):
        algorithm(_actor(space, policy))


@pytest.mark.parametrize(
    ("algorithm", "space", "others"),
    [
        (TD3, CATEGORIES, "choose dqn, rainbow"),
        (DDPG, CATEGORIES, "choose dqn, rainbow"),
        (DQN, BOX, "choose td3, ddpg"),
        (Rainbow, BOX, "choose td3, ddpg"),
        (TD3, BOX, "set actor.policy to 'deterministic'$"),
        (DQN, CATEGORIES, "set actor.policy to 'greedy'$"),
    ],
)
def test_algorithms_that_fit_the_actions_are_named(
    algorithm: type[AnyAlgorithm], space: spaces.Space[object], others: str
) -> None:
    with pytest.raises(ConfigError, match=others):
        algorithm(_actor(space, "stochastic"))


@pytest.mark.parametrize("kind", LEARNERS)
def test_the_algorithms_that_are_advised_learn_that_kind_of_policy(kind: PolicyKind) -> None:
    space = CATEGORIES if kind == "greedy" else BOX
    for name in LEARNERS[kind]:
        assert name in plugins.available("algorithm")
        recipe = cast("type[AnyAlgorithm]", plugins.load("algorithm", name)).default_recipe(
            EnvSpec("Scripted-v0", VECTOR, space)
        )
        assert recipe.actor.kwargs["policy"] == kind


@pytest.mark.parametrize(
    ("options", "tau"),
    [
        ({}, 0.01),
        ({"target_update_every": 500}, 1.0),
        ({"target_update_every": 2, "tau": 0.5}, 0.5),
    ],
)
def test_targets_that_wait_are_copies_unless_told_otherwise(
    options: dict[str, float], tau: float
) -> None:
    config = DQNConfig(**options)  # type: ignore[arg-type]  # of several types
    actor = OffPolicyActor(VECTOR, spaces.Discrete(2), OffPolicyActorConfig(policy="greedy"))
    algorithm = DQN(actor, config)
    assert algorithm.hyper["tau"].item() == pytest.approx(tau)
    (target,) = algorithm.target_networks()
    assert target.every == options.get("target_update_every", 1)
    # A recipe holds what was given, so that another period has a usual coefficient of its own.
    assert config.tau == options.get("tau")


@pytest.mark.parametrize("weight", [Constant(0.0), Linear(0.0, 0.0), 0.0])
def test_no_smoothness_may_be_written_as_a_schedule(weight: Schedule | float) -> None:
    SAC(_actor(spaces.Discrete(2), "stochastic"), SACConfig(temporal_smoothness=weight))


def test_what_is_no_actor_is_refused() -> None:
    with pytest.raises(ConfigError, match="actor: expected Actor, got NoneType"):
        DQN(None)  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.parametrize(
    ("config", "option", "value"),
    [
        (OffPolicyConfig, "gamma", 1.5),
        (OffPolicyConfig, "minibatch_size", 0),
        (OffPolicyConfig, "start_steps", -1),
        (OffPolicyConfig, "reward_scale", 0.0),
        (SACConfig, "tau", 1.1),
        (SACConfig, "initial_temperature", 0.0),
        (SACConfig, "spatial_smoothness", -1.0),
        (TD3Config, "policy_delay", 0),
        (TD3Config, "target_noise", -0.1),
        (TD3Config, "target_noise_clip", 0.0),
        (TD3Config, "exploration_noise", "gauss"),
        (DDPGConfig, "clip_return", 0.0),
        (TD3Config, "clip_return", -1.0),
        (TD3Config, "ou_theta", 0.15),
        (DDPGConfig, "ou_dt", 0.1),
        (SACConfig, "policy_delay", 0),
        (SACConfig, "num_target_critics", 0),
        (SACConfig, "policy_value", "most"),
        (DDPGConfig, "critic_weight_decay", -0.1),
        (DQNConfig, "epsilon", 1.5),
        (DQNConfig, "loss", "hubert"),
        (DQNConfig, "target_update_every", 0),
    ],
)
def test_options_out_of_range_are_refused(
    config: type[OffPolicyConfig], option: str, value: object
) -> None:
    with pytest.raises(ConfigError, match=option):
        config(**{option: value})  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.parametrize(
    ("algorithm", "policy", "options", "message"),
    [
        (
            TD3,
            "deterministic",
            {"exploration_noise": "none", "exploration_std": 0.2},
            "exploration_std has no effect with exploration_noise='none'",
        ),
        (
            TD3,
            "deterministic",
            {"target_noise": 0.0, "target_noise_clip": 0.2},
            "target_noise_clip bounds the noise on target actions",
        ),
        (
            SAC,
            "stochastic",
            {"learn_temperature": False, "target_entropy": 0.0},
            "target_entropy has no effect with learn_temperature=False",
        ),
        (
            SAC,
            "stochastic",
            {"learn_temperature": False, "temperature_learning_rate": 1e-3},
            "temperature_learning_rate has no effect",
        ),
        (SAC, "stochastic", {"smoothness_std": 0.1}, "smoothness_std has no effect"),
    ],
)
def test_options_without_effect_are_refused(
    algorithm: type[AnyAlgorithm], policy: str, options: dict[str, object], message: str
) -> None:
    make_config = TD3Config if algorithm is TD3 else SACConfig
    with pytest.raises(ConfigError, match=message):
        algorithm(_actor(BOX, policy), make_config(**options))  # type: ignore[arg-type]  # of many types


@pytest.mark.parametrize(
    ("algorithm", "config", "policy", "space"),
    [
        (BC, BCConfig, "stochastic", BOX),
        (DDPG, DDPGConfig, "deterministic", BOX),
        (DQN, DQNConfig, "greedy", CATEGORIES),
        (SAC, SACConfig, "stochastic", BOX),
        (TD3, TD3Config, "deterministic", BOX),
    ],
)
def test_the_optimizer_and_its_bound_are_those_of_all_groups(
    algorithm: Any, config: Any, policy: str, space: spaces.Space[object]
) -> None:
    sgd = OptimizerConfig(name="sgd")
    for bound, expected in ((0.25, "max_grad_norm"), (None, None)):
        options = config(optimizer=sgd, max_grad_norm=bound)
        groups = algorithm(_actor(space, policy), options).parameter_groups()
        assert {group.optimizer for group in groups} == {sgd}
        assert {group.max_grad_norm for group in groups} == {expected}


def test_ddpg_wants_to_know_what_decays() -> None:
    with pytest.raises(ConfigError, match="critic_weight_decay instead of optimizer"):
        DDPGConfig(optimizer=OptimizerConfig(weight_decay=0.1))
