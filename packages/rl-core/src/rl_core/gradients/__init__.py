"""The gradient step: loss, gradient, clipping, optimizer and target movement, as one function."""

from rl_core.gradients.exchange import Gradients as Gradients
from rl_core.gradients.exchange import Weights as Weights
from rl_core.gradients.loss import HyperParameters as HyperParameters
from rl_core.gradients.loss import Loss as Loss
from rl_core.gradients.loss import LossModule as LossModule
from rl_core.gradients.loss import LossOutput as LossOutput
from rl_core.gradients.loss import Noise as Noise
from rl_core.gradients.loss import call_frozen as call_frozen
from rl_core.gradients.loss import masked_mean as masked_mean
from rl_core.gradients.loss import parameter_places as parameter_places
from rl_core.gradients.nonfinite import FaultyStep as FaultyStep
from rl_core.gradients.nonfinite import NonFiniteGuard as NonFiniteGuard
from rl_core.gradients.nonfinite import OnNonFinite as OnNonFinite
from rl_core.gradients.parameters import OptimizerConfig as OptimizerConfig
from rl_core.gradients.parameters import OptimizerName as OptimizerName
from rl_core.gradients.parameters import ParameterGroup as ParameterGroup
from rl_core.gradients.parameters import ParameterVector as ParameterVector
from rl_core.gradients.parameters import TargetNetwork as TargetNetwork
from rl_core.gradients.step import GradientStep as GradientStep
