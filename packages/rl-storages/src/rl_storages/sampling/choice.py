"""What is made to draw from a ring, and what it takes."""

from rl_core.storage import IndexSampler
from rl_storages.config import HindsightConfig, PrioritizedConfig, RecentConfig
from rl_storages.replay.episodes import Episodes
from rl_storages.sampling.index_layout import LayoutByTime
from rl_storages.sampling.prioritized import PrioritizedSampler
from rl_storages.sampling.recent import RecentSampler
from rl_storages.sampling.uniform import UniformSampler


def make_sampler(
    prioritized: PrioritizedConfig | None, recent: RecentConfig | None
) -> IndexSampler:
    """Return the sampler that options ask for.

    Args:
        prioritized: draw by priority.
        recent: draw from the newest only.
    """
    if prioritized is not None:
        return PrioritizedSampler(prioritized, recent)
    return UniformSampler() if recent is None else RecentSampler(recent)


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
        needed += LayoutByTime.bytes_for(num_slots)
    if hindsight is not None:
        needed += Episodes.bytes_for(num_slots)
    return needed
