"""Action heads: the last layer of a policy, and the bridge to the environment's action space."""

from rl_core.nn.heads._layout import box_size as box_size
from rl_core.nn.heads.base import ActionHead as ActionHead
from rl_core.nn.heads.bernoulli import BernoulliHead as BernoulliHead
from rl_core.nn.heads.categorical import CategoricalHead as CategoricalHead
from rl_core.nn.heads.categorical import Categories as Categories
from rl_core.nn.heads.categorical import MultiCategoricalHead as MultiCategoricalHead
from rl_core.nn.heads.gaussian import LOG_STD_RANGE as LOG_STD_RANGE
from rl_core.nn.heads.gaussian import DeterministicHead as DeterministicHead
from rl_core.nn.heads.gaussian import GaussianHead as GaussianHead
from rl_core.nn.heads.gaussian import ScaledHead as ScaledHead
from rl_core.nn.heads.gaussian import SquashedGaussianHead as SquashedGaussianHead
from rl_core.nn.heads.maker import make_head as make_head
