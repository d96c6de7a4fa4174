"""Demonstrations: transitions from elsewhere in a replay storage, beside the collected ones.

They come from a Minari data set, a storage that was saved alone, or the storage of another run. The
storage treats them like other transitions: it samples them, and overwrites them when it is full.
The counters of steps and episodes do not include them.
"""

from rl_train.demonstrations.filling import fill_storage as fill_storage
from rl_train.demonstrations.filling import insert_trajectories as insert_trajectories
from rl_train.demonstrations.minari import EpisodeData as EpisodeData
from rl_train.demonstrations.minari import EpisodeDataset as EpisodeDataset
from rl_train.demonstrations.minari import dataset_trajectories as dataset_trajectories
from rl_train.demonstrations.minari import load_minari as load_minari
from rl_train.demonstrations.sources import Source as Source
from rl_train.demonstrations.sources import read_demonstrations as read_demonstrations
