"""Vector environments, wrappers, and tasks of our own."""

import tomllib
from importlib.resources import files

import gymnasium

from rl_envs.bit_flipping import BitFlipping as BitFlipping
from rl_envs.guard import EnvGuard as EnvGuard
from rl_envs.maker import EnvFunction as EnvFunction
from rl_envs.maker import EnvMaker as EnvMaker
from rl_envs.maker import EnvWrapper as EnvWrapper
from rl_envs.registry import find_spec as find_spec
from rl_envs.registry import with_version as with_version
from rl_envs.vector.gymnasium_vector import GymVecEnv as GymVecEnv
from rl_envs.vector.sync import SyncVecEnv as SyncVecEnv
from rl_envs.vector.workers import ProcessVecEnv as ProcessVecEnv
from rl_envs.vectorize import AnyEnv as AnyEnv
from rl_envs.vectorize import BuiltEnv as BuiltEnv
from rl_envs.vectorize import EnvSource as EnvSource
from rl_envs.vectorize import as_vec_env as as_vec_env
from rl_envs.vectorize import is_built as is_built
from rl_envs.vectorize import is_vector_class as is_vector_class
from rl_envs.vectorize import make_gym_vec as make_gym_vec
from rl_envs.vectorize import make_vec as make_vec
from rl_envs.vectorize import registered_env as registered_env

__version__ = "0.1.0"

for _id, _how in tomllib.loads(files("rl_envs").joinpath("envs.toml").read_text("utf-8")).items():
    gymnasium.register(_id, **_how)
