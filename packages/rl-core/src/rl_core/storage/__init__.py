"""The storage contract: where transitions go, and where batches come from."""

from rl_core.storage.boundaries import ORIGIN as ORIGIN
from rl_core.storage.boundaries import EpisodeBoundaries as EpisodeBoundaries
from rl_core.storage.contract import AnyStorage as AnyStorage
from rl_core.storage.contract import IndexSampler as IndexSampler
from rl_core.storage.contract import ReplayRows as ReplayRows
from rl_core.storage.contract import Slots as Slots
from rl_core.storage.contract import Storage as Storage
from rl_core.storage.contract import empty_storage_error as empty_storage_error
from rl_core.storage.optional import HasRollouts as HasRollouts
from rl_core.storage.optional import HasSlices as HasSlices
from rl_core.storage.optional import HasTrajectories as HasTrajectories
from rl_core.storage.spec import OBSERVATION_COLUMN as OBSERVATION_COLUMN
from rl_core.storage.spec import DataSlice as DataSlice
from rl_core.storage.spec import StorageSpec as StorageSpec
from rl_core.storage.spec import TensorSpec as TensorSpec
from rl_core.storage.spec import check_slice as check_slice
from rl_core.storage.spec import columns_below as columns_below
from rl_core.storage.spec import join_observation as join_observation
from rl_core.storage.spec import observation_columns as observation_columns
from rl_core.storage.spec import observation_spec as observation_spec
