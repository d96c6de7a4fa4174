"""Demonstrations: what others did, put into a replay storage beside what is collected.

They come from a Minari data set, from a storage that was saved alone, or from the storage of
another run. In the storage they are like other data: drawn with it, and overwritten when it is
full. No counter of steps or episodes counts them.
"""

from rl_train.demonstrations.filling import fill_storage as fill_storage
from rl_train.demonstrations.filling import insert_trajectories as insert_trajectories
from rl_train.demonstrations.minari import EpisodeData as EpisodeData
from rl_train.demonstrations.minari import EpisodeDataset as EpisodeDataset
from rl_train.demonstrations.minari import dataset_trajectories as dataset_trajectories
from rl_train.demonstrations.minari import load_minari as load_minari
from rl_train.demonstrations.sources import Source as Source
from rl_train.demonstrations.sources import read_demonstrations as read_demonstrations
