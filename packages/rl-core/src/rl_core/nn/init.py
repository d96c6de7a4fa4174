"""Initialisation of layers."""

from typing import Literal, TypeAlias, TypeVar

import torch
from torch import nn

Start: TypeAlias = Literal["uniform", "orthogonal"]
"""How layers start: as `fan_in_uniform_` or as `orthogonal_` says."""

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


def ensemble_weights(shape: tuple[int, int, int], start: Start, gain: float) -> nn.Parameter:
    """Draw the weights of several layers of one shape.

    Args:
        shape: how many layers, outputs and inputs, `(E, q, p)`.
        start: of each layer by itself.
        gain: factor on orthogonal matrices.
    """
    if start == "uniform":
        return fan_in_uniform(shape, shape[-1])
    weights = torch.empty(shape)
    for weight in weights:
        nn.init.orthogonal_(weight, gain)
    return nn.Parameter(weights)


def ensemble_biases(shape: tuple[int, int, int], start: Start, fan_in: int) -> nn.Parameter:
    """Draw the biases of several layers of one shape, which are zero beside orthogonal weights.

    Args:
        shape: how many layers, one, and outputs, `(E, 1, q)`.
        start: of each layer by itself.
        fan_in: how many inputs one output has.
    """
    return fan_in_uniform(shape, fan_in) if start == "uniform" else nn.Parameter(torch.zeros(shape))


def fan_in_uniform(shape: tuple[int, ...], fan_in: int) -> nn.Parameter:
    r"""Draw a parameter uniformly in $\pm 1/\sqrt{p}$.

    Args:
        shape: of the parameter.
        fan_in: p, how many inputs one output has.
    """
    bound = fan_in**-0.5
    return nn.Parameter(torch.empty(shape).uniform_(-bound, bound))
