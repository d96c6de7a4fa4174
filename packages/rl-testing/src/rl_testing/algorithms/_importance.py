"""Tests of what importance weights do to a loss."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from rl_core.algorithm import AnyAlgorithm
from rl_core.batch import ReplayBatch
from rl_core.gradients import Noise
from rl_testing.algorithms._case import AlgorithmCase


class ImportanceTests(AlgorithmCase):
    """Whether replayed samples count by their importance weights, in every part of the loss."""

    def test_gradients_are_proportional_to_importance_weights(self) -> None:
        """Weights that are twice as large make every gradient twice as large."""
        algorithm, batch, noise = self._replayed()
        once = self._gradients(algorithm, batch, noise)
        twice = self._gradients(algorithm, replace(batch, weight=2.0 * batch.weight), noise)
        assert all(gradient.any() for gradient in once.values())
        torch.testing.assert_close(twice, {name: 2.0 * part for name, part in once.items()})

    def test_a_sample_without_weight_teaches_nothing(self) -> None:
        """Whatever it is, the gradient is that of the other samples."""
        algorithm, batch, noise = self._replayed()
        axis = batch.mask.dim() - 1  # of samples, or of sequences
        batch = replace(batch, weight=_with_first(batch.weight, 0.0 * batch.weight, axis))
        other = self.make_batch(algorithm, 2)
        assert isinstance(other, ReplayBatch)
        changed = replace(
            batch,
            **{
                name: _with_first(getattr(batch, name), getattr(other, name), axis)
                for name in _CONTENTS
            },
        )
        expected = self._gradients(algorithm, batch, noise)
        torch.testing.assert_close(self._gradients(algorithm, changed, noise), expected)

    def _replayed(self) -> tuple[AnyAlgorithm, ReplayBatch, Noise]:
        algorithm = self._algorithm()
        if algorithm.batch_type is not ReplayBatch:
            pytest.skip("does not learn from replayed transitions")
        if len(algorithm.add_ons):
            pytest.skip("add-ons have terms of their own")
        batch = self.make_batch(algorithm, 1)
        assert isinstance(batch, ReplayBatch)
        return algorithm, batch, algorithm.draw_update_noise(batch)

    def _gradients(
        self, algorithm: AnyAlgorithm, batch: ReplayBatch, noise: Noise
    ) -> Mapping[str, Tensor]:
        """Return the gradient of each parameter group that heeds importance weights."""
        loss, parameters = algorithm.compute_loss(batch, noise).loss, algorithm.named_parameters()
        gradients = {}
        for group in algorithm.parameter_groups():
            if group.name not in self.unweighted_groups:
                learned = [parameters[n] for n in algorithm.gradients.vectors[group.name].shapes]
                parts = torch.autograd.grad(
                    loss, learned, retain_graph=True, allow_unused=True, materialize_grads=True
                )
                gradients[group.name] = torch.cat([part.flatten() for part in parts])
        return gradients


_CONTENTS = ("observation", "action", "reward", "num_steps", "terminated", "next_observation")
"""The fields of a `ReplayBatch` that say what happened."""


def _with_first(tree: Any, other: Any, axis: int) -> Any:
    """Put the first entry of another tensor, or of a dict of them, in the place of one's own."""
    if isinstance(tree, Mapping):
        return {key: _with_first(part, other[key], axis) for key, part in tree.items()}
    result = tree.clone()
    result.select(axis, 0).copy_(other.select(axis, 0))
    return result
