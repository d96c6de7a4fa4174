"""What a ring holds, as pieces of episodes."""

from collections.abc import Iterator

import numpy as np
import torch

from rl_core.batch import Trajectory
from rl_core.storage import join_observation
from rl_storages.replay.flags import TERMINATED, VALID
from rl_storages.replay.ring import ReplayRing


def ring_trajectories(ring: ReplayRing) -> Iterator[Trajectory]:
    """Yield the runs of consecutive transitions, which end where an episode ends or is cut.

    Args:
        ring: what is read; the row after a run holds what followed its last transition.
    """
    actions = ring.columns.by_slot["action"]
    for env, positions in enumerate(ring.step_positions()):
        slots = positions % ring.num_rows * ring.num_envs + env
        is_transition = (ring.flags[slots] & VALID) > 0
        positions, slots = positions[is_transition], slots[is_transition]
        breaks = np.flatnonzero(np.diff(positions) > 1) + 1
        for run in np.split(slots, breaks):
            if len(run) == 0:
                continue
            following = (run[-1:] + ring.num_envs) % ring.num_slots
            observed = ring.observations.read(torch.from_numpy(np.append(run, following)))
            yield Trajectory(
                observation=join_observation({n: part.cpu() for n, part in observed.items()}),
                action=actions[torch.from_numpy(run).to(actions.device)].cpu(),
                reward=torch.from_numpy(ring.reward.take(run)),
                terminated=bool(ring.flags[run[-1]] & TERMINATED),
            )
