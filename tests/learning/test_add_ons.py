"""Add-ons of the policy loss must do in training what they are there for."""

from collections.abc import Callable
from typing import SupportsFloat

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from rl_algos_onpolicy import PPO, OnPolicyActor, OnPolicyActorConfig, PPOConfig
from rl_algos_onpolicy.add_ons import AttractionKL, RepulsionKL, ReturnPredictor, RewardPredictor
from rl_core.algorithm import PolicyLossAddOn
from rl_core.nn.layers import LayerConfig
from rl_envs import make_gym_vec
from rl_storages import RolloutStorage
from rl_testing.scripted import IDENTITY_SPACES, IdentityEnv, Info
from rl_train import Trainer, TrainerConfig

SPACE = IDENTITY_SPACES["discrete"]
FAVOURITE = 2
"""What the other policy does, whatever it sees."""


class Shown(gymnasium.Env):
    """Rewards each step with the number that it shows, whatever the action, 0 to 3."""

    def __init__(self) -> None:
        self.observation_space = spaces.Discrete(4)
        self.action_space = spaces.Discrete(2)
        self.number = 0

    def reset(
        self, *, seed: int | None = None, options: Info | None = None
    ) -> tuple[np.int64, Info]:
        super().reset(seed=seed)
        return self._draw(), {}

    def step(self, action: object) -> tuple[np.int64, SupportsFloat, bool, bool, Info]:
        reward = float(self.number)
        return self._draw(), reward, False, False, {}

    def _draw(self) -> np.int64:
        self.number = int(self.np_random.integers(4))
        return np.int64(self.number)


def _identity() -> IdentityEnv:
    return IdentityEnv(SPACE)


def _trained(
    make_env: Callable[[], gymnasium.Env],
    total_steps: int,
    *add_ons: PolicyLossAddOn,
    config: OnPolicyActorConfig | None = None,
) -> PPO:
    envs = make_gym_vec(make_env, 8, seed=0)
    torch.manual_seed(0)
    actor = OnPolicyActor(
        envs.single_observation_space,
        envs.single_action_space,
        config or OnPolicyActorConfig(hidden_sizes=(32,)),
    )
    algorithm = PPO(
        actor,
        PPOConfig(learning_rate=1e-2, gamma=0.0, num_epochs=4, minibatch_size=128),
        add_ons=add_ons,
    )
    options = TrainerConfig(compile="off", num_threads=1)
    Trainer(envs, algorithm, RolloutStorage(32), config=options, seed=0).train(total_steps)
    envs.close()
    return algorithm


def _probabilities(*add_ons: PolicyLossAddOn, config: OnPolicyActorConfig | None = None) -> Tensor:
    """Return π(a|s) after training, a row for each observation."""
    actor = _trained(_identity, 5_120, *add_ons, config=config).actor
    with torch.no_grad():
        policy, _ = actor.distribution(torch.arange(4), {})
        columns = [policy.log_prob(torch.full((4,), action)).exp() for action in range(4)]
    return torch.stack(columns, -1)


def _other() -> OnPolicyActor:
    torch.manual_seed(1)
    actor = OnPolicyActor(SPACE, SPACE, OnPolicyActorConfig(hidden_sizes=(8,)))
    *_, bias = actor.action_head.parameters()
    with torch.no_grad():
        bias[FAVOURITE] = 4.0
    return actor


def test_alone_it_answers_what_it_sees() -> None:
    assert _probabilities().diagonal().min() > 0.9


def test_attraction_outweighs_the_reward() -> None:
    learned = _probabilities(AttractionKL([_other()], loss_weight=10.0))
    assert learned[:, FAVOURITE].min() > 0.9


def test_repulsion_leaves_out_what_the_other_policy_does() -> None:
    learned = _probabilities(RepulsionKL([_other()], loss_weight=10.0))
    assert learned[:, FAVOURITE].max() < 0.1
    others = [row for row in range(4) if row != FAVOURITE]
    assert learned.diagonal()[others].min() > 0.8


@pytest.mark.parametrize("kind", [RewardPredictor, ReturnPredictor])
def test_predictors_know_what_follows_an_observation(
    kind: type[RewardPredictor] | type[ReturnPredictor],
) -> None:
    algorithm = _trained(Shown, 5_120, kind(hidden_sizes=(16,)))
    (add_on,) = algorithm.add_ons
    assert isinstance(add_on, RewardPredictor | ReturnPredictor)
    with torch.no_grad():
        predicted = add_on.network(torch.arange(4)).squeeze(-1)
    torch.testing.assert_close(predicted, torch.arange(4.0), rtol=0.0, atol=0.2)


@pytest.mark.parametrize("share_body", [False, True])
def test_networks_from_data_learn(share_body: bool) -> None:
    config = OnPolicyActorConfig(
        body=(LayerConfig("FlattenLinear", {"out_features": 32}), LayerConfig("ReLU")),
        head=(LayerConfig("Linear", {"out_features": 16}), LayerConfig("Tanh")),
        share_body=share_body,
    )
    assert _probabilities(config=config).diagonal().min() > 0.9
