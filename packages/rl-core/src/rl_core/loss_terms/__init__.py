"""Terms for the policy loss of any algorithm that has one."""

from rl_core.loss_terms.divergence import AttractionKL as AttractionKL
from rl_core.loss_terms.divergence import RepulsionKL as RepulsionKL
from rl_core.loss_terms.prediction import ReturnPredictor as ReturnPredictor
from rl_core.loss_terms.prediction import RewardPredictor as RewardPredictor
