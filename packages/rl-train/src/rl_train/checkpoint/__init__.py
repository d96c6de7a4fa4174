"""Checkpoints that survive a kill, a full disk or a power loss, and that contain no code.

A checkpoint is a directory ``step-N`` with ``tensors.safetensors``, ``state.json``, perhaps
``recipe.toml``, and ``manifest.json`` with the size and SHA-256 of each. It is written under a
temporary name, flushed, and renamed: a directory called ``step-N`` is complete. Loading verifies
everything first. The digests prove that files are intact, not who wrote them.
"""

from rl_train.checkpoint._manifest import Manifest as Manifest
from rl_train.checkpoint._manifest import ResumeGrade as ResumeGrade
from rl_train.checkpoint._manifest import verify_checkpoint as verify_checkpoint
from rl_train.checkpoint._state_tree import state_digest as state_digest
from rl_train.checkpoint.checkpoints import Checkpoint as Checkpoint
from rl_train.checkpoint.checkpoints import SkippedCheckpoint as SkippedCheckpoint
from rl_train.checkpoint.checkpoints import check_goes_on as check_goes_on
from rl_train.checkpoint.checkpoints import checkpoints_of as checkpoints_of
from rl_train.checkpoint.checkpoints import clean_temporary as clean_temporary
from rl_train.checkpoint.checkpoints import is_checkpoint as is_checkpoint
from rl_train.checkpoint.checkpoints import is_run as is_run
from rl_train.checkpoint.checkpoints import latest_checkpoint as latest_checkpoint
from rl_train.checkpoint.checkpoints import list_checkpoints as list_checkpoints
from rl_train.checkpoint.checkpoints import load_checkpoint as load_checkpoint
from rl_train.checkpoint.checkpoints import prune_checkpoints as prune_checkpoints
from rl_train.checkpoint.checkpoints import read_run as read_run
from rl_train.checkpoint.checkpoints import remove_checkpoints as remove_checkpoints
from rl_train.checkpoint.checkpoints import save_checkpoint as save_checkpoint
from rl_train.checkpoint.checkpoints import set_aside_checkpoint as set_aside_checkpoint
from rl_train.checkpoint.checkpoints import step_of as step_of
from rl_train.checkpoint.weights import WeightSource as WeightSource
from rl_train.checkpoint.weights import load_weights as load_weights
