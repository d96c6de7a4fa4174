"""A replay storage of one's own, built on `ReplayStorage`, passes the conformance kit."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from rl_core.batch import ReplayBatch
from rl_core.types import Observation
from rl_storages import ReplayStorage
from rl_storages.sampling.uniform import UniformSampler
from rl_testing.replay import LIVES, ReplayStorageSuite
from rl_testing.replay.suite import draw_one
from rl_testing.storages import insert_all, seeded
from rl_testing.transitions import TransitionScript


class NoisyReplay(ReplayStorage):
    """Replay that adds Gaussian noise to the observations it draws.

    Args:
        size: transitions over all environments.
        n_step: rewards in a transition, at most.
        scale: standard deviation of the noise.
    """

    def __init__(self, size: int, n_step: int = 1, scale: float = 0.1) -> None:
        super().__init__(size, UniformSampler(), n_step)
        self.scale = scale

    def gather(self, indices: Tensor) -> Iterator[ReplayBatch]:
        """Add noise to the observations of each batch."""
        for batch in super().gather(indices):
            yield batch if self.scale == 0.0 else self._noisy(batch)

    def _noisy(self, batch: ReplayBatch) -> ReplayBatch:
        def noisy(observation: Observation) -> Observation:
            assert isinstance(observation, Tensor)
            noise = torch.randn(observation.shape, generator=self.generator)
            return observation + self.scale * noise

        return replace(
            batch,
            observation=noisy(batch.observation),
            next_observation=noisy(batch.next_observation),
        )


class TestNoisyReplay(ReplayStorageSuite):
    lives: ClassVar[Mapping[str, TransitionScript]] = {
        name: LIVES[name] for name in ("same_step_dict_box", "next_step_interrupted")
    }

    def make_storage(self, *, size: int, n_step: int) -> NoisyReplay:
        return NoisyReplay(size, n_step, scale=0.0)


def test_observations_are_noisy_and_the_noise_is_restored() -> None:
    life = LIVES["same_step"]
    storage, restored = NoisyReplay(300), NoisyReplay(300)
    for seed, each in enumerate((storage, restored)):
        each.allocate(life.spec(), seeded(seed))
    insert_all(life.transitions(100), storage)
    restored.load_state_dict(storage.state_dict())
    batch, again = draw_one(storage, 50), draw_one(restored, 50)
    assert isinstance(batch.observation, Tensor)
    assert isinstance(again.observation, Tensor)
    assert torch.equal(batch.observation, again.observation)
    noise = batch.observation - batch.observation.round()  # observations are whole numbers
    assert 0.05 < float(noise.std()) < 0.15
