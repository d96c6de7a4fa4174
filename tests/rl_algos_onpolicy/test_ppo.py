import numpy as np
import torch
from gymnasium import spaces

from rl_algos_onpolicy import PPO, OnPolicyActor, OnPolicyActorConfig, PPOConfig
from rl_core.testing.algorithms import AlgorithmSuite

VECTOR = spaces.Box(-1.0, 1.0, (3,), np.float32)


class TestPPO(AlgorithmSuite):
    def make_algorithm(self, seed: int) -> PPO:
        torch.manual_seed(seed)
        actor = OnPolicyActor(VECTOR, spaces.Discrete(3), OnPolicyActorConfig(hidden_sizes=(8,)))
        return PPO(actor, PPOConfig(learning_rate=1e-3))
