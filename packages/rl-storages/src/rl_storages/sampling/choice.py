"""What is made to draw from a ring, and what it takes."""

import torch

from rl_storages.config import HindsightConfig, PrioritizedConfig, RecentConfig
from rl_storages.replay.episodes import Episodes
from rl_storages.replay.ring import ReplayRing
from rl_storages.sampling.index_layout import TimeOrder
from rl_storages.sampling.prioritized import PrioritizedSampler
from rl_storages.sampling.recent import NewestSampler
from rl_storages.sampling.uniform import IndexSampler, UniformSampler


def make_sampler(
    ring: ReplayRing,
    generator: torch.Generator,
    prioritized: PrioritizedConfig | None,
    recent: RecentConfig | None,
) -> IndexSampler:
    """Return what chooses slots of a ring.

    Args:
        ring: whose slots are drawn.
        generator: lives on the CPU.
        prioritized: draw by priority.
        recent: draw from the newest only.
    """
    if prioritized is not None:
        return PrioritizedSampler(ring, generator, prioritized, recent)
    if recent is not None:
        return NewestSampler(ring, generator, recent)
    return UniformSampler(ring, generator)


def bytes_to_draw(
    num_slots: int,
    prioritized: PrioritizedConfig | None,
    recent: RecentConfig | None,
    hindsight: HindsightConfig | None,
) -> int:
    """Return what is kept in memory beside a ring's columns to draw from them.

    Args:
        num_slots: of the ring.
        prioritized: draw by priority.
        recent: draw from the newest only.
        hindsight: relabel goals.
    """
    needed = 0
    if prioritized is not None:
        needed += PrioritizedSampler.bytes_for(num_slots)
    if recent is not None:
        needed += TimeOrder.bytes_for(num_slots)
    if hindsight is not None:
        needed += Episodes.bytes_for(num_slots)
    return needed
