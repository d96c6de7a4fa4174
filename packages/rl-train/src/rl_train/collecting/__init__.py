"""Collecting: stepping environments and storing the transitions."""

from rl_train.collecting.action_masks import ActionMaskCheck as ActionMaskCheck
from rl_train.collecting.collector import Collector as Collector
from rl_train.collecting.episodes import Episode as Episode
from rl_train.collecting.episodes import EpisodeTracker as EpisodeTracker
from rl_train.collecting.rewards import RewardScaler as RewardScaler
