"""A slow and obvious replay storage."""

from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import Tensor

from rl_core.batch import ReplayBatch, Trajectory, Transition
from rl_core.errors import CheckpointError, ConfigError
from rl_core.seeding import generator_state, set_generator_state
from rl_core.stateful import StateReader
from rl_core.storage import DataSlice, Storage, StorageSpec, join_observation
from rl_core.types import Observation, StateDict
from rl_testing._rows import (
    Places,
    Row,
    below,
    breaks_off,
    restored_rows,
    rows_of_slice,
    rows_of_transition,
    slice_of_rows,
    stack,
)


class ReferenceReplayStorage(Storage[ReplayBatch]):
    """A replay storage of Python lists: one list of rows per environment, split into episodes.

    Every row keeps the observation it led to, so nothing about a window has to be inferred: it is
    a piece of an episode. It copies row by row, so it is for tests only.

    It holds the newest ``size // num_envs`` rows of each environment, one per step, also where the
    step only reset the environment. It draws uniformly, with replacement.

    Args:
        size: rows over all environments, at most.
        n_step: rewards per transition, at most.

    Raises:
        ConfigError: when one of them is below 1.
    """

    batch_type: ClassVar[type] = ReplayBatch

    def __init__(self, size: int = 1000, n_step: int = 1) -> None:
        if size < 1 or n_step < 1:
            raise ConfigError(f"size and n_step must be at least 1, got {size} and {n_step}")
        self.size = size
        self.n_step = n_step
        self._spec: StorageSpec | None = None
        self._generator = torch.Generator()
        self._rows: list[list[Row]] = []
        self._inserted = 0
        self._told = 0

    @property
    def spec(self) -> StorageSpec | None:
        """What `allocate` was given last."""
        return self._spec

    def allocate(self, spec: StorageSpec, generator: torch.Generator) -> None:
        """Remember what will be inserted.

        Raises:
            ConfigError: when there is not one row for each environment.
        """
        if self.size < spec.num_envs:
            raise ConfigError(f"size={self.size} is less than the {spec.num_envs} environments")
        self._spec = spec
        self._generator = generator
        self._inserted = self._told = 0
        self._places = Places(spec.num_envs)
        self.reset()

    def insert_transition(self, transition: Transition) -> None:
        """Take in one row of each environment.

        Raises:
            DataError: when a column has another shape or dtype than was allocated.
        """
        self._insert(rows_of_transition(transition, self._allocated()))

    def episodes(self, env: int) -> list[list[Row]]:
        """Return what an environment's stored transitions are pieces of, oldest first.

        An episode is left where it ended, where the environment was reset, and where the next row
        is not known to go on from it (`Storage.insert_data_slice`). Rows that only reset are no
        transitions and belong to none.
        """
        episodes: list[list[Row]] = []
        for row in self._rows[env]:
            if row.begins or not episodes:
                episodes.append([])
            if row.columns["valid"]:
                episodes[-1].append(row)
        return [episode for episode in episodes if episode]

    def transitions(self) -> list[dict[str, Tensor]]:
        """Return every transition that can be drawn, as the columns of a batch.

        In the order of environments, and each one's oldest first.
        """
        return [self.transition(*place) for place in self.places()]

    def places(self) -> list[tuple[int, list[Row], int]]:
        """Return environment, episode, and place there, of every transition that can be drawn."""
        return [
            (env, episode, start)
            for env in range(self._allocated().num_envs)
            for episode in self.episodes(env)
            for start in range(len(episode))
        ]

    def trajectories(self) -> Iterator[Trajectory]:
        """Yield every environment's `episodes`."""
        for env in range(self._allocated().num_envs):
            for episode in self.episodes(env):
                columns = stack([row.columns for row in episode], 0)
                last = {name: part[None] for name, part in episode[-1].successor.items()}
                whole = {name: torch.cat((columns[name], part)) for name, part in last.items()}
                yield Trajectory(
                    observation=join_observation(whole),
                    action=columns["action"],
                    reward=columns["reward"],
                    terminated=bool(columns["terminated"][-1]),
                )

    def transition(self, env: int, episode: list[Row], start: int) -> dict[str, Tensor]:
        """Return the columns that a batch has of a transition.

        Its window ends with the first row that terminates, which need not be the episode's last
        where goals were relabelled.
        """
        window = []
        for row in episode[start : start + self.n_step]:
            window.append(row)
            if row.columns["terminated"]:
                break
        return self._transition(env, window)

    def sample_indices(
        self, num_mini_batch: int | None, mini_batch_size: int | None
    ) -> Iterator[Tensor]:
        """Draw places in `transitions`.

        Raises:
            ConfigError: when nothing is stored, or one of the sizes is missing or below 1.
        """
        count = len(self.transitions())
        if count == 0:
            raise ConfigError("the replay storage holds no transition yet; collect some first")
        if not num_mini_batch or not mini_batch_size or min(num_mini_batch, mini_batch_size) < 1:
            raise ConfigError(
                f"num_mini_batch and mini_batch_size must both be at least 1, got {num_mini_batch} "
                f"and {mini_batch_size}"
            )
        yield torch.randint(count, (num_mini_batch, mini_batch_size), generator=self._generator)

    def gather(self, indices: Tensor) -> Iterator[ReplayBatch]:
        """Make one batch per row of the block."""
        transitions = self.transitions()
        for places in indices.tolist():
            batch = stack([transitions[place] for place in places], 0)
            yield ReplayBatch(
                observation=join_observation(batch),
                action=batch["action"],
                reward=batch["reward"],
                num_steps=batch["num_steps"],
                terminated=batch["terminated"],
                next_observation=join_observation(batch, "next_observation"),
                weight=torch.ones_like(batch["reward"][:, 0]),
                mask=torch.ones_like(batch["reward"][:, 0]),
                key=batch["key"],
                extras=below("extras/", batch),
            )

    def new_observations(self) -> tuple[Observation, Tensor]:
        """Return what was inserted since the last call, as far as it is stored.

        Returns:
            Observations `(L, B, ...)`, and whether they were acted on, `(L, B)`.
        """
        new = [[row for row in rows if row.step >= self._told] for rows in self._rows]
        self._told = self._inserted
        data = slice_of_rows(new, self._allocated())
        return join_observation(data), data["valid"]

    def cut(self) -> None:
        """Let what is inserted next begin anew."""
        self._allocated()
        self._places.cut()

    def reset(self) -> None:
        """Forget the rows; those to come go on being numbered."""
        self._rows = [[] for _ in range(self.num_envs)]

    def __len__(self) -> int:
        """Return how many rows of each environment are stored."""
        return len(self._rows[0]) if self._rows else 0

    def get_data_slice(self, start: int, end: int) -> DataSlice:
        """Copy rows; every column is `(L, B, ...)`.

        Raises:
            ConfigError: when the rows are not all stored.
        """
        spec = self._allocated()
        if not 0 <= start <= end <= len(self):
            raise ConfigError(f"rows {start} to {end} are not within the {len(self)} stored ones")
        held = [rows[start:end] for rows in self._rows]
        return slice_of_rows(held, spec, self._places.storage)

    def insert_data_slice(self, data: DataSlice) -> None:
        """Append the rows of a slice.

        Raises:
            DataError: when columns are missing, of other shape or dtype, or of unequal length.
        """
        self._insert(rows_of_slice(data, self._allocated()))

    def state_dict(self) -> StateDict:
        """Return the stored rows, how many there have been and were told, and the generator's."""
        return {
            "data": dict(slice_of_rows(self._rows, self._allocated())),
            "places": self._places.state_dict(),
            "inserted": self._inserted,
            "told": self._told,
            "generator": generator_state(self._generator),
        }

    def load_state_dict(self, state: StateDict) -> None:
        """Take over a state returned by `state_dict`; the storage must be allocated.

        Raises:
            CheckpointError: when the rows do not fit this storage.
        """
        spec = self._allocated()
        saved = StateReader(state, "storage")
        saved.expect(("data", "places", "inserted", "told", "generator"))
        added = restored_rows(saved.tensors("data"), spec)
        earlier = saved.count("inserted") - len(added[0])
        if earlier < 0 or len(added[0]) > self._share():
            raise CheckpointError(
                f"{len(added[0])} rows are saved of {saved.count('inserted')}; expected up to "
                f"{self._share()}"
            )
        told = saved.count("told")
        places = Places(spec.num_envs)
        places.load_state_dict(saved.tree("places"))
        set_generator_state(self._generator, saved.tensor("generator"))
        self.reset()
        self._told = told
        self._inserted = earlier
        self._append(added)
        self._places = places

    def _allocated(self) -> StorageSpec:
        if self._spec is None:
            raise ConfigError("the storage is not allocated yet")
        return self._spec

    def _share(self) -> int:
        return self.size // self.num_envs

    def _insert(self, added: list[list[Row]]) -> None:
        self._places.number(added)
        self._append(added)

    def _append(self, added: list[list[Row]]) -> None:
        for rows, new in zip(self._rows, added, strict=True):
            for step, row in enumerate(new, start=self._inserted):
                row.step = step
                row.begins = not rows or _is_last(rows[-1]) or breaks_off(rows[-1], row)
                rows.append(row)
            del rows[: -self._share()]
        self._inserted += len(added[0])

    def _transition(self, env: int, window: list[Row]) -> dict[str, Tensor]:
        """Make one transition of the rows it goes over."""
        first, last = window[0].columns, window[-1]
        reward = torch.zeros(self.n_step, device=first["reward"].device)
        reward[: len(window)] = torch.stack([row.columns["reward"] for row in window])
        generation, row = divmod(window[0].step, self._share())
        return {
            **{name: value for name, value in first.items() if not name.startswith(_NOT_DRAWN)},
            "reward": reward,
            "num_steps": torch.tensor(len(window), device=reward.device),
            "terminated": last.columns["terminated"],
            **{f"next_{name}": value for name, value in last.successor.items()},
            "key": torch.tensor([row * self.num_envs + env, generation], device=reward.device),
        }


_NOT_DRAWN = ("truncated", "valid", "episode_start", "state/")
"""Columns of a row that are no part of a batch of transitions."""


def _is_last(row: Row) -> bool:
    columns = row.columns
    return bool(columns["terminated"] or columns["truncated"] or not columns["valid"])
