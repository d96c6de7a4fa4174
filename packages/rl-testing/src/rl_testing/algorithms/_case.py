"""What the tests of an `Algorithm` start from, look at, and do to a batch."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, TypeVar, cast

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from rl_core.algorithm import AnyAlgorithm
from rl_core.batch import ReplayBatch, RolloutBatch
from rl_core.types import StateValue, map_observation
from rl_testing.rollouts import (
    make_batch,
    make_replay_batch,
    make_rollout,
    random_observation,
    random_state,
)
from rl_testing.stateful import StatefulSuite

TreeT = TypeVar("TreeT")

NUM_ENVS = 4


class AlgorithmCase(StatefulSuite):
    """Makes the algorithms and batches that the tests work with."""

    keeps_its_state: ClassVar[bool] = True
    is_smooth: ClassVar[bool] = True
    has_compile_test: ClassVar[bool] = True
    unweighted_groups: ClassVar[frozenset[str]] = frozenset()
    looks_past_ends: ClassVar[bool] = False

    def make_algorithm(self, seed: int) -> AnyAlgorithm:
        """Return a new algorithm with a new actor, whose weights depend on the seed alone."""
        raise NotImplementedError

    def make_batch(self, algorithm: AnyAlgorithm, seed: int) -> object:
        """Return a made-up batch to learn from."""
        if algorithm.batch_type is ReplayBatch:
            return make_replay_batch(algorithm, seed)
        return make_batch(algorithm, make_rollout(algorithm, seed))

    def _algorithm(self, seed: int = 1) -> AnyAlgorithm:
        algorithm = self.make_algorithm(seed)
        algorithm.generator.manual_seed(seed)
        return algorithm

    def _exchanging(self) -> AnyAlgorithm:
        algorithm = self._algorithm()
        if not algorithm.exchanges_gradients:
            pytest.skip("exchanges no gradients")
        return algorithm

    def _step(self, algorithm: AnyAlgorithm, seed: int) -> Mapping[str, Tensor]:
        return algorithm.gradient_step(self.make_batch(algorithm, seed))


def act(algorithm: AnyAlgorithm, noise_seed: int | None = 3) -> Any:
    """Choose an action in each of `NUM_ENVS` environments.

    Args:
        algorithm: what acts.
        noise_seed: of what it explores by; None explores nothing.
    """
    space = algorithm.actor.observation_space
    observation = random_observation(space, (NUM_ENVS,), np.random.default_rng(3))
    generator = torch.Generator(algorithm.device).manual_seed(noise_seed or 0)
    noise = None if noise_seed is None else algorithm.draw_noise((NUM_ENVS,), generator)
    start = torch.zeros(NUM_ENVS, dtype=torch.bool, device=algorithm.device)
    return algorithm.acting_step(
        map_observation(lambda part: part.to(algorithm.device), observation),
        random_state(algorithm.actor, NUM_ENVS, generator),
        noise,
        deterministic=noise_seed is None,
        episode_start=start,
    )


def period(algorithm: AnyAlgorithm) -> int:
    """Count the steps until everything has moved at least once."""
    periods = [group.every for group in algorithm.parameter_groups()]
    return max([1, *periods, *(target.every for target in algorithm.target_networks())])


def tensors_of(algorithm: AnyAlgorithm) -> dict[str, Tensor]:
    """Copy all parameters and buffers of the algorithm's modules."""
    return dict(algorithm.get_weights().tensors)


def learned(algorithm: AnyAlgorithm) -> StateValue:
    """Return what learning changes: weights, without hyper-parameters, and optimizer state."""
    weights = {n: t for n, t in tensors_of(algorithm).items() if not n.startswith("hyper.")}
    return {"weights": weights, "optimizers": algorithm.gradients.state_dict()["optimizers"]}


def poisoned(batch: TreeT) -> TreeT:
    """Make every floating-point number of a batch NaN, but for the mask, which counts samples."""

    def poison(tensor: Tensor) -> Tensor:
        return torch.full_like(tensor, torch.nan) if tensor.is_floating_point() else tensor

    result: TreeT = tree_map_only(Tensor, poison, batch)
    if isinstance(batch, RolloutBatch):
        result = cast("TreeT", replace(cast("RolloutBatch", result), mask=batch.mask))
    return result


def gradients_of(
    loss: Tensor, parameters: Mapping[str, Tensor], *, create_graph: bool = False
) -> dict[str, Tensor]:
    """Return the gradient of each parameter; zeros where it is not used."""
    gradients = torch.autograd.grad(
        loss,
        list(parameters.values()),
        create_graph=create_graph,
        retain_graph=True,
        allow_unused=True,
        materialize_grads=True,
    )
    return dict(zip(parameters, gradients, strict=True))
