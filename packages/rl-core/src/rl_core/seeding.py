"""One seed for a run, spawned into independent generators by name.

Every part that draws random numbers has a generator of its own, derived from the run's seed and
the part's name through `numpy.random.SeedSequence`. Adding a part therefore does not change the
numbers of another. Generators are saved as tensors, numbers and text, without pickle.
"""

import hashlib
import json
import warnings
from typing import cast

import numpy as np
import torch
from torch import Tensor

from rl_core.config.validation import NonNegativeInt, check_argument
from rl_core.errors import CheckpointError, DeviceError, in_brief
from rl_core.types import StateValue

_STATE_BYTES = {5056: "cpu", 16: "cuda"}
"""The type of device of a torch generator's state, by its size in bytes."""


def spawn_generator(seed: int, name: str, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a torch generator with numbers of its own for each name.

    Args:
        seed: the run's seed, at least 0.
        name: purpose of the generator.
        device: device on which it draws.

    Raises:
        ConfigError: when the seed is negative.
        DeviceError: when the device is not available.
    """
    try:
        generator = torch.Generator(device=device)
    except RuntimeError as error:
        raise DeviceError(f"no generator on device {device}: {error}; use 'cpu'") from error
    return generator.manual_seed(_seed_word(seed, name))


def spawn_seed(seed: int, name: str, index: int = 0) -> int:
    """Return a seed for something that is seeded by a number, such as an environment.

    Args:
        seed: the run's seed, at least 0.
        name: purpose of the seed.
        index: number of the seed among several, such as the row of a vectorized environment.

    Returns:
        A number from 0 to 2**31 - 1, which every simulator accepts.

    Raises:
        ConfigError: when the seed is negative.
    """
    return _seed_word(seed, name, index) >> 33


def resumed_seed(seed: int, steps: int) -> int:
    """Derive the seed with which environments go on after a resume at some step."""
    return spawn_seed(seed, "resumed", steps)


def checked_seed(seed: int) -> int:
    """Return a seed as a plain number.

    Raises:
        ConfigError: if it is not a whole number, or negative.
    """
    return check_argument("seed", seed, NonNegativeInt)


def set_generator_state(generator: torch.Generator, state: StateValue) -> None:
    """Restore the state of a torch generator.

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
    """Return the state of a NumPy generator: JSON, because its integers have up to 128 bits."""
    return {"json": json.dumps(generator.bit_generator.state, default=np.ndarray.tolist)}


def set_numpy_generator_state(generator: np.random.Generator, state: StateValue) -> None:
    """Restore what `numpy_generator_state` returned, on a generator of the same type.

    Raises:
        CheckpointError: when it is not such a state, or from another type of generator.
    """
    try:
        generator.bit_generator.state = json.loads(cast("dict[str, str]", state)["json"])
    except (ValueError, TypeError, OverflowError, LookupError) as error:
        kind = type(generator.bit_generator).__name__
        raise CheckpointError(
            f"the saved state of a NumPy generator does not fit a {kind}: {in_brief(error)}"
        ) from error


def _seed_word(seed: int, name: str, index: int = 0) -> int:
    digest = hashlib.sha256(name.encode()).digest()
    words = np.frombuffer(digest, dtype="<u4").tolist()
    sequence = np.random.SeedSequence(checked_seed(seed), spawn_key=(*words, index))
    return int(sequence.generate_state(1, np.uint64)[0])


def _kind(value: object) -> str:
    if isinstance(value, Tensor):
        return f"a {str(value.dtype).removeprefix('torch.')} tensor of shape {tuple(value.shape)}"
    return f"a {type(value).__name__}"
