"""The algorithm contract: what to minimise; everything around it is here, once."""

from rl_core.algorithm.contract import Algorithm as Algorithm
from rl_core.algorithm.contract import AnyAlgorithm as AnyAlgorithm
from rl_core.algorithm.defaults import DefaultRecipe as DefaultRecipe
from rl_core.algorithm.defaults import EnvSpec as EnvSpec
from rl_core.algorithm.hyper import Scheduled as Scheduled
from rl_core.algorithm.schedule import UpdateSchedule as UpdateSchedule
from rl_core.algorithm.update import run_update as run_update
from rl_core.algorithm.update import whole_batch as whole_batch
from rl_core.algorithm.watch import UpdateWatch as UpdateWatch
from rl_core.algorithm.weights import Weights as Weights
