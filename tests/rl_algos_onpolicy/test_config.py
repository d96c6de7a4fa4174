"""What configs refuse must not depend on how a number is written."""

from dataclasses import replace

import pytest

from rl_algos_onpolicy import A2CConfig, PPOConfig, RNDPPOConfig, TRPOConfig, VPGConfig
from rl_algos_onpolicy.config import OnPolicyConfig
from rl_core.algorithm.hyper import schedules_of

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
