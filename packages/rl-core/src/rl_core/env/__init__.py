"""Vectorised environments: the contract, the two ways to one, and the plain maker."""

from rl_core.env.adapter import GymVecEnv as GymVecEnv
from rl_core.env.contract import EnvStep as EnvStep
from rl_core.env.contract import VecEnv as VecEnv
from rl_core.env.guard import EnvGuard as EnvGuard
from rl_core.env.maker import AnyEnv as AnyEnv
from rl_core.env.maker import EnvFunction as EnvFunction
from rl_core.env.maker import EnvMaker as EnvMaker
from rl_core.env.maker import EnvWrapper as EnvWrapper
from rl_core.env.maker import as_vec_env as as_vec_env
from rl_core.env.maker import make_gym_vec as make_gym_vec
from rl_core.env.registry import find_spec as find_spec
from rl_core.env.seeding import spread_seed as spread_seed
from rl_core.env.sync import SyncVecEnv as SyncVecEnv
