"""Rollout and replay storages."""

from rl_storages.config import HindsightConfig as HindsightConfig
from rl_storages.config import PrioritizedConfig as PrioritizedConfig
from rl_storages.config import RecentConfig as RecentConfig
from rl_storages.config import SequenceConfig as SequenceConfig
from rl_storages.replay.buffer import ReplayBuffer as ReplayBuffer
from rl_storages.replay.storage import ReplayStorage as ReplayStorage
from rl_storages.rollout.storage import RolloutStorage as RolloutStorage

__version__ = "0.1.0"
