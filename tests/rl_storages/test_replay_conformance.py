from rl_core.testing.replay import ReplayStorageSuite
from rl_storages import PrioritizedConfig, ReplayBuffer


class TestReplayBuffer(ReplayStorageSuite):
    def make_storage(self, *, size: int, n_step: int) -> ReplayBuffer:
        return ReplayBuffer(size, n_step=n_step)


class TestPrioritizedReplayBuffer(ReplayStorageSuite):
    """Nothing is learned here, so all priorities are the same, and draws merely stratified."""

    def make_storage(self, *, size: int, n_step: int) -> ReplayBuffer:
        return ReplayBuffer(size, n_step=n_step, prioritized=PrioritizedConfig())
