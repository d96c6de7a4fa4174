"""Initialization of layers."""

from typing import Literal, TypeAlias, TypeVar

import torch
from torch import nn

Initialization: TypeAlias = Literal["uniform", "orthogonal"]
"""Initial weights of layers; see `initialize_` and `orthogonal_`."""

LayerT = TypeVar("LayerT", bound=nn.Linear | nn.Conv2d)
ModuleT = TypeVar("ModuleT", bound=nn.Module)


def orthogonal_(
    layer: LayerT, gain: float | None, generator: torch.Generator | None = None
) -> LayerT:
    """Give a layer an orthogonal weight matrix and a zero bias, in place.

    Usual gains are √2 for hidden layers, 0.01 for the output of a policy, so that it starts nearly
    uniform or centered, and 1 for the output of a value function.

    Args:
        layer: its weight is treated as a matrix of output features by all other axes.
        gain: factor on the orthogonal matrix; None leaves the layer as it is.
        generator: draws the matrix, on the weight's device; None uses torch's default generator.

    Returns:
        The same layer.

    Source:
        Saxe et al. 2014, https://arxiv.org/abs/1312.6120; the small gain of a policy's output:
        Andrychowicz et al. 2021, https://arxiv.org/abs/2006.05990, section 3.2.
    """
    if gain is None:
        return layer
    nn.init.orthogonal_(layer.weight, gain, generator=generator)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


def initialize_(module: ModuleT, init: Initialization) -> ModuleT:
    r"""Give the linear and convolutional layers of a new module their initial weights, in place.

    Args:
        module: one whose layers `orthogonal_` has initialized, as those of this package are.
        init: ``"orthogonal"`` leaves them as they are. ``"uniform"`` draws PyTorch's default:
            weights and biases uniform in $\pm 1/\sqrt{p}$, where $p$ is the number of inputs of one
            output. Networks of action values use it: random biases spread the points where ReLU
            units bend, which with zero biases is the origin for all of them.

    Returns:
        The same module.

    Source:
        LeCun et al. 1998, *Efficient BackProp*, section 4.6, for the scale.
    """
    if init == "uniform":
        for layer in module.modules():
            if isinstance(layer, nn.Linear | nn.Conv2d):
                layer.reset_parameters()
    return module


def ensemble_weights(
    shape: tuple[int, int, int], init: Initialization, gain: float
) -> nn.Parameter:
    """Draw the weights of several layers of one shape.

    Args:
        shape: numbers of layers, outputs and inputs, `(E, q, p)`.
        init: initialization of each layer.
        gain: factor on orthogonal matrices.
    """
    if init == "uniform":
        return fan_in_uniform(shape, shape[-1])
    weights = torch.empty(shape)
    for weight in weights:
        nn.init.orthogonal_(weight, gain)
    return nn.Parameter(weights)


def ensemble_biases(shape: tuple[int, int, int], init: Initialization, fan_in: int) -> nn.Parameter:
    """Draw the biases of several layers of one shape, which are zero beside orthogonal weights.

    Args:
        shape: number of layers, 1, and number of outputs, `(E, 1, q)`.
        init: initialization of each layer.
        fan_in: number of inputs of one output.
    """
    return fan_in_uniform(shape, fan_in) if init == "uniform" else nn.Parameter(torch.zeros(shape))


def fan_in_uniform(shape: tuple[int, ...], fan_in: int) -> nn.Parameter:
    r"""Draw a parameter uniformly in $\pm 1/\sqrt{p}$.

    Args:
        shape: of the parameter.
        fan_in: p, the number of inputs of one output.
    """
    bound = fan_in**-0.5
    return nn.Parameter(torch.empty(shape).uniform_(-bound, bound))
