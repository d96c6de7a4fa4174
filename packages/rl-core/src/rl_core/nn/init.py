"""Initialisation of layers."""

from typing import TypeVar

import torch
from torch import nn

LayerT = TypeVar("LayerT", bound=nn.Linear | nn.Conv2d)
ModuleT = TypeVar("ModuleT", bound=nn.Module)


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


def fan_in_uniform_(module: ModuleT) -> ModuleT:
    r"""Give all linear and convolutional layers in a module PyTorch's usual start, in place.

    Weights and biases are uniform in $\pm 1/\sqrt{p}$, where $p$ is the number of inputs of one
    output. Networks of action values start so: their biases spread where units of few inputs
    bend, which with zero biases is in the origin for all of them.

    Args:
        module: what holds the layers, or is one; an `EnsembleMLP` has this start anyway.

    Returns:
        The same module.

    Source:
        LeCun et al. 1998, *Efficient BackProp*, section 4.6, for the scale.
    """
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            layer.reset_parameters()
    return module


def fan_in_uniform(shape: tuple[int, ...], fan_in: int) -> nn.Parameter:
    r"""Draw a parameter uniformly in $\pm 1/\sqrt{p}$.

    Args:
        shape: of the parameter.
        fan_in: p, how many inputs one output has.
    """
    bound = fan_in**-0.5
    return nn.Parameter(torch.empty(shape).uniform_(-bound, bound))
