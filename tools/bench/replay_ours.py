"""The toolbox's side of the replay benchmark."""

from typing import Any

import numpy as np
import torch

from bench.replay_data import Step, goal_reward, make_errors
from bench.replay_operations import BATCH_SIZE, DATA, Data, Operation
from rl_core.batch import Transition
from rl_core.spaces import event_shape, tensor_dtype
from rl_core.storage import StorageSpec, TensorSpec, observation_spec
from rl_storages import HindsightConfig, PrioritizedConfig, ReplayBuffer


class Buffer:
    """Our replay buffer.

    Args:
        operation: what it is to do.
        size: transitions.
    """

    def __init__(self, operation: Operation, size: int) -> None:
        options: dict[str, Any] = {"n_step": operation.n_step}
        if operation.is_prioritized:
            options["prioritized"] = PrioritizedConfig()
        if operation.is_relabeled:
            options["hindsight"] = HindsightConfig(strategy="future", k=4)
            options["her_function"] = goal_reward
        self._buffer = _allocated(DATA[operation.data], size, options)
        self._learns = operation.is_prioritized
        self._errors = torch.from_numpy(make_errors(64, BATCH_SIZE))
        self._draws = 0

    def insert(self, step: Step) -> None:
        """Insert a transition."""
        self._buffer.insert_transition(
            Transition(
                observation=step.observation,
                action=step.action,
                reward=step.reward,
                terminated=_FALSE,
                truncated=step.is_last,
                valid=_TRUE,
                episode_start=step.is_first,
                next_observation=step.reset_observation,
                final_observation=step.next_observation if step.is_last[0] else None,
                state={},
                extras={},
            )
        )

    def draw(self) -> None:
        """Draw a batch, as after every step of an environment; learn its priorities."""
        for batch in self._buffer.generate_batches(1, BATCH_SIZE):
            if self._learns:
                self._draws += 1
                errors = self._errors[self._draws % len(self._errors)]
                self._buffer.after_gradients(batch, {"td_error": errors})

    @property
    def num_transitions(self) -> int:
        """How many transitions can be drawn."""
        return self._buffer.num_transitions


def count_bytes(data: Data, size: int) -> int:
    """Return what the transitions of a full buffer take."""
    options: dict[str, Any] = {}
    if data.frame_stack is not None:
        options["frame_stack"] = data.frame_stack
    return _allocated(data, size, options).nbytes


def _allocated(data: Data, size: int, options: dict[str, Any]) -> ReplayBuffer:
    buffer = ReplayBuffer(size, **options)
    spec = StorageSpec(
        observation=observation_spec(data.observation_space),
        action=TensorSpec(event_shape(data.action_space), tensor_dtype(data.action_space)),
        num_envs=1,
        state_sizes={},
        extras={},
        device=torch.device("cpu"),
    )
    buffer.allocate(spec, torch.Generator().manual_seed(0))
    return buffer


_TRUE, _FALSE = np.array([True]), np.array([False])
