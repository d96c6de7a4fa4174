"""State trees as JSON plus tensors: exact in both directions, and their digest.

JSON cannot express some values of a state. An object with one key stands for each of these:
``{"$tensor": "/pointer"}``, ``{"$array": "/pointer"}`` (NumPy's), ``{"$float": "nan"}``,
``{"$int": "0x..."}``, ``{"$tuple": [...]}``. Keys of the state that start with a dollar sign get a
second one, so nothing is ambiguous. A tensor's name is the JSON pointer to its place.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor

from rl_core.config import as_python
from rl_core.errors import CheckpointError
from rl_core.types import Json, StateDict, StateValue
from rl_train.checkpoint._tensor_file import check_storable, tensor_bytes

MAX_DEPTH = 64
_INT_BOUND = 2**63


def encode_state(state: StateDict) -> tuple[Json, dict[str, Tensor]]:
    """Split a state into plain JSON and its tensors.

    Args:
        state: a tree of mappings with text keys, lists, tuples, tensors, arrays, numbers, text and
            None.

    Returns:
        The tree with placeholders, and the tensors by the pointer to their place; those of the
        state are not copied.

    Raises:
        CheckpointError: when the tree holds anything else, or is nested deeper than 64 levels.
    """
    tensors: dict[str, Tensor] = {}
    return _encode(state, "", 0, tensors), tensors


def decode_state(tree: Json, tensors: Mapping[str, Tensor]) -> StateDict:
    """Put back together what `encode_state` split.

    Raises:
        CheckpointError: when the tree is not a mapping, is nested too deeply, holds an unknown
            placeholder, or its tensors are not exactly those given.
    """
    used: set[str] = set()
    state = _decode(tree, "", 0, tensors, used)
    if not isinstance(state, Mapping):
        raise CheckpointError(f"the state is a {type(state).__name__}; expected a mapping")
    unused = sorted(set(tensors) - used)
    if unused:
        raise CheckpointError(f"the state does not mention the tensor {unused[0]}")
    return state


def state_digest(state: StateDict) -> str:
    """Return the SHA-256 of a whole state, the same for every order of its keys.

    Two states with one digest are equal bit by bit: dtypes, shapes, signs of zero and the
    difference between ``1``, ``1.0`` and ``True`` all count; devices do not.

    Raises:
        CheckpointError: when the state holds something that a checkpoint cannot.
    """
    tree, tensors = encode_state(state)
    digest = hashlib.sha256()
    digest.update(json.dumps(tree, sort_keys=True, allow_nan=False).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(tensor_bytes(tensor))
    return digest.hexdigest()


def _encode(value: object, pointer: str, depth: int, tensors: dict[str, Tensor]) -> Json:
    if depth > MAX_DEPTH:
        raise CheckpointError(f"the state is nested deeper than {MAX_DEPTH} levels at {pointer}")
    value = as_python(value)  # such as NumPy's float32
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value) if abs(value) < _INT_BOUND else {"$int": hex(value)}
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": repr(float(value))}
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Tensor):
        check_storable(value, pointer)
        tensors[pointer] = value
        return {"$tensor": pointer}
    if isinstance(value, np.ndarray):
        try:
            array = torch.from_numpy(value.copy())
        except TypeError as error:
            raise CheckpointError(
                f"the state holds an array of {value.dtype} at {pointer or '/'}; expected numbers "
                "or flags"
            ) from error
        check_storable(array, pointer)
        tensors[pointer] = array
        return {"$array": pointer}
    if isinstance(value, Mapping):
        return {
            _escaped(key, pointer): _encode(item, _child(pointer, key), depth + 1, tensors)
            for key, item in value.items()
        }
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
        items: list[Json] = [
            _encode(item, _child(pointer, str(i)), depth + 1, tensors)
            for i, item in enumerate(value)
        ]
        return {"$tuple": items} if isinstance(value, tuple) else items
    raise CheckpointError(
        f"the state holds a {type(value).__module__}.{type(value).__qualname__} at"
        f" {pointer or '/'}; expected only tensors, arrays, numbers, text, None, lists and mappings"
    )


def _decode(
    value: Json, pointer: str, depth: int, tensors: Mapping[str, Tensor], used: set[str]
) -> StateValue:
    if depth > MAX_DEPTH:
        raise CheckpointError(f"the state is nested deeper than {MAX_DEPTH} levels at {pointer}")
    if isinstance(value, list):
        return [
            _decode(item, _child(pointer, str(i)), depth + 1, tensors, used)
            for i, item in enumerate(value)
        ]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((key, item),) = value.items()
        if key == "$tuple" and isinstance(item, list):
            return tuple(cast("list[StateValue]", _decode(item, pointer, depth, tensors, used)))
        if key.startswith("$") and not key.startswith("$$"):
            return _decode_leaf(key, item, pointer, tensors, used)
    decoded: dict[str, StateValue] = {}
    for key, item in value.items():
        name = key.removeprefix("$")
        if key.startswith("$") and not name.startswith("$"):
            raise CheckpointError(f"the state holds an unknown placeholder {key[:40]} at {pointer}")
        decoded[name] = _decode(item, _child(pointer, name), depth + 1, tensors, used)
    return decoded


def _decode_leaf(
    key: str, item: Json, pointer: str, tensors: Mapping[str, Tensor], used: set[str]
) -> StateValue:
    if key in ("$tensor", "$array") and item == pointer and pointer in tensors:
        used.add(pointer)
        return tensors[pointer] if key == "$tensor" else tensors[pointer].numpy()
    if key == "$float" and item in ("nan", "inf", "-inf"):
        return float(item)
    if key == "$int" and isinstance(item, str):
        try:
            return int(item, 16)
        except ValueError:
            pass
    raise CheckpointError(f"the state holds a bad placeholder {key[:40]} at {pointer or '/'}")


def _escaped(key: object, pointer: str) -> str:
    if not isinstance(key, str):
        raise CheckpointError(
            f"the state has the key {key!r} at {pointer or '/'}; expected text keys only"
        )
    try:
        key.encode()
    except UnicodeEncodeError as error:
        raise CheckpointError(
            f"the state has a key that is not valid text at {pointer or '/'}: {error}"
        ) from error
    return f"${key}" if key.startswith("$") else key


def _child(pointer: str, key: object) -> str:
    name = str(key).replace("~", "~0").replace("/", "~1")
    return f"{pointer}/{name}"
