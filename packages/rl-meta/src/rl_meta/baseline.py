r"""The linear baseline that is fitted anew to each task and each batch.

Source: Duan et al. 2016, https://arxiv.org/abs/1604.06778, section 4.

(1) $\phi(o, t) = [o,\ o^2,\ t/100,\ (t/100)^2,\ (t/100)^3,\ 1]$, with $o$ kept in [-10, 10]

(2) $w = (\Phi^\top \Phi + \lambda I)^{-1} \Phi^\top G$ for the discounted returns $G$

(3) $V(o, t) = \phi(o, t)^\top w$
"""

import torch
from torch import Tensor


def baseline_features(observation: Tensor, step: Tensor) -> Tensor:
    """Eq. (1).

    Args:
        observation: shape `(..., D)`.
        step: shape `(...)`, steps since the episode began.

    Returns:
        Shape `(..., 2 D + 4)`, float64.
    """
    o = observation.double().clamp(-10.0, 10.0)
    t = step.double().unsqueeze(-1) / 100.0
    return torch.cat([o, o.square(), t, t.square(), t**3, torch.ones_like(t)], dim=-1)


def fit_baseline(features: Tensor, returns: Tensor, mask: Tensor, ridge: float) -> Tensor:
    """Eq. (2), for each task.

    Args:
        features: shape `(M, N, F)`, float64.
        returns: shape `(M, N)`.
        mask: shape `(M, N)`, bool, which samples count.
        ridge: λ, above 0.

    Returns:
        Weights, shape `(M, F)`.
    """
    kept = features * mask.unsqueeze(-1)
    penalty = ridge * torch.eye(features.shape[-1], dtype=features.dtype, device=features.device)
    matrix = kept.mT @ features + penalty
    target = kept.mT @ returns.to(features.dtype).unsqueeze(-1)
    # One at a time: torch 2.13 may hang in a batch of 150 features and more with several threads.
    solutions = [torch.linalg.solve(*task) for task in zip(matrix, target, strict=True)]
    return torch.stack(solutions).squeeze(-1)


def episode_steps(episode_start: Tensor) -> Tensor:
    """Count the steps since each row's episode began, or since the first row.

    Args:
        episode_start: shape `(T, B)`, bool.

    Returns:
        Shape `(T, B)`, int64.
    """
    row = torch.arange(len(episode_start), device=episode_start.device).unsqueeze(1)
    return row - torch.where(episode_start, row, 0).cummax(dim=0).values
