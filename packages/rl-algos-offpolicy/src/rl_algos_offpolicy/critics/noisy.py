"""Networks that explore by noise on their weights.

Source: Fortunato et al. 2018, *Noisy Networks for Exploration*, https://arxiv.org/abs/1706.10295,
section 3, factorized Gaussian noise.
"""

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rl_core.config import Count, Positive, checked_arguments
from rl_core.nn.init import fan_in_uniform
from rl_core.nn.mlp import ACTIVATIONS, Activation


class NoisyEnsembleMLP(nn.Module):
    r"""Independent multi-layer perceptrons whose weights are means plus learned noise.

    A layer from p to q numbers computes $y = (\mu^w + \sigma^w \odot f(\epsilon^q)
    f(\epsilon^p)^\top)\,x + \mu^b + \sigma^b \odot f(\epsilon^q)$ with
    $f(\epsilon) = \mathrm{sgn}(\epsilon) \sqrt{|\epsilon|}$ and independent standard normal
    numbers $\epsilon$. They are an input, which `draw_weight_noise` draws, so that the network is a
    function and each row of a batch may have weights of its own.

    Args:
        num_members: how many networks, E.
        in_features: size of the input.
        hidden_sizes: width of each hidden layer; may be empty.
        out_features: width of the final layer, which has no activation.
        activation: name of the activation.
        initial_sigma: σ₀; a layer's σ starts at σ₀ divided by √p.

    Attributes:
        noise_size: K, how many numbers one member's weights are made noisy with.

    Raises:
        ConfigError: for an unknown activation, a number or width below 1, or a σ₀ that is not
            above 0.
    """

    @checked_arguments()
    def __init__(
        self,
        num_members: Count,
        in_features: Count,
        hidden_sizes: Sequence[Count],
        out_features: Count,
        *,
        activation: Activation = "relu",
        initial_sigma: Positive = 0.5,
    ) -> None:
        super().__init__()
        widths = [in_features, *hidden_sizes, out_features]
        self.num_members = num_members
        self.out_features = out_features
        self._activate = ACTIVATIONS[activation]
        self.weights = nn.ParameterList()
        self.biases = nn.ParameterList()
        self.weight_sigmas = nn.ParameterList()
        self.bias_sigmas = nn.ParameterList()
        for p, q in itertools.pairwise(widths):
            sigma = initial_sigma / math.sqrt(p)
            for shape, means, sigmas in (
                ((num_members, q, p), self.weights, self.weight_sigmas),
                ((num_members, 1, q), self.biases, self.bias_sigmas),
            ):
                means.append(fan_in_uniform(shape, p))
                sigmas.append(nn.Parameter(torch.full(shape, sigma)))
        self._splits = [size for pair in itertools.pairwise(widths) for size in pair]
        self.noise_size = sum(self._splits)

    def forward(self, features: Tensor, noise: Tensor | None = None) -> Tensor:
        """Map inputs `(*batch, in_features)` to `(E, *batch, out_features)`.

        Args:
            features: the same for all members.
            noise: shape `(E, K)`, the same weights for the whole batch, or `(*batch, E, K)`, other
                weights for each row; None takes the mean weights.
        """
        batch = features.shape[:-1]
        x = features.reshape(1, -1, features.shape[-1]).expand(self.num_members, -1, -1)
        factors = self._factors(noise)
        last = len(self.weights) - 1
        for k, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            mean = torch.baddbmm(bias, x, weight.mT)
            if noise is not None:
                # Factorized noise scales the input and the output of a product with σ.
                into, out = factors[2 * k], factors[2 * k + 1]
                scaled = torch.baddbmm(self.bias_sigmas[k], x * into, self.weight_sigmas[k].mT)
                mean = mean + out * scaled
            x = self._activate(mean) if k < last else mean
        return x.view(self.num_members, *batch, self.out_features)

    def _factors(self, noise: Tensor | None) -> tuple[Tensor, ...]:
        """Cut noise into f(εᵖ) and f(εᵠ) of each layer, each `(E, rows, width)` with rows or 1."""
        if noise is None:
            return ()
        by_member = noise.reshape(-1, self.num_members, self.noise_size).transpose(0, 1)
        return torch.split(by_member, self._splits, -1)


def draw_weight_noise(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Draw f(ε) for independent standard normal numbers ε.

    Args:
        shape: of the result, whose last axes are the E and K of `NoisyEnsembleMLP`.
        generator: on the device of the result.
    """
    normal = torch.randn(shape, generator=generator, device=generator.device)
    return normal.sign() * normal.abs().sqrt()
