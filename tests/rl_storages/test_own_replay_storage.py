"""A replay storage of one's own, built on `ReplayStorage`, passes the conformance kit."""

import inspect
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from rl_core.batch import ReplayBatch
from rl_core.types import map_observation
from rl_storages import ReplayStorage
from rl_storages.sampling.uniform import UniformSampler
from rl_testing.replay import LIVES, ReplayStorageSuite
from rl_testing.replay.suite import draw_one
from rl_testing.storages import columns_of, insert_all, seeded

ROOT = Path(__file__).resolve().parents[2]


class NoisyReplay(ReplayStorage):
    """Replay that adds Gaussian noise to the real numbers in the observations it draws.

    Args:
        size: Maximum number of transitions, over all environments.
        n_step: Maximum number of rewards in a transition.
        scale: Standard deviation of the noise.
    """

    def __init__(self, size: int = 100_000, n_step: int = 1, scale: float = 0.1) -> None:
        super().__init__(size, UniformSampler(), n_step)
        self.scale = scale

    def gather(self, indices: Tensor) -> Iterator[ReplayBatch]:
        """Add noise to the observations of each batch."""
        for batch in super().gather(indices):
            yield replace(
                batch,
                observation=map_observation(self._noisy, batch.observation),
                next_observation=map_observation(self._noisy, batch.next_observation),
            )

    def _noisy(self, part: Tensor) -> Tensor:
        if not part.is_floating_point():  # categories and bytes stay as they are
            return part
        noise = torch.randn(part.shape, generator=self.generator)  # on the CPU
        return part + self.scale * noise.to(part.device)


class TestNoisyReplay(ReplayStorageSuite):
    def make_storage(self, *, size: int, n_step: int) -> NoisyReplay:
        return NoisyReplay(size, n_step, scale=0.0)


def test_the_page_shows_this_storage() -> None:
    page = (ROOT / "docs" / "pages" / "storages" / "own.md").read_text("utf-8")
    assert inspect.getsource(NoisyReplay) in page
    assert inspect.getsource(TestNoisyReplay) in page


@pytest.mark.parametrize("name", ["same_step", "same_step_dict_box"])
def test_real_numbers_are_noisy_and_the_noise_is_restored(name: str) -> None:
    life = LIVES[name]
    storage, restored = NoisyReplay(1000), NoisyReplay(1000)
    for seed, each in enumerate((storage, restored)):
        each.allocate(life.spec(), seeded(seed))
    insert_all(life.transitions(100), storage)
    restored.load_state_dict(storage.state_dict())
    drawn, again = (columns_of(draw_one(each, 50)) for each in (storage, restored))
    noisy = {part for part in drawn if "observation" in part and drawn[part].is_floating_point()}
    assert noisy
    for part, column in drawn.items():
        assert torch.equal(column, again[part]), part
        noise = column.double() - column.double().round()  # observations are whole numbers
        if part in noisy:
            assert 0.05 < float(noise.std()) < 0.15, part
        elif "observation" in part:
            assert not noise.any(), part
