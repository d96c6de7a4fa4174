"""Rollout and replay storages."""

from rl_storages.hindsight import HindsightConfig as HindsightConfig
from rl_storages.prioritized import PrioritizedConfig as PrioritizedConfig
from rl_storages.recent import RecentConfig as RecentConfig
from rl_storages.replay import ReplayBuffer as ReplayBuffer
from rl_storages.rollout import RolloutStorage as RolloutStorage
from rl_storages.sequences import SequenceConfig as SequenceConfig

__version__ = "0.1.0"
