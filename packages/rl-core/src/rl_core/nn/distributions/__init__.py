r"""Distributions over actions, lean enough for the innermost loop, and the heads that make them.

A distribution is a frozen dataclass of tensors whose last axis holds the parameters of one event.
Nothing here draws random numbers: sampling is a deterministic function of noise that `draw_noise`
drew ahead, of the kind that the class names. Every method is a pure tensor function without a
branch on a tensor's value, so all of it runs under ``torch.compile(fullgraph=True)``,
``torch.func.vmap`` and ``torch.func.grad``. All logarithms are natural; entropies are in nats.

An action head is the last layer of a policy, and the bridge to the environment's action space.
"""

from rl_core.nn.distributions.base import ActionHead as ActionHead
from rl_core.nn.distributions.base import Distribution as Distribution
from rl_core.nn.distributions.base import NoiseKind as NoiseKind
from rl_core.nn.distributions.base import draw_noise as draw_noise
from rl_core.nn.distributions.bernoulli import Bernoulli as Bernoulli
from rl_core.nn.distributions.bernoulli import BernoulliHead as BernoulliHead
from rl_core.nn.distributions.categorical import Categorical as Categorical
from rl_core.nn.distributions.categorical import CategoricalHead as CategoricalHead
from rl_core.nn.distributions.categorical import Categories as Categories
from rl_core.nn.distributions.categorical import MultiCategorical as MultiCategorical
from rl_core.nn.distributions.categorical import MultiCategoricalHead as MultiCategoricalHead
from rl_core.nn.distributions.columns import from_columns as from_columns
from rl_core.nn.distributions.columns import to_columns as to_columns
from rl_core.nn.distributions.deterministic import Deterministic as Deterministic
from rl_core.nn.distributions.deterministic import DeterministicHead as DeterministicHead
from rl_core.nn.distributions.gaussian import LOG_STD_RANGE as LOG_STD_RANGE
from rl_core.nn.distributions.gaussian import DiagonalGaussian as DiagonalGaussian
from rl_core.nn.distributions.gaussian import GaussianHead as GaussianHead
from rl_core.nn.distributions.gaussian import ScaledHead as ScaledHead
from rl_core.nn.distributions.gaussian import SquashedGaussian as SquashedGaussian
from rl_core.nn.distributions.gaussian import SquashedGaussianHead as SquashedGaussianHead
from rl_core.nn.distributions.gaussian import box_size as box_size
from rl_core.nn.distributions.maker import make_head as make_head
