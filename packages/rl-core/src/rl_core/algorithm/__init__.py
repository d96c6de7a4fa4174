"""The algorithm contract: what to minimize; everything around it is here, once."""

from rl_core.algorithm.add_ons import PolicyLossAddOn as PolicyLossAddOn
from rl_core.algorithm.add_ons import PreparedRollout as PreparedRollout
from rl_core.algorithm.algorithm import Algorithm as Algorithm
from rl_core.algorithm.algorithm import AnyAlgorithm as AnyAlgorithm
from rl_core.algorithm.defaults import DefaultRecipe as DefaultRecipe
from rl_core.algorithm.defaults import EnvSpec as EnvSpec
from rl_core.algorithm.evaluation import EvaluatedEpisodes as EvaluatedEpisodes
from rl_core.algorithm.rollouts import evaluate_rollout as evaluate_rollout
from rl_core.algorithm.update import UpdateCallbacks as UpdateCallbacks
from rl_core.algorithm.update import UpdateSchedule as UpdateSchedule
from rl_core.algorithm.update import run_epochs as run_epochs
from rl_core.algorithm.update import run_update as run_update
from rl_core.algorithm.update import whole_batch as whole_batch
