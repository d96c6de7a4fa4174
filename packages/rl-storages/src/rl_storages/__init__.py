"""Rollout and replay storages."""

from rl_storages.rollout import RolloutStorage as RolloutStorage

__version__ = "0.1.0"
