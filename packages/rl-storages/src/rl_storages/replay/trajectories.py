"""What a ring holds, as pieces of episodes."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from rl_core.batch import ReplayBatch, Trajectory
from rl_core.types import Observation
from rl_storages.gather.windows import WindowGather
from rl_storages.replay.flags import VALID
from rl_storages.replay.ring import ReplayRing


def ring_trajectories(ring: ReplayRing) -> Iterator[Trajectory]:
    """Yield the runs of consecutive transitions, which end where an episode ends or is cut.

    Args:
        ring: what is read; the row after a run holds what followed its last transition.
    """
    gather = WindowGather(ring, 1)
    for env, positions in enumerate(ring.step_positions()):
        slots = positions % ring.num_rows * ring.num_envs + env
        is_transition = (ring.flags[slots] & VALID) > 0
        positions, slots = positions[is_transition], slots[is_transition]
        breaks = np.flatnonzero(np.diff(positions) > 1) + 1
        for run in np.split(slots, breaks):
            if len(run):
                indices = torch.from_numpy(run)[None]
                yield _trajectory(next(gather(indices, torch.ones(indices.shape))))


def _trajectory(batch: ReplayBatch) -> Trajectory:
    after = batch.next_observation
    observation: Observation
    if isinstance(batch.observation, Tensor):
        assert isinstance(after, Tensor)
        observation = _joined(batch.observation, after)
    else:
        assert not isinstance(after, Tensor)
        observation = {key: _joined(part, after[key]) for key, part in batch.observation.items()}
    return Trajectory(
        observation=observation,
        action=batch.action.cpu(),
        reward=batch.reward[:, 0],
        terminated=bool(batch.terminated[-1]),
    )


def _joined(observation: Tensor, after: Tensor) -> Tensor:
    return torch.cat((observation, after[-1:])).cpu()
