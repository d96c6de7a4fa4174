import pytest
import torch

from rl_core.errors import ConfigError
from rl_testing.reference import ReferenceRolloutStorage
from rl_testing.rollout_storages import RolloutStorageSuite
from rl_testing.transitions import TransitionScript


class TestReferenceRolloutStorage(RolloutStorageSuite):
    def make_storage(self) -> ReferenceRolloutStorage:
        return ReferenceRolloutStorage(11)


def test_no_minibatches_are_refused() -> None:
    storage = ReferenceRolloutStorage(4)
    storage.allocate(TransitionScript().spec(), torch.Generator())
    with pytest.raises(ConfigError, match="num_minibatches=0"):
        next(storage.sample_indices(0, None))
