"""Where a reward is too rare to be found, hindsight must make the difference."""

import pytest
import torch

from rl_algos_offpolicy import DQN, DQNConfig, OffPolicyActor, OffPolicyActorConfig
from rl_envs import make_vec
from rl_storages import HindsightConfig, PrioritizedConfig, RecentConfig, ReplayBuffer
from rl_train import Trainer, TrainerConfig, evaluate_policy

NUM_BITS = 7


def _success_rate(storage: ReplayBuffer, steps: int) -> float:
    options = {"num_bits": NUM_BITS}
    with make_vec("BitFlipping-v0", 4, seed=0, env_kwargs=options) as envs:
        torch.manual_seed(0)
        actor = OffPolicyActor(
            envs.single_observation_space,
            envs.single_action_space,
            OffPolicyActorConfig(policy="greedy", hidden_sizes=(128,)),
        )
        config = DQNConfig(
            learning_rate=1e-3,
            gamma=0.9,
            minibatch_size=128,
            update_after=400,
            update_every=4,
            num_minibatches=2,
            target_update_every=50,
            epsilon=0.2,
        )
        trainer = Trainer(
            envs, DQN(actor, config), storage, seed=0, config=TrainerConfig(compile="off")
        )
        trainer.train(total_steps=steps)
        rate = evaluate_policy(actor, envs, 100).success_rate
    assert rate is not None
    return rate


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["final", "future"])
def test_hindsight_learns_bit_flipping(strategy: str) -> None:
    hindsight = HindsightConfig(strategy=strategy)  # type: ignore[arg-type]  # one of its names
    assert _success_rate(ReplayBuffer(20_000, hindsight=hindsight), 4_000) >= 0.9


def test_hindsight_learns_together_with_all_else() -> None:
    storage = ReplayBuffer(
        20_000,
        n_step=2,
        prioritized=PrioritizedConfig(),
        recent=RecentConfig(cmin=1000),
        hindsight=HindsightConfig(),
    )
    assert _success_rate(storage, 4_000) >= 0.9


@pytest.mark.slow
def test_without_hindsight_bit_flipping_is_not_learned() -> None:
    assert _success_rate(ReplayBuffer(20_000), 4_000) < 0.5
