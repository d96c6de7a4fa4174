"""Initialisation of layers."""

from typing import TypeVar

import torch
from torch import nn

LayerT = TypeVar("LayerT", bound=nn.Linear | nn.Conv2d)


def orthogonal_(layer: LayerT, gain: float, generator: torch.Generator | None = None) -> LayerT:
    """Give a layer an orthogonal weight matrix and a zero bias, in place.

    Usual gains are √2 for hidden layers, 0.01 for the output of a policy, so that it starts nearly
    uniform or centred, and 1 for the output of a value function.

    Args:
        layer: its weight is seen as a matrix of output features by everything else.
        gain: factor on the orthogonal matrix.
        generator: draws the matrix, on the weight's device; None takes torch's default one.

    Returns:
        The same layer.

    Source:
        Saxe et al. 2014, https://arxiv.org/abs/1312.6120; the small gain of a policy's output:
        Andrychowicz et al. 2021, https://arxiv.org/abs/2006.05990, section 3.2.
    """
    nn.init.orthogonal_(layer.weight, gain, generator=generator)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer
