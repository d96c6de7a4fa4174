"""Tensors to and from the safetensors format, which cannot hold code.

Files are written here chunk by chunk, without a second copy in memory. Their headers are read by
the `safetensors` library, whose parser checks every offset; the tensors are mapped, so that they
take memory only as far as they are looked at, which the system takes back when it is short.
"""

import json
import math
import mmap
import sys
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
_DTYPES = {name: dtype for dtype, name in _FORMAT_NAMES.items()}
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)
"""Lets the system map more than there is memory; Python has no name for it before 3.13."""


def check_storable(tensor: Tensor, name: str) -> None:
    """Refuse a tensor that the format cannot hold.

    Raises:
        CheckpointError: for a sparse, quantized or data-less tensor, or an unusual dtype.
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
    if flat.stride(0) != 1:  # of a single element, to which torch leaves any
        flat = flat.clone(memory_format=torch.contiguous_format)
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
    """Map all tensors of a file, on the CPU.

    What is written to them stays in memory. They stay what they are when the file is renamed,
    deleted, or replaced by another; it must not be written to or cut short in place.

    Raises:
        CheckpointError: when the file is not in the format.
        OSError: when it cannot be read.
    """
    try:
        # Not the library's own tensors: those of files larger than the memory cannot be mapped.
        with safe_open(path, framework="np") as file:
            parts = [(name, file.get_slice(name)) for name in file.offset_keys()]
            forms = [(name, part.get_dtype(), part.get_shape()) for name, part in parts]
    except SafetensorError as error:
        raise CheckpointError(f"it is not a safetensors file: {error}") from error
    with open(path, "rb") as raw:
        begin = 8 + int.from_bytes(raw.read(8), "little")
        mapped = _mapped(raw.fileno())
    tensors: dict[str, Tensor] = {}
    for name, format_name, shape in forms:
        dtype = _DTYPES.get(format_name)
        if dtype is None:
            raise CheckpointError(f"its tensor {name} has the unknown dtype {format_name}")
        count = math.prod(shape)
        if count == 0:
            tensors[name] = torch.empty(shape, dtype=dtype)
            continue
        flat = torch.frombuffer(mapped, dtype=dtype, count=count, offset=begin)
        tensors[name] = flat.view(shape)
        begin += flat.nbytes
    return tensors


def _mapped(descriptor: int) -> mmap.mmap:
    """Map a whole file; pages that are written to are copied first."""
    if sys.platform == "win32":
        return mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY)
    flags = mmap.MAP_PRIVATE | _NO_RESERVE
    return mmap.mmap(descriptor, 0, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)
