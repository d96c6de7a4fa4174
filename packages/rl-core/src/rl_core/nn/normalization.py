"""Normalization by running statistics."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class RunningNorm(nn.Module):
    """Normalize by the mean and standard deviation of everything seen so far.

    The statistics are buffers: they are saved and exported with the weights. `forward` never
    changes them; `update` does, and is called once per update.

    Args:
        shape: shape of one sample.
        clip: normalized values are clipped to ``[-clip, clip]``.
        epsilon: added to the variance.
        decay: factor on the weight of all earlier samples at each update, in (0, 1]; 1 weighs all
            samples alike, smaller values let the statistics follow changes.

    Source:
        Chan et al. 1979, "Updating formulae and a pairwise algorithm for computing sample
        variances", Eq. (2.1).
    """

    mean: Tensor
    var: Tensor
    count: Tensor
    shift: Tensor
    scale: Tensor

    def __init__(
        self,
        shape: Sequence[int],
        clip: float = 10.0,
        epsilon: float = 1e-8,
        *,
        decay: float = 1.0,
    ) -> None:
        super().__init__()
        self.decay = decay
        self.clip = clip
        self.epsilon = epsilon
        self.register_buffer("mean", torch.zeros(tuple(shape), dtype=torch.float64))
        self.register_buffer("var", torch.ones(tuple(shape), dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("shift", torch.zeros(tuple(shape)))
        self.register_buffer("scale", torch.ones(tuple(shape)))

    def forward(self, values: Tensor) -> Tensor:
        """Normalize and clip `(*, *shape)`."""
        return ((values - self.shift) * self.scale).clamp(-self.clip, self.clip)

    @torch.no_grad()
    def update(self, values: Tensor, mask: Tensor | None = None) -> None:
        """Update the statistics with new samples.

        Args:
            values: shape `(*batch, *shape)`.
            mask: shape `(*batch,)`, bool: which samples count; None counts all.
        """
        batch = values.shape[: values.dim() - self.mean.dim()].numel()
        samples = values.reshape(batch, *self.mean.shape) if mask is None else values[mask]
        if samples.shape[0] == 0:
            return
        samples = samples.double()
        batch_mean = samples.mean(0)
        batch_var = samples.var(0, unbiased=False)
        total = self.decay * self.count + samples.shape[0]
        delta = batch_mean - self.mean
        weight = samples.shape[0] / total
        self.var.copy_(
            self.var * (1 - weight) + batch_var * weight + delta.square() * weight * (1 - weight)
        )
        self.mean.add_(delta * weight)
        self.count.copy_(total)
        self.shift.copy_(self.mean)
        self.scale.copy_((self.var + self.epsilon).rsqrt())
