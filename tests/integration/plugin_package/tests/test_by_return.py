import numpy as np
import numpy.typing as npt
import pytest
import torch

from my_plugin import ByReturn
from rl_core import ConfigError
from rl_core.storage import Slots
from rl_storages import ReplayBuffer
from rl_testing.replay import ReplayStorageSuite


class TestByReturn(ReplayStorageSuite):
    """Whatever is drawn is a transition that happened."""

    def make_storage(self, *, size: int, n_step: int) -> ReplayBuffer:
        return ReplayBuffer(size, n_step=n_step, sampler=ByReturn(temperature=1e6))


class Rows:
    """Four rows of one environment: an episode of return 2, one of return 0, then a running one."""

    num_slots, num_envs, learned = 5, 1, 1
    reward = np.array([1.0, 1.0, 0.0, 5.0, 0.0], np.float32)

    def cursor(self) -> int:
        return 1

    def changes_since(self, cursor: object) -> tuple[Slots, Slots]:
        return np.arange(4, 5), np.arange(4)

    def drawable(self) -> Slots:
        return np.arange(4)

    def ends_episode(self, slots: Slots) -> npt.NDArray[np.bool_]:
        ends: npt.NDArray[np.bool_] = np.isin(slots, (1, 2))
        return ends


def test_good_episodes_are_drawn_more_often() -> None:
    sampler = ByReturn(temperature=2.0 / np.log(3.0))
    sampler.attach(Rows(), torch.Generator().manual_seed(0))
    (block,) = sampler.draw(10, 4000)
    shares = torch.bincount(block.flatten(), minlength=5) / block.numel()
    expected = torch.tensor([3.0, 3.0, 1.0, 1.0, 0.0]) / 8.0
    torch.testing.assert_close(shares, expected, rtol=0.0, atol=0.01)


def test_a_temperature_of_0_is_refused() -> None:
    with pytest.raises(ConfigError, match="above 0"):
        ByReturn(0.0)
