from rl_core.testing.rollout_storages import RolloutStorageSuite
from rl_storages import RolloutStorage


class TestRolloutStorage(RolloutStorageSuite):
    def make_storage(self) -> RolloutStorage:
        return RolloutStorage(11)
