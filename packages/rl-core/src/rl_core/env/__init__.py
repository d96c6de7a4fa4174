"""Vector environments: the contract, and the checks and seeds that implementations share."""

from rl_core.env.checks import action_error as action_error
from rl_core.env.checks import action_shape as action_shape
from rl_core.env.checks import as_numpy as as_numpy
from rl_core.env.checks import category_problem as category_problem
from rl_core.env.checks import keeps_integers as keeps_integers
from rl_core.env.checks import observation_problem as observation_problem
from rl_core.env.contract import EnvStep as EnvStep
from rl_core.env.contract import VecEnv as VecEnv
from rl_core.env.goals import GoalFunctions as GoalFunctions
from rl_core.env.tasks import TaskSplit as TaskSplit
from rl_core.env.tasks import TaskVecEnv as TaskVecEnv
