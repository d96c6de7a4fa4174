"""Meta-learners adapt to goals that they never saw, where one policy for all goals cannot."""

import pytest

import rl_train
from rl_core.types import Json
from rl_envs.tasks import PointNavigation


@pytest.mark.slow
def test_pearl_finds_new_goals_within_two_episodes() -> None:
    rates: dict[str, Json] = {"policy_learning_rate": 1e-3, "critic_learning_rate": 1e-3}
    agent = rl_train.make(
        "pearl",
        "PointNavigation-v0",
        seed=1,
        options={
            "actor": {
                "inner_options": {"hidden_sizes": [64, 64]},
                "encoder_hidden_sizes": [64, 64],
            },
            "algorithm": {
                "num_minibatches": 100,
                "kl_coef": 0.01,
                "encoder_learning_rate": 1e-3,
                "inner_options": {"gamma": 0.9, **rates},
            },
        },
    )
    agent.train(total_updates=45)
    result = rl_train.evaluate_policy(agent, PointNavigation(20), 40, seed=1)
    stages = {stage: found.mean for stage, found in result.stages.items()}
    # One policy for all goals gets -17 at best, for it stays where it is; the oracle gets -0.1.
    assert stages["before adaptation"] < -12.0
    assert stages["after step 1"] > -10.0
    assert stages["after step 2"] > -9.0
