"""What becomes of the policy's entropy, in every algorithm alike."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
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
    TRPOConfig,
    VPGConfig,
)
from rl_algos_onpolicy.config import OnPolicyConfig
from rl_algos_onpolicy.entropy import entropy_loss
from rl_core.algorithm import AnyAlgorithm, evaluate_rollout
from rl_core.config import Linear
from rl_core.errors import ConfigError
from rl_core.nn.distributions import Categorical
from rl_testing.rollouts import make_batch, make_rollout

VECTOR = spaces.Box(-1.0, 1.0, (3,), np.float32)
BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)
CONFIGS: dict[str, Callable[..., Any]] = {
    "vpg": VPGConfig,
    "a2c": A2CConfig,
    "ppo": PPOConfig,
    "trpo": TRPOConfig,
}
ALGORITHMS: dict[str, Callable[..., AnyAlgorithm]] = {
    "vpg": VPG,
    "a2c": A2C,
    "ppo": PPO,
    "trpo": TRPO,
}


def _off(name: str) -> Any:
    return "none" if name == "ppo" else False


@pytest.mark.parametrize("name", CONFIGS)
def test_contradictions_are_refused(name: str) -> None:
    make, on = CONFIGS[name], "batch" if name == "ppo" else True
    for options, message in (
        (
            {"entropy_method": "max", "stop_entropy_gradient": True, "normalize_advantage": on},
            "entropy_method='max' rewards entropy.*normalize_advantage would remove it again; turn",
        ),
        (
            {"entropy_method": "max", "normalize_advantage": _off(name)},
            "set stop_entropy_gradient=True, or use 'regularized'",
        ),
        (
            {"entropy_method": "no_entropy", "entropy_coef": 0.1},
            "entropy_coef has no effect with entropy_method='no_entropy'; leave it out",
        ),
        (
            {"entropy_method": "no_entropy", "entropy_coef": Linear(0.1, 0.0)},
            "has no effect with entropy_method='no_entropy'",
        ),
        (
            {"entropy_coef": 0.1, "stop_entropy_gradient": True},
            "entropy_coef has no effect on a policy that stop_entropy_gradient=True",
        ),
        (
            {"entropy_method": "no_entropy", "use_softplus_entropy": True},
            "use_softplus_entropy has no effect with entropy_method='no_entropy'",
        ),
        (
            {"entropy_method": "no_entropy", "stop_entropy_gradient": True},
            "stop_entropy_gradient has no effect with entropy_method='no_entropy'",
        ),
        ({"entropy_method": "maximum"}, "entropy_method: unknown name 'maximum'; did you mean"),
    ):
        with pytest.raises(ConfigError, match=message):
            make(**options)
    make(entropy_method="no_entropy")


@pytest.mark.parametrize("softplus", [False, True])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_entropy_as_a_reward_is_in_the_returns(name: str, softplus: bool) -> None:
    columns = []
    for coefficient in (0.0, 0.5):
        torch.manual_seed(0)
        actor = OnPolicyActor(VECTOR, BOX, OnPolicyActorConfig(hidden_sizes=(4,)))
        config = CONFIGS[name](
            entropy_method="max",
            entropy_coef=coefficient,
            use_softplus_entropy=softplus,
            stop_entropy_gradient=True,
            normalize_advantage=_off(name),
            advantage_estimator="td",
        )
        algorithm = ALGORITHMS[name](actor, config)
        rollout = make_rollout(algorithm, seed=1)
        columns.append(algorithm.prepare(rollout)[0])
    entropy = evaluate_rollout(actor, rollout).distribution.entropy()
    rewarded = entropy.exp().log1p() if softplus else entropy
    for column in ("advantage", "value_target"):
        added = columns[1][column] - columns[0][column]
        torch.testing.assert_close(added, (0.5 * rewarded * rollout.valid).detach())
        assert not columns[1][column].requires_grad


@pytest.mark.parametrize(("softplus", "expected"), [(False, 2.0), (True, 6.0)])
def test_the_loss_averages_over_the_samples_that_count(softplus: bool, expected: float) -> None:
    # entropies log 2, 0 and one that does not count; their softplus is log 3 and log 2
    policy = Categorical(torch.tensor([[0.0, 0.0], [99.0, 0.0], [99.0, 0.0]]))
    options = OnPolicyConfig(use_softplus_entropy=softplus)
    mask = torch.tensor([1.0, 1.0, 0.0])
    term, mean = entropy_loss(options, torch.tensor(0.5), policy, mask)
    assert term.item() == pytest.approx(-0.5 * math.log(expected) / 2.0)
    assert mean.item() == pytest.approx(math.log(2.0) / 2.0)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_log_holds_the_entropy_itself(name: str) -> None:
    """Of two actions it is at most log 2, while softplus of it is above 1.

    Each algorithm tells it once per update: from the rollout where no loss of it is logged.
    """
    torch.manual_seed(0)
    actor = OnPolicyActor(VECTOR, spaces.Discrete(2), OnPolicyActorConfig(hidden_sizes=(4,)))
    config = CONFIGS[name](use_softplus_entropy=True, entropy_coef=0.1)
    algorithm = ALGORITHMS[name](actor, config)
    rollout = make_rollout(algorithm, seed=1)
    told = [
        algorithm.prepare(rollout)[1],
        algorithm.compute_loss(make_batch(algorithm, rollout)).metrics,
    ]
    (entropy,) = [metrics["policy/entropy"] for metrics in told if "policy/entropy" in metrics]
    assert ("policy/entropy" in told[0]) == (name == "trpo")
    assert 0.6 < entropy.item() < 0.694
