"""The storage contract: where transitions go, and where batches come from."""

from rl_core.storage.continuity import ORIGIN as ORIGIN
from rl_core.storage.continuity import Continuity as Continuity
from rl_core.storage.contract import OBSERVATION_COLUMN as OBSERVATION_COLUMN
from rl_core.storage.contract import AnyStorage as AnyStorage
from rl_core.storage.contract import DataSlice as DataSlice
from rl_core.storage.contract import Storage as Storage
from rl_core.storage.contract import StorageSpec as StorageSpec
from rl_core.storage.contract import TensorSpec as TensorSpec
from rl_core.storage.contract import check_slice as check_slice
from rl_core.storage.contract import join_observation as join_observation
from rl_core.storage.contract import observation_columns as observation_columns
from rl_core.storage.sampler import IndexSampler as IndexSampler
from rl_core.storage.sampler import ReplayRows as ReplayRows
from rl_core.storage.sampler import Slots as Slots
from rl_core.storage.sampler import nothing_to_draw as nothing_to_draw
