"""Contracts, data types, networks, estimators and gradient steps."""

from rl_core.actor import Actor as Actor
from rl_core.algorithm import Algorithm as Algorithm
from rl_core.env import VecEnv as VecEnv
from rl_core.errors import ConfigError as ConfigError
from rl_core.errors import RLError as RLError
from rl_core.logger import Logger as Logger
from rl_core.storage import Storage as Storage

__version__ = "0.1.0"
