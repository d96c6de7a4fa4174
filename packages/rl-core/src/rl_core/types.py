"""Types that all packages share, and the few functions over them.

Axes: ``T`` time, ``B`` environments, ``N`` flattened samples, ``D`` features. A rollout is
``(T, B, ...)``, a replay batch ``(N, ...)``, a sequence batch ``(T, N, ...)``.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from torch import Tensor

Array: TypeAlias = npt.NDArray[np.generic]
"""A NumPy array of any dtype."""

ArrayLike: TypeAlias = Array | Tensor
"""What a vectorised environment may hand out: a NumPy array or a tensor."""

Observation: TypeAlias = Tensor | Mapping[str, Tensor]
"""One tensor, or for a dict space one tensor per key (nested keys are joined with ``/``)."""

ArrayObservation: TypeAlias = ArrayLike | Mapping[str, ArrayLike]
"""An observation as an environment gives it."""

State: TypeAlias = Mapping[str, Tensor]
"""Recurrent state by network name, each ``(N, S)``; empty for feed-forward networks."""

Metrics: TypeAlias = Mapping[str, float]
"""Scalars by path, such as ``loss/policy``."""

Json: TypeAlias = bool | int | float | str | list["Json"] | dict[str, "Json"] | None
"""What a JSON document can hold."""

StateValue: TypeAlias = (
    "bool | int | float | str | Tensor | Sequence[StateValue] | StateDict | None"
)
"""A leaf or branch of a state dict: tensors, numbers, strings, lists and dicts only."""

StateDict: TypeAlias = "Mapping[str, StateValue]"
"""What `Stateful.state_dict` returns."""


def map_observation(function: Callable[[Tensor], Tensor], observation: Observation) -> Observation:
    """Apply a function to the tensor, or to each tensor, of an observation."""
    if isinstance(observation, Tensor):
        return function(observation)
    return {key: function(value) for key, value in observation.items()}
