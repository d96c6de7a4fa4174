"""How many rows a replay buffer needs, and where its data is kept."""

from pathlib import Path

import torch

from rl_core.errors import ConfigError, DeviceError
from rl_storages.config import SequenceConfig


def rows_per_env(
    size: int,
    num_envs: int,
    n_step: int,
    sequences: SequenceConfig | None = None,
    frame_stack: int | None = None,
) -> int:
    """Return how many rows each environment needs for its share of the transitions.

    Raises:
        ConfigError: when there would be no room for one window in each.
    """
    num_rows = -(-size // num_envs) + 1
    if num_rows < n_step + 2:
        raise ConfigError(
            f"storage.size={size} is too small for {num_envs} environment{'s' * (num_envs > 1)} "
            f"and n_step={n_step}; it must be at least {n_step * num_envs + 1}"
        )
    older_frames = 0 if frame_stack is None else frame_stack - 1
    return num_rows + older_frames + (0 if sequences is None else sequences.length - 1)


def checked_device(name: str | None, default: torch.device) -> torch.device:
    """Return where the data is kept.

    Raises:
        DeviceError: when it is not there.
    """
    if name is None:
        return default
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise DeviceError(
            f"storage.data_device={name!r} is not there: {error}; use 'cpu'"
        ) from error
    return device


def checked_directory(name: str | None, device: torch.device) -> Path | None:
    """Return where files are made that hold the data, if it is to be kept in files.

    Raises:
        ConfigError: when there is no such directory, or the data is to be on another device.
    """
    if name is None:
        return None
    directory = Path(name)
    if not directory.is_dir():
        raise ConfigError(
            f"storage.mmap_dir: {directory.absolute()} is not an existing directory; make it "
            "first (a run resumes into an empty one, as its checkpoints hold the data)"
        )
    if device.type != "cpu":
        raise ConfigError(
            f"storage.mmap_dir keeps data in files, but it is to be on {device}; set "
            "storage.data_device to 'cpu'"
        )
    return directory
