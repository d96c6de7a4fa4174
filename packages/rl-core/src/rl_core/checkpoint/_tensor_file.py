"""Tensors to and from the safetensors format, which cannot hold code.

Files are written here chunk by chunk, without a second copy in memory, and read by the
`safetensors` library, whose parser checks every offset.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from rl_core.errors import CheckpointError

_FORMAT_NAMES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.uint16: "U16",
    torch.int16: "I16",
    torch.uint32: "U32",
    torch.int32: "I32",
    torch.uint64: "U64",
    torch.int64: "I64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
}


def check_storable(tensor: Tensor, name: str) -> None:
    """Refuse a tensor that the format cannot hold.

    Raises:
        CheckpointError: for a sparse, quantised or data-less tensor, or an unusual dtype.
    """
    if tensor.dtype not in _FORMAT_NAMES:
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in _FORMAT_NAMES)
        raise CheckpointError(
            f"the state holds a tensor of dtype {tensor.dtype} at {name}; expected one of {known}"
        )
    if tensor.layout != torch.strided or tensor.device.type == "meta":
        raise CheckpointError(
            f"the state holds a {tensor.layout} tensor on {tensor.device} at {name}; expected an"
            " ordinary dense tensor that has data"
        )


def tensor_bytes(tensor: Tensor) -> memoryview:
    """Return the elements of a tensor in row order, copied only where they must be."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    if flat.numel() == 0:
        return memoryview(b"")
    return flat.view(torch.uint8).numpy().data


def safetensors_chunks(tensors: Mapping[str, Tensor]) -> Iterator[bytes | memoryview]:
    """Yield the contents of a safetensors file.

    Args:
        tensors: by name; tensors that share memory are each written in full.
    """
    # Widest elements first: every tensor is then aligned, which readers that map files rely on.
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header: dict[str, object] = {}
    offset = 0
    for name in names:
        tensor = tensors[name]
        end = offset + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": _FORMAT_NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little")
    yield text
    for name in names:
        yield tensor_bytes(tensors[name])


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Return all tensors of a file, on the CPU and independent of the file.

    Raises:
        CheckpointError: when the file is not in the format.
        OSError: when it cannot be read.
    """
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            return {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118  # not a dict
    except SafetensorError as error:
        raise CheckpointError(f"it is not a safetensors file: {error}") from error
