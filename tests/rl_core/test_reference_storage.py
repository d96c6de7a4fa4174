from rl_core.testing.reference import ReferenceRolloutStorage
from rl_core.testing.rollout_storages import RolloutStorageSuite


class TestReferenceRolloutStorage(RolloutStorageSuite):
    def make_storage(self) -> ReferenceRolloutStorage:
        return ReferenceRolloutStorage(11)
