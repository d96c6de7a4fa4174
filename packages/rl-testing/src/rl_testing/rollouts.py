"""Made-up observations, rollouts and batches, to test actors and algorithms with."""

import math
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from rl_core.actor import Actor
from rl_core.algorithm import AnyAlgorithm
from rl_core.batch import PREPARED_COLUMNS, ReplayBatch, Rollout, RolloutBatch, SequenceStart
from rl_core.spaces import ACTION_MASK_KEY, Space, event_shape, named_leaves, tensor_dtype
from rl_core.types import Array, Observation, State, map_observation
from rl_testing.stateful import copy_state

_NUM_ENVS = 4

_BURN_IN = 2
"""Rows before a sequence."""


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
    leaves = named_leaves(space)
    parts = {key: _draw(leaf, batch_shape, generator) for key, leaf in leaves.items()}
    if ACTION_MASK_KEY in parts:
        parts[ACTION_MASK_KEY] = torch.ones_like(parts[ACTION_MASK_KEY])
    return parts.get("", parts)


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
    algorithm.load_state_dict(state)  # statistics of the rollout are not part of the batch
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


@torch.no_grad()
def make_replay_batch(
    algorithm: AnyAlgorithm, seed: int, *, size: int = 16, n: int = 3, num_rows: int = 4
) -> ReplayBatch:
    """Make up transitions of up to n steps, of which some terminate and all count differently.

    A recurrent actor gets sequences. Of the first one nothing comes before, the second begins an
    episode within its burn-in, and the last ends early and is padded.

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
        episode_start = torch.zeros(_BURN_IN + 1, num_sequences, dtype=torch.bool)
        episode_start[-1, 0] = episode_start[1, 1] = True
        around = actions(_BURN_IN + n - 1, num_sequences)
        start = SequenceStart(
            state=random_state(actor, num_sequences, generator),
            burn_in=observation(_BURN_IN, num_sequences),
            action=torch.cat([around[:_BURN_IN], action, around[_BURN_IN:]]),
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
