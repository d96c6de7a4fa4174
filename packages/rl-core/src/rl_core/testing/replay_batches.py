"""Replay batches made up for tests."""

import numpy as np
import torch

from rl_core.algorithm import AnyAlgorithm
from rl_core.batch import ReplayBatch
from rl_core.testing.rollouts import random_observation
from rl_core.types import Observation, map_observation


@torch.no_grad()
def make_replay_batch(
    algorithm: AnyAlgorithm, seed: int, *, size: int = 16, n: int = 3
) -> ReplayBatch:
    """Make up transitions of up to n steps, of which some terminate and all count differently.

    Args:
        algorithm: whose actor draws the actions.
        seed: of everything random.
        size: how many transitions, N.
        n: rewards in each window.
    """
    actor, device = algorithm.actor, algorithm.device
    numbers = np.random.default_rng(seed)
    generator = torch.Generator(device).manual_seed(seed)

    def observation() -> Observation:
        drawn = random_observation(actor.observation_space, (size,), numbers)
        return map_observation(lambda part: part.to(device), drawn)

    num_steps = torch.randint(1, n + 1, (size,), generator=generator, device=device)
    is_inside = torch.arange(n, device=device) < num_steps.unsqueeze(-1)
    return ReplayBatch(
        observation=observation(),
        action=actor.random_actions(size, generator),
        reward=torch.randn(size, n, generator=generator, device=device) * is_inside,
        num_steps=num_steps,
        terminated=torch.rand(size, generator=generator, device=device) < 0.3,
        next_observation=observation(),
        weight=0.5 + torch.rand(size, generator=generator, device=device),
        mask=torch.ones(size, device=device),
        key=torch.zeros(size, 2, dtype=torch.int64, device=device),
    )
