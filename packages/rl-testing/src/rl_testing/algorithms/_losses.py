"""Tests of the loss as a function of its parameters."""

from collections.abc import Mapping

import torch
from torch import Tensor

from rl_core.algorithm import AnyAlgorithm
from rl_core.gradients import Noise
from rl_testing.algorithms._case import AlgorithmCase
from rl_testing.algorithms._probes import TreeT, map_tree


class LossTests(AlgorithmCase):
    """What the loss is at explicit parameters, and its derivatives there."""

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
        outer = _loss_after_inner_step(algorithm, batch, noise, start)
        gradients = torch.autograd.grad(
            outer, list(start.values()), allow_unused=True, materialize_grads=True
        )
        assert all(bool(gradient.isfinite().all()) for gradient in gradients)
        assert any(bool(gradient.any()) for gradient in gradients)
        if not self.is_smooth:
            return
        generator = torch.Generator().manual_seed(0)
        direction = {
            name: torch.randn(parameter.shape, generator=generator, dtype=number)
            for name, parameter in start.items()
        }
        slope = sum(
            (gradient * direction[name]).sum()
            for name, gradient in zip(start, gradients, strict=True)
        )
        width = 1e-6
        ahead, behind = (
            _loss_after_inner_step(
                algorithm,
                batch,
                noise,
                {
                    name: (parameter + sign * width * direction[name]).detach().requires_grad_()
                    for name, parameter in start.items()
                },
            )
            for sign in (1.0, -1.0)
        )
        torch.testing.assert_close((ahead - behind) / (2.0 * width), slope, rtol=1e-4, atol=1e-6)


def _loss_after_inner_step(
    algorithm: AnyAlgorithm, batch: object, noise: Noise, parameters: Mapping[str, Tensor]
) -> Tensor:
    inner = algorithm.compute_loss(batch, noise, parameters).loss
    gradients = torch.autograd.grad(
        inner,
        list(parameters.values()),
        create_graph=True,
        allow_unused=True,
        materialize_grads=True,
    )
    adapted = {
        name: parameter - 0.1 * gradient
        for (name, parameter), gradient in zip(parameters.items(), gradients, strict=True)
    }
    return algorithm.compute_loss(batch, noise, adapted).loss


def _cast(tree: TreeT, dtype: torch.dtype) -> TreeT:
    def convert(tensor: Tensor) -> Tensor:
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    return map_tree(convert, tree)
