r"""The constrained step of TRPO, over an explicit mapping of parameters.

Source: Schulman et al. 2015, https://arxiv.org/abs/1502.05477, appendix C.

With $g$ the gradient of the loss and $H$ the Hessian of the KL divergence, both at the start:

(1) $s = H^{-1} g$, by conjugate gradients, which need products $H v$ only

(2) $\theta_k = \theta - \alpha^k \sqrt{2 \delta / s^\top H s}\; s$

(3) the first $k$ with $L(\theta_k) < L(\theta)$ and $KL(\theta, \theta_k) \le \delta$ is taken; if
    there is none, the parameters stay

(4) $H v = J^\top H' J v$ where loss and divergence see only $\theta'(\theta)$, with $J$ the
    derivative of $\theta'$ and $H'$ the Hessian in $\theta'$: at the start the divergence has no
    slope, so that the curvature of $\theta'$ does not count

$\delta$ bounds the divergence, $\alpha$ is the ratio of the line search, and $H$ is damped by a
multiple of the identity.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

Parameters: TypeAlias = Mapping[str, Tensor]
"""Parameters by name."""

Objective: TypeAlias = Callable[[Parameters], tuple[Tensor, Tensor]]
"""From parameters to the loss and the divergence from the start, both 0-dim."""


@dataclass(frozen=True, slots=True)
class ConstrainedStep:
    """What became of a step.

    Attributes:
        parameters: the new ones; those of the start where no step was accepted.
        fraction: of the full step that was taken; 0 where none was accepted.
        loss_before: 0-dim, at the start.
        loss: 0-dim, at ``parameters``.
        kl: 0-dim, divergence of ``parameters`` from the start.
        gradient_norm: 0-dim, of the loss at the start.
    """

    parameters: dict[str, Tensor]
    fraction: float
    loss_before: Tensor
    loss: Tensor
    kl: Tensor
    gradient_norm: Tensor

    @property
    def is_finite(self) -> bool:
        """Whether loss and gradient were numbers at the start."""
        return bool(self.loss_before.isfinite() & self.gradient_norm.isfinite())


def constrained_step(
    objective: Objective,
    parameters: Parameters,
    max_kl: float,
    *,
    adapt: Callable[[Parameters], Parameters] = lambda parameters: parameters,
    divergence: Callable[[Parameters], Tensor] | None = None,
    damping: float = 0.1,
    num_cg_steps: int = 10,
    num_backtracks: int = 15,
    backtrack_ratio: float = 0.8,
) -> ConstrainedStep:
    """Lower a loss as far as a bound of the divergence allows, Eq. (1) to (4).

    Nothing is changed in place. Where the direction is not a number it counts as 0, and where the
    length of the step is not finite, it is taken as 1, so that the line search decides.

    Args:
        objective: loss and divergence, twice differentiable in the parameters; the divergence is
            0 at the start, and so is its gradient.
        parameters: the start.
        max_kl: δ, above 0.
        adapt: θ' of Eq. (4), which ``objective`` and ``divergence`` take; by default that is θ.
        divergence: for the products with H, of fewer samples; None takes that of ``objective``.
        damping: multiple of the identity that is added to H, at least 0.
        num_cg_steps: iterations of the conjugate gradients.
        num_backtracks: how many k are tried.
        backtrack_ratio: α, in (0, 1).
    """
    start = {name: tensor.detach().requires_grad_() for name, tensor in parameters.items()}
    leaves = list(start.values())
    adapted = adapt(start)
    loss_before, kl = objective(adapted)
    gradient = _flat_gradient(loss_before, leaves)
    curvature = kl if divergence is None else divergence(adapted)
    product = _damped_product(curvature, list(adapted.values()), leaves, damping)

    direction, residual = conjugate_gradient(product, gradient, num_cg_steps)
    direction = torch.where(direction.isfinite(), direction, 0.0)
    length = (2.0 * max_kl / (direction @ (gradient - residual))).sqrt()
    step = torch.where(length.isfinite(), length, 1.0) * direction

    start = {name: tensor.detach() for name, tensor in start.items()}
    loss_before, norm = loss_before.detach(), torch.linalg.vector_norm(gradient)
    for k in range(num_backtracks):
        fraction = backtrack_ratio**k
        moved = {
            name: start[name] - fraction * part
            for name, part in zip(start, _split(step, leaves), strict=True)
        }
        with torch.no_grad():
            loss, kl = objective(adapt(moved))
        if bool((loss < loss_before) & (kl <= max_kl)):
            return ConstrainedStep(moved, fraction, loss_before, loss, kl, norm)
    return ConstrainedStep(start, 0.0, loss_before, loss_before, torch.zeros_like(norm), norm)


_TOLERANCE = 1e-10
"""Squared norm of the residual, as a part of the target's, at which conjugate gradients end."""


def conjugate_gradient(
    product: Callable[[Tensor], Tensor],
    target: Tensor,
    num_steps: int = 10,
) -> tuple[Tensor, Tensor]:
    """Solve H x = target for a symmetric, positive definite H that is known by its products.

    Args:
        product: from `(P,)` to H times it.
        target: shape `(P,)`.
        num_steps: at most so many products; P of them suffice but for rounding.

    Returns:
        The solution x and the residual, target - H x, each `(P,)`.

    Source:
        Hestenes and Stiefel 1952, "Methods of Conjugate Gradients for Solving Linear Systems".
    """
    solution = torch.zeros_like(target)
    residual = direction = target
    squared = residual @ residual
    enough = _TOLERANCE * squared
    for _ in range(num_steps):
        if not bool(squared > enough):  # a NaN ends it too
            break
        image = product(direction)
        rate = squared / (direction @ image)
        solution = solution + rate * direction
        residual = residual - rate * image
        before, squared = squared, residual @ residual
        direction = residual + (squared / before) * direction
    return solution, residual


def _damped_product(
    divergence: Tensor, adapted: list[Tensor], leaves: list[Tensor], damping: float
) -> Callable[[Tensor], Tensor]:
    """Return Eq. (4), damped, as a function of v `(P,)`: three passes of the same graphs."""
    slope = _flat_gradient(divergence, adapted, create_graph=True)
    flat = torch.cat([tensor.reshape(-1) for tensor in adapted])
    cotangent = torch.zeros_like(flat, requires_grad=True)
    pulled = _flat_gradient(flat, leaves, cotangent, create_graph=True)  # J^T, linear in this

    def product(vector: Tensor) -> Tensor:
        pushed = _flat_gradient(pulled, [cotangent], vector)  # J v, the transpose of J^T
        curved = _flat_gradient(slope, adapted, pushed)
        return _flat_gradient(flat, leaves, curved) + damping * vector

    return product


def _flat_gradient(
    output: Tensor,
    leaves: list[Tensor],
    vector: Tensor | None = None,
    *,
    create_graph: bool = False,
) -> Tensor:
    gradients = torch.autograd.grad(
        output, leaves, vector, retain_graph=True, create_graph=create_graph, materialize_grads=True
    )
    return torch.cat([gradient.reshape(-1) for gradient in gradients])


def _split(vector: Tensor, like: list[Tensor]) -> list[Tensor]:
    pieces = torch.split(vector, [tensor.numel() for tensor in like])
    return [piece.view_as(tensor) for piece, tensor in zip(pieces, like, strict=True)]
