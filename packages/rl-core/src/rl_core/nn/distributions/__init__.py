r"""Distributions over actions, lean enough for the innermost loop.

A distribution is a frozen dataclass of tensors whose last axis holds the parameters of one event.
Nothing here draws random numbers: sampling is a deterministic function of noise that `draw_noise`
drew ahead, of the kind that the class names. Every method is a pure tensor function without a
branch on a tensor's value, so all of it runs under ``torch.compile(fullgraph=True)``,
``torch.func.vmap`` and ``torch.func.grad``. All logarithms are natural; entropies are in nats.
"""

from rl_core.nn.distributions.base import Distribution as Distribution
from rl_core.nn.distributions.bernoulli import Bernoulli as Bernoulli
from rl_core.nn.distributions.categorical import Categorical as Categorical
from rl_core.nn.distributions.categorical import MultiCategorical as MultiCategorical
from rl_core.nn.distributions.columns import from_columns as from_columns
from rl_core.nn.distributions.columns import to_columns as to_columns
from rl_core.nn.distributions.deterministic import Deterministic as Deterministic
from rl_core.nn.distributions.gaussian import DiagonalGaussian as DiagonalGaussian
from rl_core.nn.distributions.gaussian import SquashedGaussian as SquashedGaussian
from rl_core.nn.distributions.noise import NoiseKind as NoiseKind
from rl_core.nn.distributions.noise import draw_noise as draw_noise
