"""Vectorised environments, wrappers, and tasks of our own."""

import gymnasium

from rl_envs.bit_flipping import BitFlipping as BitFlipping
from rl_envs.vectorize import make_vec as make_vec

__version__ = "0.1.0"

gymnasium.register("BitFlipping-v0", entry_point="rl_envs.bit_flipping:BitFlipping")
