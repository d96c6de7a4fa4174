"""Contracts, data types, networks, estimators and gradient steps.

The package itself imports no PyTorch, so that a command that only looks something up starts fast.
"""

from rl_core.errors import ConfigError as ConfigError
from rl_core.errors import RLError as RLError

__version__ = "0.1.0"
