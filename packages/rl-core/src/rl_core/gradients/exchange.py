"""What gradient workers send each other."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Gradients:
    """Gradients on their way from one worker to another.

    Attributes:
        version: of the weights they were computed at.
        num_samples: how many samples they average over.
        tensors: one vector `(P,)` per parameter group.
        finite: whether the loss was finite.
        metrics: the loss's metrics, each 0-dim.
        samples: the loss's per-sample results, each `(N,)`.
        stop: whether the loss asked to end the phase.
    """

    version: int
    num_samples: int
    tensors: Mapping[str, Tensor]
    finite: bool
    metrics: Mapping[str, Tensor] = field(default_factory=dict)
    samples: Mapping[str, Tensor] = field(default_factory=dict)
    stop: bool = False
