"""Made-up observations, rollouts and batches, to test actors and algorithms with."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from rl_core.actor import Actor
from rl_core.algorithm import AnyAlgorithm
from rl_core.batch import PREPARED_COLUMNS, Rollout, RolloutBatch
from rl_core.spaces import ACTION_MASK_KEY, Space, event_shape, leaf_spaces, tensor_dtype
from rl_core.types import Array, Observation, State, map_observation
from rl_testing.stateful import copy_state

_NUM_ENVS = 4


def random_observation(
    space: Space, batch_shape: tuple[int, ...], generator: np.random.Generator
) -> Observation:
    """Draw observations of a space, as the tensors that an actor is given.

    Continuous numbers are drawn within the bounds, but no further out than 5. An action mask
    allows everything.

    Args:
        space: of one environment.
        batch_shape: leading axes.
        generator: draws the numbers.
    """
    leaves = leaf_spaces(space)
    if isinstance(leaves, Mapping):
        parts = {key: _draw(leaf, batch_shape, generator) for key, leaf in leaves.items()}
        if ACTION_MASK_KEY in parts:
            parts[ACTION_MASK_KEY] = torch.ones_like(parts[ACTION_MASK_KEY])
        return parts
    return _draw(leaves, batch_shape, generator)


def random_state(actor: Actor, num_envs: int, generator: torch.Generator) -> State:
    """Draw recurrent states, each `(num_envs, S)`; none for a feed-forward actor."""
    return {
        name: torch.randn(num_envs, size, generator=generator, device=generator.device)
        for name, size in actor.state_sizes.items()
    }


@torch.no_grad()
def make_rollout(algorithm: AnyAlgorithm, seed: int, num_steps: int = 6) -> Rollout:
    """Make up a rollout of four environments, acting as the algorithm does.

    Observations and rewards are drawn at random. One episode is terminated and one truncated
    inside a step, and one is terminated and reset in a step of its own.

    Args:
        algorithm: what acts.
        seed: of everything random.
        num_steps: rows, at least 5.
    """
    assert num_steps >= 5
    actor, device = algorithm.actor, algorithm.device
    numbers = np.random.default_rng(seed)
    generator = torch.Generator(device).manual_seed(seed)
    shape = (num_steps, _NUM_ENVS)

    def draw(*batch_shape: int) -> Any:
        drawn = random_observation(actor.observation_space, batch_shape, numbers)
        return map_observation(lambda part: part.to(device), drawn)

    terminated, truncated, start = (torch.zeros(shape, dtype=torch.bool) for _ in range(3))
    valid = torch.ones(shape, dtype=torch.bool)
    terminated[1, 0] = truncated[2, 1] = terminated[2, 2] = True
    valid[3, 2] = False
    start[0, :3] = start[2, 0] = start[3, 1] = start[4, 2] = True
    start = start.to(device)
    observation = draw(*shape)
    first_state = state = random_state(actor, _NUM_ENVS, generator)
    noise = algorithm.draw_noise(shape, generator)
    actions, extras = [], []
    for step in range(num_steps):
        row = map_observation(lambda part, step=step: part[step], observation)  # type: ignore[misc]  # bound now
        output = algorithm.acting_step(row, state, noise[step], episode_start=start[step])
        actions.append(output.action)
        extras.append(output.extras)
        state = output.state
    reward = torch.randn(shape, generator=generator, device=device)
    return Rollout(
        observation=observation,
        next_observation=draw(_NUM_ENVS),
        action=torch.stack(actions),
        reward=reward * valid.to(device),
        terminated=terminated.to(device),
        truncated=truncated.to(device),
        valid=valid.to(device),
        episode_start=start,
        state=first_state,
        final_index=torch.tensor([[2, 1]], device=device),
        final_observation=draw(1),
        extras={name: torch.stack([row[name] for row in extras]) for name in algorithm.extras},
    )


def make_batch(algorithm: AnyAlgorithm, rollout: Rollout) -> RolloutBatch:
    """Prepare a rollout and take all of it as one batch.

    Args:
        algorithm: what prepares it.
        rollout: `(T, B, ...)`.

    Returns:
        A batch `(T * B, ...)`, or `(T, B, ...)` for a recurrent actor.
    """
    state = copy_state(algorithm.state_dict())
    assert isinstance(state, dict)
    added = algorithm.add_ons.prepare(rollout, algorithm.generator)
    columns, _ = algorithm.prepare(added.rollout)
    algorithm.load_state_dict(state)  # statistics of the rollout are no part of the batch
    extras = {**rollout.extras, **added.columns}
    extras |= {name: value for name, value in columns.items() if name not in PREPARED_COLUMNS}

    def take(column: Tensor) -> Tensor:
        return column if algorithm.actor.is_recurrent else column.flatten(0, 1)

    return RolloutBatch(
        observation=map_observation(take, rollout.observation),
        action=take(rollout.action),
        log_prob=take(columns["log_prob"]),
        value=take(columns["value"]),
        advantage=take(columns["advantage"]),
        value_target=take(columns["value_target"]),
        mask=take(rollout.valid).to(torch.float32),
        episode_start=take(rollout.episode_start),
        state=rollout.state,
        extras={name: take(value) for name, value in extras.items()},
    )


def _draw(space: Space, batch_shape: tuple[int, ...], generator: np.random.Generator) -> Tensor:
    shape = (*batch_shape, *event_shape(space))
    if isinstance(space, spaces.Box) and np.dtype(space.dtype).kind == "f":
        low, high = np.maximum(space.low, -5.0), np.minimum(space.high, 5.0)
        values: Array = generator.uniform(low, high, shape)
    elif isinstance(space, spaces.Box):
        values = generator.integers(space.low, space.high, shape, endpoint=True)
    elif isinstance(space, spaces.Discrete):
        values = np.asarray(space.start + generator.integers(space.n, size=shape))
    elif isinstance(space, spaces.MultiDiscrete):
        values = space.start + generator.integers(space.nvec, size=shape)
    else:
        values = generator.integers(0, 2, shape)
    return torch.from_numpy(values).to(tensor_dtype(space))
