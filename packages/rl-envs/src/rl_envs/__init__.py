"""Vectorised environments and wrappers."""

from rl_envs.vectorize import make_vec as make_vec

__version__ = "0.1.0"
