"""Returns, advantages and targets, as pure functions."""

from rl_core.returns.advantages import baseline_advantages as baseline_advantages
from rl_core.returns.advantages import discounted_returns as discounted_returns
from rl_core.returns.advantages import explained_variance as explained_variance
from rl_core.returns.advantages import gae as gae
from rl_core.returns.advantages import normalize as normalize
from rl_core.returns.advantages import td_advantages as td_advantages
from rl_core.returns.advantages import td_targets as td_targets
from rl_core.returns.advantages import vtrace as vtrace
from rl_core.returns.estimators import AdvantageEstimator as AdvantageEstimator
from rl_core.returns.estimators import Steps as Steps
from rl_core.returns.estimators import ValueTarget as ValueTarget
from rl_core.returns.estimators import estimate as estimate
from rl_core.returns.estimators import shift_to_positive as shift_to_positive
from rl_core.returns.targets import n_step_target as n_step_target
