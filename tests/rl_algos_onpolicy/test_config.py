"""What configs say must reach the optimizers, however a number is written."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from rl_algos_onpolicy import (
    A2C,
    PPO,
    TRPO,
    VPG,
    A2CConfig,
    OnPolicyActor,
    OnPolicyActorConfig,
    PPOConfig,
    RNDPPOConfig,
    TRPOConfig,
    VPGConfig,
)
from rl_algos_onpolicy.config import OnPolicyConfig
from rl_core.algorithm.hyper import schedules_of
from rl_core.gradients import OptimizerConfig

CONFIGS: list[OnPolicyConfig] = [
    *(
        PPOConfig(advantage_estimator=name)
        for name in ("gae", "td", "return", "baseline", "vtrace")
    ),
    PPOConfig(entropy_method="no_entropy"),
    PPOConfig(stop_entropy_gradient=True),
    PPOConfig(surrogate="kl-penalty", kl_target=0.01, kl_penalty=0.5),
    A2CConfig(advantage_estimator="return"),
    VPGConfig(advantage_estimator="return", entropy_method="no_entropy"),
    TRPOConfig(advantage_estimator="td"),
    RNDPPOConfig(),
]


@pytest.mark.parametrize("config", CONFIGS)
def test_numbers_may_be_written_as_schedules(config: OnPolicyConfig) -> None:
    """Which is what checkpoints hold."""
    for name, schedule in schedules_of(config).items():
        assert replace(config, **{name: schedule}) == config  # type: ignore[arg-type]  # any field


@pytest.mark.parametrize(
    ("algorithm", "config"),
    [(A2C, A2CConfig), (PPO, PPOConfig), (TRPO, TRPOConfig), (VPG, VPGConfig)],
)
def test_the_optimizer_and_its_bound_are_those_of_all_groups(algorithm: Any, config: Any) -> None:
    space = spaces.Box(-1.0, 1.0, (3,), np.float32)
    actor = OnPolicyActor(space, spaces.Discrete(2), OnPolicyActorConfig(hidden_sizes=(4,)))
    sgd = OptimizerConfig(name="sgd")
    for bound, expected in ((0.25, "max_grad_norm"), (None, None)):
        groups = algorithm(actor, config(optimizer=sgd, max_grad_norm=bound)).parameter_groups()
        assert {group.optimizer for group in groups} == {sgd}
        assert {group.max_grad_norm for group in groups} == {expected}
