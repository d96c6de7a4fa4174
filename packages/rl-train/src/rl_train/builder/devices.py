"""Where networks are."""

import re

import torch

from rl_core.errors import DeviceError

_DEVICE = re.compile(r"cpu|cuda(:[0-9]{1,3})?")


def resolve_device(name: str) -> torch.device:
    """Turn a device's name into one that is there.

    Args:
        name: ``"cpu"``, ``"cuda"`` or ``"cuda:1"``; ``"auto"`` takes CUDA when there is some, else
            the CPU.

    Raises:
        DeviceError: when the name is none of these or the device is not there.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not _DEVICE.fullmatch(name):
        raise DeviceError(f"device '{name}' is unknown; use auto, cpu, cuda or cuda:N")
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise DeviceError(
            f"device '{name}' was asked for, but torch sees no CUDA device; use --device cpu, or "
            "install a CUDA build of torch"
        )
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise DeviceError(
            f"device '{name}' is not there: torch sees {torch.cuda.device_count()} CUDA devices, "
            "counted from cuda:0"
        )
    return device
