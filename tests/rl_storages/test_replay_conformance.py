from pathlib import Path
from types import MappingProxyType

import pytest

from rl_storages import PrioritizedConfig, RecentConfig, ReplayBuffer
from rl_testing.replay import LIVES, ReplayStorageSuite
from rl_testing.storages import SCRIPTS

EVERYTHING = RecentConfig(eta=1.0, cmin=1)
"""Windows that do not shrink."""

FEW_LIVES = MappingProxyType(
    {
        name: LIVES[name]
        for name in ("same_step_dict_box", "next_step_interrupted", "disabled_interrupted")
    }
)
"""One for each way to reset: where rows lie, and who draws them, has nothing to do with columns."""


class TestReplayBuffer(ReplayStorageSuite):
    def make_storage(self, *, size: int, n_step: int) -> ReplayBuffer:
        return ReplayBuffer(size, n_step=n_step)


class TestPrioritizedReplayBuffer(ReplayStorageSuite):
    """Nothing is learned here, so all priorities are the same, and draws merely stratified."""

    lives = FEW_LIVES

    def make_storage(self, *, size: int, n_step: int) -> ReplayBuffer:
        return ReplayBuffer(size, n_step=n_step, prioritized=PrioritizedConfig())


class TestRecentReplayBuffer(ReplayStorageSuite):
    """With windows that take in everything."""

    lives = MappingProxyType({"next_step_interrupted": LIVES["next_step_interrupted"]})

    def make_storage(self, *, size: int, n_step: int) -> ReplayBuffer:
        return ReplayBuffer(size, n_step=n_step, recent=EVERYTHING)


class TestRecentPrioritizedReplayBuffer(ReplayStorageSuite):
    lives = MappingProxyType({"same_step_dict_box": LIVES["same_step_dict_box"]})

    def make_storage(self, *, size: int, n_step: int) -> ReplayBuffer:
        config = PrioritizedConfig()
        return ReplayBuffer(size, n_step=n_step, prioritized=config, recent=EVERYTHING)


class TestReplayBufferInFiles(ReplayStorageSuite):
    """Saved, restored and sliced from files, like from memory."""

    lives = FEW_LIVES
    scripts = MappingProxyType(
        {name: SCRIPTS[name] for name in ("same_step", "next_step_dict_torch")}
    )

    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path: Path) -> None:
        self.directory = str(tmp_path)

    def make_storage(self, *, size: int, n_step: int) -> ReplayBuffer:
        return ReplayBuffer(size, n_step=n_step, mmap_dir=self.directory)
