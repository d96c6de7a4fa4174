"""Terms for the policy loss of any algorithm that has one."""

from rl_algos_onpolicy.add_ons.attraction_repulsion import AttractionKL as AttractionKL
from rl_algos_onpolicy.add_ons.attraction_repulsion import RepulsionKL as RepulsionKL
from rl_algos_onpolicy.add_ons.prediction import ReturnPredictor as ReturnPredictor
from rl_algos_onpolicy.add_ons.prediction import RewardPredictor as RewardPredictor
