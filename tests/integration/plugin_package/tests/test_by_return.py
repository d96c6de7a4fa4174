import pytest
import torch

from my_plugin import ByReturn
from rl_core import ConfigError
from rl_storages import ReplayBuffer, SequenceConfig
from rl_testing.replay import ReplayStorageSuite
from rl_testing.transitions import TransitionScript


class TestByReturn(ReplayStorageSuite):
    def make_storage(self, *, size: int, n_step: int) -> ReplayBuffer:
        return ReplayBuffer(size, n_step=n_step, sampler=ByReturn(temperature=1e6))


def test_good_episodes_are_drawn_more_often() -> None:
    script = TransitionScript(num_envs=1)
    storage = ReplayBuffer(10, sampler=ByReturn(temperature=100.0))
    storage.allocate(script.spec(), torch.Generator().manual_seed(0))
    for transition in script.transitions(5):
        storage.insert_transition(transition)
    (batch,) = storage.generate_batches(1, 40_000)
    shares = torch.bincount(batch.index[:, 0]) / 40_000
    # Rewards are 1, 2 and 3 in the first episode, 101 in the second, and the third has not ended.
    weights = torch.tensor([6.0, 6.0, 6.0, 101.0, 0.0]).div(100.0).exp()
    torch.testing.assert_close(shares[shares > 0], weights / weights.sum(), rtol=0.0, atol=0.01)


def test_a_temperature_of_0_and_sequences_are_refused() -> None:
    with pytest.raises(ConfigError, match="above 0"):
        ByReturn(0.0)
    storage = ReplayBuffer(10, sampler=ByReturn(), sequences=SequenceConfig(length=2, overlap=0.0))
    with pytest.raises(ConfigError, match="leave sequences out"):
        storage.allocate(TransitionScript(num_envs=1).spec(), torch.Generator())
