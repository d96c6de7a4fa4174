"""How many rows a replay buffer has, where they are kept, and whether there is room for them."""

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from rl_core.errors import ConfigError, DeviceError
from rl_core.storage import TensorSpec
from rl_storages.config import SequenceConfig
from rl_storages.replay.columns import HOST_COLUMNS

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")
_CPU = torch.device("cpu")


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


@dataclass(frozen=True, slots=True)
class Need:
    """What a replay buffer takes in one place.

    Attributes:
        row_bytes: of one row of one environment.
        where: the place, for messages.
        available: what there is; None is not known.
    """

    row_bytes: int
    where: str
    available: int | None


def row_needs(
    specs: Mapping[str, TensorSpec],
    beside: int,
    device: torch.device,
    directory: Path | None = None,
) -> list[Need]:
    """Return what rows take, by place: that of the columns, and the memory beside it.

    Args:
        specs: one entry of each column.
        beside: bytes per row that are kept in memory to draw from the columns.
        device: where the columns are.
        directory: where files hold them instead; None keeps them in memory.
    """
    columns = sum(spec.nbytes for spec in specs.values())
    if directory is not None:
        disk = Need(columns, f"disk in {directory}", available_bytes(device, directory))
        return [disk, _on(_CPU, beside)]
    if device.type == "cpu":
        return [_on(device, columns + beside)]
    host = sum(spec.nbytes for name, spec in specs.items() if name in HOST_COLUMNS)
    return [_on(device, columns - host), _on(_CPU, host + beside)]


def available_bytes(device: torch.device, directory: Path | None = None) -> int | None:
    """Return what can still be allocated; None where the system does not tell.

    Args:
        device: whose memory.
        directory: look at the disk it is on instead.
    """
    if directory is not None:
        return shutil.disk_usage(directory).free
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if device.type != "cpu":
        return None
    figures = [figure for figure in (_free_memory(), _container_room()) if figure is not None]
    return min(figures, default=None)


def check_fits(needs: list[Need], *, size: int, num_rows: int, num_envs: int) -> None:
    """Refuse a buffer that does not fit.

    Args:
        needs: of one row of one environment, by place.
        size: transitions of all environments.
        num_rows: of each environment, for its share of these and what comes with them.
        num_envs: environments.

    Raises:
        ConfigError: naming a size that fits.
    """
    spare = num_rows - -(-size // num_envs)
    for need in needs:
        step_bytes = need.row_bytes * num_envs
        if need.available is None or num_rows * step_bytes <= need.available:
            continue
        fitting = (need.available // step_bytes - spare) * num_envs
        advice = f"a size of {_rounded_down(fitting)} fits" if fitting > 0 else "no size fits"
        raise ConfigError(
            f"storage.size: the replay buffer needs {_readable(num_rows * step_bytes)} "
            f"({need.row_bytes} bytes per transition), but only {_readable(need.available)} of "
            f"{need.where} are available; {advice}"
        )


def _on(device: torch.device, row_bytes: int) -> Need:
    return Need(row_bytes, f"memory on {device}", available_bytes(device))


def _free_memory() -> int | None:
    try:
        return _figures(_MEMINFO)["MemAvailable:"] * 1024
    except (OSError, ValueError, KeyError):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def _container_room() -> int | None:
    """Return what its container lets this process take; None where there is no limit.

    What the container uses includes files that were read, which the system gives up when memory is
    short.
    """
    try:
        limit = int((_CGROUP / "memory.max").read_text("ascii"))
        used = int((_CGROUP / "memory.current").read_text("ascii"))
        figures = _figures(_CGROUP / "memory.stat")
    except (OSError, ValueError):
        return None
    cached = figures.get("active_file", 0) + figures.get("inactive_file", 0)
    return max(limit - max(used - cached, 0), 0)


def _figures(path: Path) -> dict[str, int]:
    """Read the first number of each line, by the word before it."""
    lines = map(str.split, path.read_text("ascii").splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) > 1}


def _readable(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"


def _rounded_down(size: int) -> int:
    """Keep the two leading digits."""
    unit = int("1".ljust(len(str(size)) - 1, "0"))
    return size // unit * unit
