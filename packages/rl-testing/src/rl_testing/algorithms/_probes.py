"""What tests look at in an algorithm, and what they do to a batch."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar, cast

import gymnasium
import numpy as np
import torch
from torch import Tensor

from rl_core.algorithm import AnyAlgorithm
from rl_core.batch import RolloutBatch
from rl_core.types import StateValue, map_observation
from rl_testing.rollouts import random_observation, random_state

TreeT = TypeVar("TreeT")

NUM_ENVS = 4


def act(algorithm: AnyAlgorithm, noise_seed: int | None = 3) -> Any:
    """Choose an action in each of `NUM_ENVS` environments.

    Args:
        algorithm: what acts.
        noise_seed: of what it explores by; None explores nothing.
    """
    actor = algorithm.actor
    space: gymnasium.Space[object] = actor.observation_space
    observation = map_observation(
        lambda part: part.to(algorithm.device),
        random_observation(space, (NUM_ENVS,), np.random.default_rng(3)),
    )
    generator = torch.Generator(algorithm.device).manual_seed(noise_seed or 0)
    noise = None if noise_seed is None else algorithm.draw_noise((NUM_ENVS,), generator)
    start = torch.zeros(NUM_ENVS, dtype=torch.bool, device=algorithm.device)
    with torch.no_grad():
        return algorithm.acting_step(
            observation,
            random_state(algorithm.actor, NUM_ENVS, generator),
            noise,
            deterministic=noise_seed is None,
            episode_start=start,
        )


def period(algorithm: AnyAlgorithm) -> int:
    """Count the steps until everything has moved at least once."""
    periods = [group.every for group in algorithm.parameter_groups()]
    return max([*periods, *(target.every for target in algorithm.target_networks())])


def tensors_of(algorithm: AnyAlgorithm) -> dict[str, Tensor]:
    """Copy all parameters and buffers of the algorithm's modules."""
    return dict(algorithm.get_weights().tensors)


def learned(algorithm: AnyAlgorithm) -> StateValue:
    """Return what learning changes: weights, without hyper-parameters, and optimiser state."""
    weights = {n: t for n, t in tensors_of(algorithm).items() if not n.startswith("hyper.")}
    return {"weights": weights, "optimizers": algorithm.gradients.state_dict()["optimizers"]}


def poisoned(batch: TreeT) -> TreeT:
    """Make every floating-point number of a batch NaN, but for the mask, which counts samples."""

    def poison(tensor: Tensor) -> Tensor:
        return torch.full_like(tensor, torch.nan) if tensor.is_floating_point() else tensor

    result = map_tree(poison, batch)
    if isinstance(batch, RolloutBatch):
        result = cast("TreeT", replace(cast("RolloutBatch", result), mask=batch.mask))
    return result


def map_tree(function: Any, tree: TreeT) -> TreeT:
    """Apply a function to every tensor of a dataclass or mapping of tensors."""
    result: Any = tree
    if isinstance(tree, Tensor):
        result = function(tree)
    elif isinstance(tree, Mapping):
        result = {key: map_tree(function, value) for key, value in tree.items()}
    elif is_dataclass(tree) and not isinstance(tree, type):
        values = {field.name: getattr(tree, field.name) for field in fields(tree)}
        result = replace(tree, **map_tree(function, values))
    return cast("TreeT", result)
