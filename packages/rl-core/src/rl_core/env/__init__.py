"""Vectorised environments: the contract, the two ways to one, and the plain maker."""

from rl_core.env.adapter import GymVecEnv as GymVecEnv
from rl_core.env.checks import action_error as action_error
from rl_core.env.checks import action_shape as action_shape
from rl_core.env.checks import as_numpy as as_numpy
from rl_core.env.checks import category_problem as category_problem
from rl_core.env.checks import observation_problem as observation_problem
from rl_core.env.contract import EnvStep as EnvStep
from rl_core.env.contract import VecEnv as VecEnv
from rl_core.env.guard import EnvGuard as EnvGuard
from rl_core.env.maker import AnyEnv as AnyEnv
from rl_core.env.maker import EnvFunction as EnvFunction
from rl_core.env.maker import EnvMaker as EnvMaker
from rl_core.env.maker import EnvWrapper as EnvWrapper
from rl_core.env.maker import as_vec_env as as_vec_env
from rl_core.env.maker import checked_num_envs as checked_num_envs
from rl_core.env.maker import make_gym_vec as make_gym_vec
from rl_core.env.registry import find_spec as find_spec
from rl_core.env.seeding import checked_seed as checked_seed
from rl_core.env.seeding import resumed_seed as resumed_seed
from rl_core.env.seeding import spread_seed as spread_seed
from rl_core.env.sync import SyncVecEnv as SyncVecEnv
