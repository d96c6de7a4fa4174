"""How much memory there is, and how much columns need."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch

from rl_core.errors import ConfigError
from rl_core.storage import TensorSpec

_MEMINFO = Path("/proc/meminfo")
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


def bytes_per_entry(specs: Mapping[str, TensorSpec]) -> int:
    """Return what one entry of all columns takes."""
    return sum(torch.Size(spec.shape).numel() * spec.dtype.itemsize for spec in specs.values())


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
    figures = [figure for figure in (_free_memory(), _container_limit()) if figure is not None]
    return min(figures, default=None)


def check_fits(
    rows: int, row_bytes: int, available: int | None, *, where: str, num_envs: int
) -> None:
    """Refuse columns that do not fit.

    Args:
        rows: of all environments.
        row_bytes: of one environment's row.
        available: what there is; None is not known.
        where: what is short, for the message.
        num_envs: environments.

    Raises:
        ConfigError: naming a size that fits.
    """
    needed = rows * num_envs * row_bytes
    if available is None or needed <= available:
        return
    fitting = max(available // row_bytes - num_envs, 0)
    raise ConfigError(
        f"storage.size: the replay buffer needs {_readable(needed)} ({row_bytes} bytes per "
        f"transition), but only {_readable(available)} of {where} are available; a size of "
        f"{_rounded_down(fitting)} fits"
    )


def _free_memory() -> int | None:
    try:
        for line in _MEMINFO.read_text("ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def _container_limit() -> int | None:
    try:
        return int(_CGROUP_LIMIT.read_text("ascii"))
    except (OSError, ValueError):
        return None


def _readable(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"


def _rounded_down(size: int) -> int:
    """Keep the two leading digits."""
    unit = int("1".ljust(len(str(size)) - 1, "0"))
    return size // unit * unit
