"""One seed for a run, spawned into independent generators by name.

Every part that draws random numbers has a generator of its own, derived from the run's seed and
the part's name through `numpy.random.SeedSequence`. Adding a part therefore does not change the
numbers of another. Generators are saved as tensors, numbers and text, without pickle.
"""

import hashlib
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor

from rl_core.errors import CheckpointError, ConfigError, DeviceError
from rl_core.types import StateDict, StateValue

_STATE_BYTES = {5056: "cpu", 16: "cuda"}
"""The type of device of a torch generator's state, by its size in bytes."""

_DIGITS = re.compile(r"[0-9]{1,40}", re.ASCII)


def spawn_generators(
    seed: int, names: Sequence[str], device: torch.device | str = "cpu"
) -> dict[str, torch.Generator]:
    """Return one torch generator per name.

    Args:
        seed: the run's seed, at least 0.
        names: distinct names; the numbers of one do not depend on the others.
        device: device on which the generators draw.

    Raises:
        ConfigError: when the seed is negative or a name occurs twice.
        DeviceError: when the device is not available.
    """
    if len(set(names)) != len(names):
        repeated = sorted({name for name in names if list(names).count(name) > 1})
        raise ConfigError(f"got the generator names {repeated} twice; expected distinct names")
    return {name: _generator(_seed_word(seed, name), device) for name in names}


def spawn_seed(seed: int, name: str, index: int = 0) -> int:
    """Return a seed for something that is seeded by a number, such as an environment.

    Args:
        seed: the run's seed, at least 0.
        name: purpose of the seed.
        index: number of the seed among several, such as the row of a vectorised environment.

    Returns:
        A number from 0 to 2**31 - 1, which every simulator accepts.

    Raises:
        ConfigError: when the seed or the index is negative.
    """
    if isinstance(index, bool) or not isinstance(index, int) or index < 0:
        raise ConfigError(f"got index {index!r}; expected an integer of at least 0")
    return _seed_word(seed, name, index) >> 33


def generator_state(generator: torch.Generator) -> Tensor:
    """Return the state of a torch generator, dtype uint8 on the CPU."""
    return generator.get_state()


def set_generator_state(generator: torch.Generator, state: StateValue) -> None:
    """Restore what `generator_state` returned.

    A state from another type of device cannot be continued. It seeds the generator instead, with a
    warning: the following numbers are reproducible, but not those of an uninterrupted run.

    Raises:
        CheckpointError: when it is not such a state.
    """
    if not isinstance(state, Tensor) or state.dtype != torch.uint8 or state.dim() != 1:
        raise CheckpointError(f"a generator's state is {_kind(state)}; expected a uint8 tensor")
    state = state.cpu().contiguous()
    kind = _STATE_BYTES.get(state.numel(), generator.device.type)
    if kind != generator.device.type:
        digest = hashlib.sha256(state.numpy().tobytes()).digest()
        generator.manual_seed(int.from_bytes(digest[:8]) >> 1)
        warnings.warn(
            f"a generator that was saved on {kind} continues with other numbers on "
            f"{generator.device}: the run will differ from an uninterrupted one",
            RuntimeWarning,
            stacklevel=2,
        )
        return
    try:
        generator.set_state(state)
    except RuntimeError as error:
        raise CheckpointError(
            f"a generator's state of {state.numel()} bytes does not fit one on"
            f" {generator.device} ({error})"
        ) from error


def numpy_generator_state(generator: np.random.Generator) -> dict[str, StateValue]:
    """Return the state of a NumPy generator, integers as text and arrays as tensors."""
    return cast("dict[str, StateValue]", _to_state(dict(generator.bit_generator.state)))


def set_numpy_generator_state(generator: np.random.Generator, state: StateDict) -> None:
    """Restore what `numpy_generator_state` returned, on a generator of the same type.

    Raises:
        CheckpointError: when it is not such a state, or from another type of generator.
    """
    current = dict(generator.bit_generator.state)
    saved = state.get("bit_generator")
    if saved != current["bit_generator"]:
        raise CheckpointError(
            f"a NumPy generator's state is of kind {saved!r}; expected {current['bit_generator']}"
        )
    restored = cast("dict[str, object]", _from_state(current, state, "state"))
    try:
        generator.bit_generator.state = restored
    except (ValueError, TypeError, OverflowError, KeyError) as error:
        raise CheckpointError(f"a NumPy generator's state does not fit: {error}") from error


def _seed_word(seed: int, name: str, index: int = 0) -> int:
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ConfigError(f"got seed {seed!r}; expected an integer of at least 0")
    digest = hashlib.sha256(name.encode()).digest()
    words = np.frombuffer(digest, dtype="<u4").tolist()
    sequence = np.random.SeedSequence(seed, spawn_key=(*words, index))
    return int(sequence.generate_state(1, np.uint64)[0])


def _generator(seed: int, device: torch.device | str) -> torch.Generator:
    try:
        generator = torch.Generator(device=device)
    except RuntimeError as error:
        raise DeviceError(f"no generator on device {device}: {error}; use 'cpu'") from error
    return generator.manual_seed(seed)


def _to_state(value: object) -> StateValue:
    if isinstance(value, dict):
        return {key: _to_state(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value.copy())
    if isinstance(value, str):
        return value
    assert isinstance(value, int | np.integer)
    return str(int(value))


def _from_state(current: object, saved: StateValue, path: str) -> object:
    """Convert a saved value to the form that the current state has at the same place."""
    if isinstance(current, dict):
        if not isinstance(saved, Mapping) or set(saved) != set(current):
            raise CheckpointError(
                f"a NumPy generator's {path} is {_kind(saved)}; expected {sorted(current)}"
            )
        return {
            key: _from_state(item, saved[key], f"{path}.{key}") for key, item in current.items()
        }
    if isinstance(current, np.ndarray):
        if not isinstance(saved, Tensor) or tuple(saved.shape) != current.shape:
            raise CheckpointError(
                f"a NumPy generator's {path} is {_kind(saved)}; expected a tensor of shape"
                f" {current.shape}"
            )
        return saved.cpu().numpy().astype(current.dtype)
    if isinstance(current, str):
        return saved
    if not isinstance(saved, str) or not _DIGITS.fullmatch(saved):
        raise CheckpointError(f"a NumPy generator's {path} is {_kind(saved)}; expected digits")
    return int(saved)


def _kind(value: object) -> str:
    if isinstance(value, Tensor):
        return f"a {str(value.dtype).removeprefix('torch.')} tensor of shape {tuple(value.shape)}"
    return f"a {type(value).__name__}"
