import torch
from gymnasium import spaces

from my_plugin import Reinforce, ReinforceConfig
from my_plugin.reinforce import policy_gradient_loss, value_loss
from rl_core.algorithm import AnyAlgorithm
from rl_testing.algorithms import AlgorithmSuite
from rl_testing.toy import ToyActor


class TestReinforce(AlgorithmSuite):
    def make_algorithm(self, seed: int) -> AnyAlgorithm:
        torch.manual_seed(seed)
        actor = ToyActor(spaces.Box(-1.0, 1.0, (3,)), spaces.Discrete(2))
        return Reinforce(actor, ReinforceConfig(learning_rate=0.01))


def test_the_losses_are_the_equations() -> None:
    mask = torch.tensor([1.0, 1.0, 0.0])
    log_prob, advantage = torch.tensor([-1.0, -2.0, 9.0]), torch.tensor([0.5, -1.0, 9.0])
    assert policy_gradient_loss(log_prob, advantage, mask) == -0.75
    value, target = torch.tensor([1.0, 2.0, 9.0]), torch.tensor([2.0, 5.0, 0.0])
    assert value_loss(value, target, mask) == 2.5
