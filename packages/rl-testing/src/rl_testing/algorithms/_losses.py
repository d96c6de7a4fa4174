"""Tests of the loss: as a function of its parameters, and of importance weights."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from rl_core.algorithm import AnyAlgorithm
from rl_core.batch import ReplayBatch
from rl_core.gradients import Noise
from rl_testing.algorithms._case import AlgorithmCase, TreeT, gradients_of

_CONTENTS = ("observation", "action", "reward", "num_steps", "terminated", "next_observation")
"""The fields of a `ReplayBatch` that say what happened."""


class LossTests(AlgorithmCase):
    """What the loss is at explicit parameters, its derivatives there, and what samples count."""

    def test_the_loss_at_explicit_parameters_is_the_same_function(self) -> None:
        """At the algorithm's own parameters it has the same value, at others another one."""
        algorithm = self._algorithm()
        batch = self.make_batch(algorithm, 1)
        noise = algorithm.draw_update_noise(batch)
        own = algorithm.named_parameters()
        expected = algorithm.compute_loss(batch, noise).loss
        torch.testing.assert_close(algorithm.compute_loss(batch, noise, own).loss, expected)
        moved = {name: parameter + 0.1 for name, parameter in own.items()}
        assert algorithm.compute_loss(batch, noise, moved).loss != expected
        torch.testing.assert_close(algorithm.compute_loss(batch, noise).loss, expected)

    def test_the_loss_is_differentiable_twice(self) -> None:
        """The gradient passes through an inner gradient step, as in MAML."""
        algorithm = self._algorithm()
        batch = self.make_batch(algorithm, 1)
        noise = algorithm.draw_update_noise(batch)
        number = torch.float64 if self.is_smooth else torch.float32
        batch, noise = _cast(batch, number), _cast(noise, number)
        start = {
            name: parameter.detach().to(number).requires_grad_()
            for name, parameter in algorithm.named_parameters().items()
        }

        def after_inner_step(parameters: Mapping[str, Tensor]) -> Tensor:
            inner = algorithm.compute_loss(batch, noise, parameters).loss
            gradients = gradients_of(inner, parameters, create_graph=True)
            adapted = {name: part - 0.1 * gradients[name] for name, part in parameters.items()}
            return algorithm.compute_loss(batch, noise, adapted).loss

        gradients = gradients_of(after_inner_step(start), start)
        assert all(bool(gradient.isfinite().all()) for gradient in gradients.values())
        assert any(bool(gradient.any()) for gradient in gradients.values())
        if not self.is_smooth:
            return
        generator = torch.Generator().manual_seed(0)
        direction = {
            name: torch.randn(parameter.shape, generator=generator, dtype=number)
            for name, parameter in start.items()
        }
        slope = sum((gradients[name] * direction[name]).sum() for name in start)
        ahead, behind = (
            after_inner_step(
                {n: (p + width * direction[n]).detach().requires_grad_() for n, p in start.items()}
            )
            for width in (1e-6, -1e-6)
        )
        torch.testing.assert_close((ahead - behind) / 2e-6, slope, rtol=1e-4, atol=1e-6)

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
                names = algorithm.gradients.vectors[group.name].shapes
                parts = gradients_of(loss, {name: parameters[name] for name in names})
                gradients[group.name] = torch.cat([part.flatten() for part in parts.values()])
        return gradients


def _cast(tree: TreeT, dtype: torch.dtype) -> TreeT:
    def convert(tensor: Tensor) -> Tensor:
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    result: TreeT = tree_map_only(Tensor, convert, tree)
    return result


def _with_first(tree: Any, other: Any, axis: int) -> Any:
    """Put the first entry of another tensor, or of a dict of them, in the place of one's own."""
    if isinstance(tree, Mapping):
        return {key: _with_first(part, other[key], axis) for key, part in tree.items()}
    result = tree.clone()
    result.select(axis, 0).copy_(other.select(axis, 0))
    return result
