"""Replay batches made up for tests."""

import math

import numpy as np
import torch
from torch import Tensor

from rl_core.algorithm import AnyAlgorithm
from rl_core.batch import ReplayBatch, SequenceStart
from rl_core.types import Observation, map_observation
from rl_testing.rollouts import random_observation, random_state

_NUM_WARMING = 2
"""Rows before a sequence."""


@torch.no_grad()
def make_replay_batch(
    algorithm: AnyAlgorithm, seed: int, *, size: int = 16, n: int = 3, num_rows: int = 4
) -> ReplayBatch:
    """Make up transitions of up to n steps, of which some terminate and all count differently.

    A recurrent actor gets sequences. Of the first one nothing comes before, the second begins an
    episode while it is warmed up, and the last ends early and is padded.

    Args:
        algorithm: whose actor draws the actions.
        seed: of everything random.
        size: how many transitions, rows of sequences counted one by one.
        n: rewards in each window.
        num_rows: T, rows of each sequence.
    """
    actor, device = algorithm.actor, algorithm.device
    numbers = np.random.default_rng(seed)
    generator = torch.Generator(device).manual_seed(seed)
    num_sequences = size // num_rows
    shape = (num_rows, num_sequences) if actor.is_recurrent else (size,)

    def observation(*batch_shape: int) -> Observation:
        drawn = random_observation(actor.observation_space, batch_shape, numbers)
        return map_observation(lambda part: part.to(device), drawn)

    def actions(*batch_shape: int) -> Tensor:
        drawn = actor.random_actions(math.prod(batch_shape), generator)
        return drawn.view(*batch_shape, *drawn.shape[1:])

    num_steps = torch.randint(1, n + 1, shape, generator=generator, device=device)
    is_inside = torch.arange(n, device=device) < num_steps.unsqueeze(-1)
    mask = torch.ones(shape, device=device)
    start = None
    action = actions(*shape)
    if actor.is_recurrent:
        mask[-1, -1] = 0.0
        episode_start = torch.zeros(_NUM_WARMING + 1, num_sequences, dtype=torch.bool)
        episode_start[-1, 0] = episode_start[1, 1] = True
        around = actions(_NUM_WARMING + n - 1, num_sequences)
        start = SequenceStart(
            state=random_state(actor, num_sequences, generator),
            burn_in=observation(_NUM_WARMING, num_sequences),
            action=torch.cat([around[:_NUM_WARMING], action, around[_NUM_WARMING:]]),
            episode_start=episode_start.to(device),
        )
    return ReplayBatch(
        observation=observation(*shape),
        action=action,
        reward=torch.randn(*shape, n, generator=generator, device=device) * is_inside,
        num_steps=num_steps,
        terminated=torch.rand(shape, generator=generator, device=device) < 0.3,
        next_observation=observation(n, num_sequences) if start else observation(size),
        weight=0.5 + torch.rand(shape, generator=generator, device=device),
        mask=mask,
        index=torch.zeros(shape[-1], 2, dtype=torch.int64, device=device),
        start=start,
    )
