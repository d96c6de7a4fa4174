"""Weights on their way from one worker to another."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Weights:
    """Parameters on their way from one worker to another.

    Attributes:
        version: how many gradient steps made them.
        tensors: parameters and buffers by name.
    """

    version: int
    tensors: Mapping[str, Tensor]
