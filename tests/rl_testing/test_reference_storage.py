from rl_testing.reference import ReferenceRolloutStorage
from rl_testing.rollout_storages import RolloutStorageSuite


class TestReferenceRolloutStorage(RolloutStorageSuite):
    def make_storage(self) -> ReferenceRolloutStorage:
        return ReferenceRolloutStorage(11)
