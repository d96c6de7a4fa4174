import gymnasium
import torch

from rl_core.actor import Actor
from rl_core.algorithm import AnyAlgorithm
from rl_core.spaces import Space
from rl_testing.actors import OBSERVATION_SPACES, ActorSuite
from rl_testing.algorithms import AlgorithmSuite
from rl_testing.toy import ToyActor, ToyActorCritic


class TestToyActor(ActorSuite):
    def make_actor(self, observation_space: Space, action_space: Space) -> Actor:
        return ToyActor(observation_space, action_space, normalize=True)


class TestToyActorWithMemory(ActorSuite):
    def make_actor(self, observation_space: Space, action_space: Space) -> Actor:
        return ToyActor(observation_space, action_space, remembers=True)


class TestToyActorCritic(AlgorithmSuite):
    def make_algorithm(self, seed: int) -> AnyAlgorithm:
        return _algorithm(seed, remembers=False)


class TestToyActorCriticWithMemory(AlgorithmSuite):
    has_compile_test = False

    def make_algorithm(self, seed: int) -> AnyAlgorithm:
        return _algorithm(seed, remembers=True)


def _algorithm(seed: int, *, remembers: bool) -> ToyActorCritic:
    spaces = OBSERVATION_SPACES["vector"], gymnasium.spaces.Discrete(3)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return ToyActorCritic(ToyActor(*spaces, remembers=remembers))
