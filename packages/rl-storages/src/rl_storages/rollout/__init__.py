"""The rollout storage."""

from rl_storages.rollout.storage import RolloutStorage as RolloutStorage
