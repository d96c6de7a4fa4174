"""The replay storage of meta-learning: transitions by task, and recent ones as contexts."""

from collections.abc import Iterator

import torch
from torch import Tensor

from rl_core.batch import ReplayBatch, Transition
from rl_core.config import Count, checked_arguments
from rl_core.errors import CheckpointError, ConfigError, DataError, in_brief
from rl_core.stateful import StateReader
from rl_core.storage import Storage, StorageSpec, TensorSpec
from rl_core.types import ArrayObservation, StateDict, to_flags, to_numbers, to_tensors

CONTEXT_COLUMNS = ("observation", "action", "reward", "next_observation")
"""What a context says of each transition; in the extras of a batch as ``context/observation``."""


class TaskReplayStorage(Storage[ReplayBatch]):
    """Keep a replay buffer for each task, filled rollout by rollout.

    A rollout is collected first. `store_rollout` then says which row belongs to which task, and
    whether its transitions are part of the task's context: those stored as such since
    `clear_context`. A context is a range of its buffer, so that nothing is stored twice.

    A batch takes ``meta_batch_size`` random tasks, and of each ``minibatch_size`` transitions for
    learning and ``context_size`` for inferring the task: M N transitions, those of a task one after
    the other, and extras ``context/...`` of shape `(M, C, ...)`. All are drawn with replacement. A
    context of several rollouts is drawn from a random number of its first ones, because beliefs are
    asked for after each of them.

    Args:
        num_steps: rows per rollout.
        capacity: transitions of each task.
        meta_batch_size: tasks in a batch, M.
        context_size: transitions in a context, C.

    Raises:
        ConfigError: unless all are whole numbers of at least 1.
    """

    batch_type = ReplayBatch

    @checked_arguments("storage")
    def __init__(
        self,
        num_steps: Count = 100,
        capacity: Count = 10_000,
        meta_batch_size: Count = 16,
        context_size: Count = 64,
    ) -> None:
        self.num_steps = self.rollout_steps = num_steps
        self.capacity = capacity
        self.meta_batch_size = meta_batch_size
        self.context_size = context_size
        self._count = 0

    def allocate(self, spec: StorageSpec, generator: torch.Generator) -> None:
        """Make room for a rollout; tasks get theirs with their first rollout.

        Raises:
            ConfigError: for observations that are not one array, rewards that are scaled, or when
                there is no memory for the rollout.
        """
        if spec.scales_rewards:
            raise ConfigError(
                "task-replay keeps contexts, whose rewards would be scaled in training but not in "
                "evaluations; set trainer.scale_rewards to False, and reward_scale among the "
                "algorithm's inner_options instead"
            )
        if not isinstance(spec.observation, TensorSpec):
            raise ConfigError("task-replay keeps observations that are one array; flatten them")
        self._specs = {
            "observation": spec.observation,
            "action": spec.action,
            "reward": TensorSpec((), torch.float32),
            "terminated": TensorSpec((), torch.bool),
            "next_observation": spec.observation,
        }
        self._rollout = self._new_columns(self.num_steps, spec.num_envs)
        self._valid = torch.zeros(self.num_steps, spec.num_envs, dtype=torch.bool)
        self._columns = self._new_columns(0, self.capacity)  # (tasks, capacity, ...)
        # Of each task: transitions stored in all, at which of them its context starts and ends, and
        # of how many rollouts it is.
        self._stored = torch.zeros(0, 4, dtype=torch.int64)
        self._count = 0
        super().allocate(spec, generator)

    def insert_transition(self, transition: Transition) -> None:
        """Take in one row of the rollout.

        Raises:
            ConfigError: when the rollout is complete, or nothing was allocated.
            DataError: when a column has another shape or dtype than was allocated.
        """
        self.check_allocated()
        if self._count == self.num_steps:
            raise ConfigError(f"the rollout is complete after {self.num_steps} steps; update first")
        terminated, truncated = to_flags(transition.terminated), to_flags(transition.truncated)
        next_observation = self._fit("next_observation", transition.next_observation)
        if transition.final_observation is not None:
            final = self._fit("next_observation", transition.final_observation)
            ended = torch.from_numpy(terminated | truncated)
            next_observation = torch.where(
                ended.view(-1, *[1] * (next_observation.dim() - 1)), final, next_observation
            )
        row = {
            "observation": self._fit("observation", transition.observation),
            "action": self._fit("action", transition.action),
            "reward": self._fit("reward", to_numbers(transition.reward)),
            "terminated": self._fit("terminated", terminated),
            "next_observation": next_observation,
        }
        for name, column in self._rollout.items():
            column[self._count] = row[name]
        self._valid[self._count] = torch.from_numpy(to_flags(transition.valid))
        self._count += 1

    def _fit(self, name: str, value: ArrayObservation) -> Tensor:
        """Return one row of a column as a tensor."""
        column = self._rollout[name]
        row = to_tensors(value, torch.device("cpu"))
        if not isinstance(row, Tensor):
            raise DataError(f"transition.{name}: got a dict; expected an array")
        if (row.shape, row.dtype) != (column.shape[1:], column.dtype):
            raise DataError(
                f"transition.{name}: got {row.dtype} of shape {tuple(row.shape)}; expected "
                f"{column.dtype} of shape {tuple(column.shape[1:])}, as the storage was allocated "
                "for"
            )
        return row

    def store_rollout(self, tasks: Tensor, *, is_context: bool) -> None:
        """Move the rollout into the buffers of its tasks.

        Args:
            tasks: shape `(B,)`, int64, the number of each row's task, from 0.
            is_context: whether the transitions are part of the context; they follow on those that
                are part of it already.

        Raises:
            ConfigError: when a task has more transitions in its context than its buffer holds, or
                there is no memory for the buffers of new tasks.
        """
        missing = int(tasks.max()) + 1 - len(self._stored)
        if missing > 0:
            filled = _filled(self._stored, self.capacity)
            larger = self._new_columns(len(self._stored) + missing, self.capacity)
            for name, column in self._columns.items():
                larger[name][: len(column), :filled] = column[:, :filled]
            self._columns = larger
            self._stored = torch.cat([self._stored, self._stored.new_zeros(missing, 4)])
        for task in sorted(set(tasks.tolist())):
            rows = tasks == task
            valid = self._valid[: self._count, rows].T  # one environment after the other
            stored, start, _, _ = self._stored[task].tolist()
            end = stored + int(valid.sum())
            if end - start > self.capacity:
                raise ConfigError(
                    f"storage.capacity={self.capacity} is less than the {end - start} transitions "
                    "since a task's context began; make it larger"
                )
            slots = torch.arange(stored, end) % self.capacity
            for name, column in self._rollout.items():
                self._columns[name][task, slots] = column[: self._count, rows].transpose(0, 1)[
                    valid
                ]
            self._stored[task, 0] = end
            if is_context:
                self._stored[task, 2] = end
                self._stored[task, 3] += 1
        self._count = 0

    def clear_context(self, tasks: Tensor) -> None:
        """Let the contexts of tasks begin with what is stored next; buffers stay as they are.

        Args:
            tasks: int64, their numbers.
        """
        known = tasks[tasks < len(self._stored)]
        self._stored[known, 1:3] = self._stored[known, :1]
        self._stored[known, 3] = 0

    def context(self, tasks: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Return all that the contexts of tasks hold.

        Args:
            tasks: shape `(M,)`, int64.

        Returns:
            The `CONTEXT_COLUMNS`, each `(M, C, ...)`, and which entries count, `(M, C)`.
        """
        start, end = self._stored[tasks, 1:3, None].unbind(1)  # (M, 1)
        order = start + torch.arange(int((end - start).max()))
        return self._rows(tasks, order), (order < end).to(self._device)

    def sample_indices(
        self, num_minibatches: int | None, minibatch_size: int | None
    ) -> Iterator[Tensor]:
        """Draw tasks that have a context, and of each ``minibatch_size`` transitions.

        Raises:
            ConfigError: when no task has any.
        """
        stored, start, end, _ = self._stored.unbind(1)
        known = (end > start).nonzero().squeeze(1)
        if not len(known):
            raise ConfigError("no task has a context yet; collect some transitions first")
        size = minibatch_size or 1
        for _ in range(num_minibatches or 1):
            tasks = known[self._draw(torch.full((self.meta_batch_size,), len(known)), 1)[:, 0]]
            slots = self._draw(stored[tasks].clamp(max=self.capacity), size)
            yield (tasks.unsqueeze(1) * self.capacity + slots).view(1, -1)

    def gather(self, indices: Tensor) -> Iterator[ReplayBatch]:
        """Make one batch of each row of indices, and draw the contexts of its tasks."""
        device = self._device
        for row in indices:
            tasks, slots = row // self.capacity, row % self.capacity
            chosen = tasks.view(self.meta_batch_size, -1)[:, 0]
            start, end, rollouts = self._stored[chosen, 1:].unbind(1)
            first = 1 + self._draw(rollouts, 1).squeeze(1)  # 1 to all of them
            length = (end - start) * first // rollouts
            context = self._rows(chosen, start.unsqueeze(1) + self._draw(length, self.context_size))
            columns = {n: column[tasks, slots].to(device) for n, column in self._columns.items()}
            ones = torch.ones(len(row), device=device)
            yield ReplayBatch(
                observation=columns["observation"],
                action=columns["action"],
                reward=columns["reward"].unsqueeze(1),
                num_steps=torch.ones(len(row), dtype=torch.int64, device=device),
                terminated=columns["terminated"],
                next_observation=columns["next_observation"],
                weight=ones,
                mask=ones,
                index=torch.stack([row, torch.zeros_like(row)], 1).to(device),
                extras={f"context/{name}": column for name, column in context.items()},
            )

    def after_update(self) -> None:
        """Begin a new rollout."""
        self._count = 0

    def reset(self) -> None:
        """Forget all tasks and the rollout."""
        self._columns = {name: column[:0] for name, column in self._columns.items()}
        self._stored = self._stored[:0]
        self._count = 0

    def __len__(self) -> int:
        """Return how many steps the present rollout has."""
        return self._count

    def state_dict(self) -> StateDict:
        """Return the buffers as far as they are filled, the rollout, and the generator's state."""
        self.check_allocated()
        filled = _filled(self._stored, self.capacity)
        return {
            **super().state_dict(),
            "capacity": self.capacity,
            "columns": {name: column[:, :filled] for name, column in self._columns.items()},
            "stored": self._stored,
            "rollout": {name: column[: self._count] for name, column in self._rollout.items()},
            "valid": self._valid[: self._count],
        }

    state_fields = ("generator",)

    def load_state_dict(self, state: StateDict) -> None:
        """Take over a state returned by `state_dict`; the storage must be allocated.

        Raises:
            CheckpointError: when it does not fit this storage; nothing is changed then.
        """
        saved = StateReader(state, "storage")
        saved.expect(self.state_dict())
        if saved.count("capacity") != self.capacity:
            raise CheckpointError(
                f"the saved buffers hold {saved.count('capacity')} transitions of each task, these "
                f"{self.capacity}; resume with the same storage.capacity"
            )
        num_tasks, count = len(saved.tensor("stored")), len(saved.tensor("valid"))
        stored = saved.tensor("stored", like=self._stored.new_empty(num_tasks, 4))
        valid = saved.tensor("valid", like=self._valid[:count])
        filled = _filled(stored, self.capacity)
        columns, rollout = saved.reader("columns"), saved.reader("rollout")
        loaded, rows = self._new_columns(num_tasks, self.capacity), {}
        for name, column in loaded.items():
            column[:, :filled] = columns.tensor(name, like=column[:, :filled])
            rows[name] = rollout.tensor(name, like=self._rollout[name][:count])
        self.load_fields(saved)
        self._stored, self._columns, self._count = stored.to("cpu", copy=True), loaded, count
        self._valid[:count] = valid
        for name, row in rows.items():
            self._rollout[name][:count] = row

    def _new_columns(self, *rows: int) -> dict[str, Tensor]:
        try:
            return {name: spec.zeros(*rows) for name, spec in self._specs.items()}
        except (MemoryError, ValueError) as error:
            raise ConfigError(
                f"storage: there is no memory for {' x '.join(map(str, rows))} transitions "
                f"({in_brief(error)}); make storage.capacity or storage.num_steps smaller"
            ) from error

    @property
    def _device(self) -> torch.device:
        return self.check_allocated().device

    def _rows(self, tasks: Tensor, order: Tensor) -> dict[str, Tensor]:
        """Return the context columns at places in the order of storing, each `(M, C, ...)`."""
        place = tasks.unsqueeze(1), order % self.capacity
        return {name: self._columns[name][place].to(self._device) for name in CONTEXT_COLUMNS}

    def _draw(self, limits: Tensor, count: int) -> Tensor:
        """Draw numbers below each limit `(M,)`, shape `(M, count)`."""
        shape = (len(limits), count)
        drawn = torch.rand(shape, generator=self.generator, dtype=torch.float64)
        return (drawn * limits.unsqueeze(1)).long()


def _filled(stored: Tensor, capacity: int) -> int:
    """Return how many transitions the fullest buffer holds."""
    return int(stored[:, 0].clamp(max=capacity).max()) if len(stored) else 0
