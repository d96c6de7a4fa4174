"""A rollout storage that keeps a list of steps."""

from collections.abc import Iterator, Mapping
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from rl_core.batch import PREPARED_COLUMNS, Rollout, RolloutBatch, Transition
from rl_core.errors import CheckpointError, ConfigError, DataError
from rl_core.seeding import generator_state, set_generator_state
from rl_core.stateful import StateReader
from rl_core.storage import (
    ORIGIN,
    Continuity,
    DataSlice,
    Storage,
    StorageSpec,
    TensorSpec,
    join_observation,
    observation_columns,
)
from rl_core.types import ArrayLike, ArrayObservation, StateDict

_FLAGS = ("terminated", "truncated", "valid", "episode_start")


class StepList(Storage[RolloutBatch]):
    """Keep each step of a rollout as one dict of columns, and stack them when asked.

    Beside its observation a step holds two more: ``next/...``, which the next step acts on, and
    ``successor/...``, which its action led to. They differ where an episode ended and its
    environment reset in the same step. Recurrent actors are not supported.

    Args:
        num_steps: rows per rollout.

    Raises:
        ConfigError: when ``num_steps`` is below 1.
    """

    batch_type: ClassVar[type] = RolloutBatch

    def __init__(self, num_steps: int = 32) -> None:
        if num_steps < 1:
            raise ConfigError(f"storage.num_steps must be at least 1, got {num_steps}")
        self.num_steps = num_steps
        self._spec: StorageSpec | None = None
        self._generator = torch.Generator()
        self._columns: dict[str, TensorSpec] = {}
        self._steps: list[dict[str, Tensor]] = []
        self._attached: dict[str, Tensor] = {}

    @property
    def spec(self) -> StorageSpec | None:
        """What `allocate` was given last."""
        return self._spec

    @property
    def rollout_steps(self) -> int:
        """Rows per rollout."""
        return self.num_steps

    def allocate(self, spec: StorageSpec, generator: torch.Generator) -> None:
        """Write down which columns a step has.

        Raises:
            ConfigError: when the actor is recurrent.
        """
        if spec.state_sizes:
            raise ConfigError("storage step-list keeps no recurrent state; use rollout instead")
        self._spec, self._generator = spec, generator
        self._continuity = Continuity(spec.num_envs)
        self._columns = {
            **observation_columns(spec.observation),
            **observation_columns(spec.observation, "next"),
            **observation_columns(spec.observation, "successor"),
            "action": spec.action,
            "reward": TensorSpec((), torch.float32),
            **dict.fromkeys(_FLAGS, TensorSpec((), torch.bool)),
            **{f"extras/{name}": extra for name, extra in spec.extras.items()},
        }
        self.reset()

    def insert_transition(self, transition: Transition) -> None:
        """Append one step of all environments.

        Raises:
            ConfigError: when the rollout is full or nothing was allocated.
        """
        device = self._allocated().device
        if len(self) == self.num_steps:
            raise ConfigError(f"the rollout is full after {self.num_steps} steps; update from it")
        final, following = transition.final_observation, transition.next_observation
        step: dict[str, ArrayLike] = {
            **_named("observation", transition.observation),
            **_named("next", following),
            **_named("successor", following if final is None else final),
            "action": transition.action,
            "reward": transition.reward,
            **{name: getattr(transition, name) for name in _FLAGS},
            **{f"extras/{name}": extra for name, extra in transition.extras.items()},
        }
        self._append(
            {name: torch.as_tensor(step[name]).to(device, copy=True) for name in self._columns},
            self._continuity.breaks(),
        )
        self._continuity.inserted()

    def sample_indices(
        self, num_mini_batch: int | None, mini_batch_size: int | None
    ) -> Iterator[Tensor]:
        """Shuffle the samples and deal them out to minibatches.

        Raises:
            ConfigError: when the sizes contradict each other or the rollout.
        """
        samples = len(self) * self._allocated().num_envs
        if (num_mini_batch is None) == (mini_batch_size is None):
            raise ConfigError("give just one of num_mini_batch and mini_batch_size")
        if max(num_mini_batch or 1, mini_batch_size or 1) > samples:
            given = f"num_mini_batch={num_mini_batch}, mini_batch_size={mini_batch_size}"
            raise ConfigError(f"{given}: the rollout has only {samples} samples")
        count = num_mini_batch or -(-samples // (mini_batch_size or 1))
        order = torch.randperm(samples, generator=self._generator)
        dealt = F.pad(order, (0, -samples % count), value=-1).view(-1, count).T
        yield dealt.to(self._allocated().device)

    def gather(self, indices: Tensor) -> Iterator[RolloutBatch]:
        """Make one batch per row of the block; padding has mask 0.

        Raises:
            ConfigError: when no advantages were attached.
        """
        missing = [name for name in PREPARED_COLUMNS if name not in self._attached]
        if missing:
            raise ConfigError(f"attach the prepared columns first; missing: {', '.join(missing)}")
        columns = {**self._stacked(0, len(self)), **self._attached}
        samples = {name: column.flatten(0, 1) for name, column in columns.items()}
        for chosen in indices:
            batch = {name: column[chosen.clamp(min=0)] for name, column in samples.items()}
            yield RolloutBatch(
                observation=join_observation(batch),
                mask=(batch["valid"] & (chosen >= 0)).to(torch.float32),
                **{name: batch[name] for name in ("action", "episode_start", *PREPARED_COLUMNS)},
                state={},
                extras=_extras(batch),
            )

    def rollout(self) -> Rollout:
        """Stack all steps.

        Raises:
            ConfigError: when steps are missing.
        """
        if len(self) < self.num_steps:
            raise ConfigError(f"the rollout has {len(self)} of {self.num_steps} steps")
        columns = self._stacked(0, len(self))
        final_index = columns["truncated"].nonzero()
        finals = {name: column[tuple(final_index.T)] for name, column in columns.items()}
        return Rollout(
            observation=join_observation(columns),
            next_observation=join_observation(self._steps[-1], "next"),
            **{name: columns[name] for name in ("action", "reward", *_FLAGS)},
            state={},
            final_index=final_index,
            final_observation=join_observation(finals, "successor"),
            extras=_extras(columns),
        )

    def attach(self, columns: Mapping[str, Tensor]) -> None:
        """Keep prepared columns; names beyond a batch's fields go to its extras.

        Raises:
            DataError: when a column has another leading shape than the rollout.
        """
        shape = (len(self), self._allocated().num_envs)
        for name, column in columns.items():
            if column.shape[:2] != shape:
                got = tuple(column.shape)
                raise DataError(f"prepared column '{name}': expected leading {shape}, got {got}")
            key = name if name in PREPARED_COLUMNS else f"extras/{name}"
            self._attached[key] = column

    def after_update(self) -> None:
        """Forget the rollout that was learned from."""
        self.reset()

    def cut(self) -> None:
        """Let running episodes count as truncated, where what comes next belongs to others."""
        self._allocated()
        self._continuity.cut()

    def reset(self) -> None:
        """Start a new rollout."""
        if self._spec is not None:
            self._continuity.forget(len(self))
        self._steps, self._attached = [], {}

    def __len__(self) -> int:
        """Return how many steps are stored."""
        return len(self._steps)

    def get_data_slice(self, start: int, end: int) -> DataSlice:
        """Stack some steps; every column is `(L, B, ...)`.

        Raises:
            ConfigError: when the steps are not all stored.
        """
        self._allocated()
        if not 0 <= start <= end <= len(self):
            raise ConfigError(f"steps {start} to {end} are not within the {len(self)} stored ones")
        return {ORIGIN: self._continuity.origin(start), **self._stacked(start, end)}

    def insert_data_slice(self, data: DataSlice) -> None:
        """Append the steps of a slice, which go on where another one of its storage ended.

        Raises:
            DataError: when columns are missing, of other shape or dtype, or too long.
        """
        spec = self._allocated()
        length = len(data["reward"]) if "reward" in data else 0
        for name, column in self._columns.items():
            given, shape = data.get(name), (length, spec.num_envs, *column.shape)
            if given is None or given.shape != shape or given.dtype != column.dtype:
                got = "nothing" if given is None else f"{given.dtype} of {tuple(given.shape)}"
                raise DataError(f"column '{name}': expected {column.dtype} of {shape}, got {got}")
        if len(self) + length > self.num_steps:
            raise DataError(f"a slice of {length} steps does not fit")
        origin = self._continuity.checked_origin(data)
        breaks = self._continuity.breaks_before(origin)
        for row in range(length):
            self._append(
                {name: data[name][row].to(spec.device, copy=True) for name in self._columns},
                breaks & (row == 0),
            )
        self._continuity.appended(origin, torch.full((spec.num_envs,), length))

    def state_dict(self) -> StateDict:
        """Return the steps and the generator's state."""
        return {
            "data": self._stacked(0, len(self)) if self._steps else {},
            "continuity": self._continuity.state_dict(),
            "generator": generator_state(self._generator),
        }

    def load_state_dict(self, state: StateDict) -> None:
        """Take over a state returned by `state_dict`; the storage must be allocated.

        Raises:
            CheckpointError: when the steps do not fit this storage.
        """
        self._allocated()
        saved = StateReader(state, "storage")
        self.reset()
        if saved.tree("data"):
            try:
                origin = {ORIGIN: self._continuity.origin(0)}
                self.insert_data_slice(saved.tensors("data") | origin)
            except DataError as error:
                raise CheckpointError(f"the saved rollout does not fit: {error}") from error
        self._continuity.load_state_dict(saved.tree("continuity"))
        set_generator_state(self._generator, saved.tensor("generator"))

    def _stacked(self, start: int, end: int) -> dict[str, Tensor]:
        """Return some steps as columns `(L, B, ...)`."""
        if start == end:
            envs = self._allocated().num_envs
            return {
                name: torch.zeros((0, envs, *column.shape), dtype=column.dtype)
                for name, column in self._columns.items()
            }
        steps = self._steps[start:end]
        return {name: torch.stack([step[name] for step in steps]) for name in self._columns}

    def _append(self, step: dict[str, Tensor], breaks: Tensor) -> None:
        """Add a step; episodes of the last one that do not go on in it count as truncated."""
        if self._steps:
            last = self._steps[-1]
            elsewhere = step["episode_start"] | breaks.to(step["episode_start"].device)
            goes_on = last["valid"] & ~last["terminated"]
            last["truncated"] |= goes_on & elsewhere
        self._steps.append(step)
        self._attached = {}

    def _allocated(self) -> StorageSpec:
        if self._spec is None:
            raise ConfigError("the storage is not allocated yet; a Trainer does it")
        return self._spec


def _named(prefix: str, observation: ArrayObservation) -> dict[str, ArrayLike]:
    if isinstance(observation, Mapping):
        return {f"{prefix}/{key}": value for key, value in observation.items()}
    return {prefix: observation}


def _extras(columns: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {
        name.removeprefix("extras/"): column
        for name, column in columns.items()
        if name.startswith("extras/")
    }
