from collections.abc import Mapping
from typing import ClassVar

import pytest

from my_plugin import StepList
from rl_core import ConfigError
from rl_core.storage import AnyStorage
from rl_testing.rollout_storages import RolloutStorageSuite
from rl_testing.storages import SCRIPTS, seeded
from rl_testing.transitions import TransitionScript


class TestStepList(RolloutStorageSuite):
    scripts: ClassVar[Mapping[str, TransitionScript]] = {
        name: script for name, script in SCRIPTS.items() if not script.recurrent
    }

    def make_storage(self) -> AnyStorage:
        return StepList(num_steps=9)


def test_recurrent_actors_are_refused() -> None:
    with pytest.raises(ConfigError, match="recurrent"):
        StepList().allocate(TransitionScript(recurrent=True).spec(), seeded())
