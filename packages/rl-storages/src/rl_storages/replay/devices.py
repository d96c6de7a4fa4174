"""Batches on their way to the device where they are learned from."""

import torch
from torch import Tensor

from rl_core.batch import ReplayBatch, SequenceStart
from rl_core.types import map_observation


def moved(batch: ReplayBatch, device: torch.device) -> ReplayBatch:
    """Bring a batch to a device, as it is where everything is there already."""
    if device.type == "cpu" == batch.action.device.type:
        return batch

    def move(part: Tensor) -> Tensor:
        return part.to(device)

    start = batch.start
    if start is not None:
        start = SequenceStart(
            state={name: move(part) for name, part in start.state.items()},
            burn_in=map_observation(move, start.burn_in),
            action=move(start.action),
            episode_start=move(start.episode_start),
        )
    return ReplayBatch(
        observation=map_observation(move, batch.observation),
        action=move(batch.action),
        reward=move(batch.reward),
        num_steps=move(batch.num_steps),
        terminated=move(batch.terminated),
        next_observation=map_observation(move, batch.next_observation),
        weight=move(batch.weight),
        mask=move(batch.mask),
        key=move(batch.key),
        start=start,
        extras={name: move(part) for name, part in batch.extras.items()},
    )
