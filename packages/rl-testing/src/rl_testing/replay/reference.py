"""Slow and obvious storages of replayed transitions and sequences: the oracles for fast ones."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rl_core.batch import ReplayBatch, Trajectory
from rl_core.errors import ConfigError
from rl_core.stateful import StateReader
from rl_core.storage import HasTrajectories, StorageSpec, join_observation
from rl_core.types import Observation, StateDict
from rl_testing._rows import Row, RowStorage, assembled, stack

_NOT_DRAWN = ("truncated", "valid", "episode_start", "state/", "next/", "successor/")
"""Columns of a row that are not part of a batch of transitions."""


class ReferenceReplayStorage(RowStorage[ReplayBatch], HasTrajectories[ReplayBatch]):
    """A replay storage of Python lists: one list of rows per environment, split into episodes.

    Every row keeps the observation it led to, so nothing about a window has to be inferred: it is
    a piece of an episode. It copies row by row, so it is for tests only.

    It holds the newest ``size // num_envs`` rows of each environment, one per step, also where the
    step only reset the environment. It draws uniformly, with replacement.

    Args:
        size: rows over all environments, at most.
        n_step: rewards per transition, at most.

    Attributes:
        learned: transitions to learn from in each sample.
        burn_in: transitions before them.

    Raises:
        ConfigError: when one of them is below 1.
    """

    batch_type: ClassVar[type] = ReplayBatch
    learned: int = 1
    burn_in: int = 0

    def __init__(self, size: int = 1000, n_step: int = 1) -> None:
        super().__init__()
        if size < 1 or n_step < 1:
            raise ConfigError(f"size and n_step must be at least 1, got {size} and {n_step}")
        self.size = size
        self.n_step = n_step
        self._reported = 0

    def allocate(self, spec: StorageSpec, generator: torch.Generator) -> None:
        """Remember what will be inserted.

        Raises:
            ConfigError: when there is not one row for each environment.
        """
        if self.size < spec.num_envs:
            raise ConfigError(f"size={self.size} is less than the {spec.num_envs} environments")
        super().allocate(spec, generator)
        self._reported = 0

    def episodes(self, env: int) -> list[list[Row]]:
        """Return what an environment's stored transitions are pieces of, oldest first.

        An episode is left where it ended, where the environment was reset, and where the next row
        is not known to continue it (`Storage.insert_data_slice`). Rows that only reset are no
        transitions and belong to none.
        """
        episodes: list[list[Row]] = []
        for row in self._rows[env]:
            if row.begins or not episodes:
                episodes.append([])
            if row.columns["valid"]:
                episodes[-1].append(row)
        return [episode for episode in episodes if episode]

    def places(self) -> list[tuple[int, list[Row], int]]:
        """Return environment, episode, and place there, of every transition that can be drawn.

        In the order of environments, and each one's oldest first.
        """
        return [
            (env, episode, start)
            for env in range(self.check_allocated().num_envs)
            for episode in self.episodes(env)
            for start in range(len(episode))
        ]

    def transitions(self) -> list[dict[str, Tensor]]:
        """Return the transitions at all `places`, as the columns of a batch."""
        return [self.transition(*place) for place in self.places()]

    def transition(self, env: int, episode: list[Row], start: int) -> dict[str, Tensor]:
        """Return the columns that a batch has of a transition.

        Its window ends with the first row that terminates, which need not be the episode's last
        where goals were relabeled.
        """
        window = []
        for row in episode[start : start + self.n_step]:
            window.append(row)
            if row.columns["terminated"]:
                break
        first, last = window[0], window[-1]
        reward = first.columns["reward"].new_zeros(self.n_step)
        reward[: len(window)] = torch.stack([row.columns["reward"] for row in window])
        generation, slot = divmod(first.step, self._share())
        return {
            **{k: part for k, part in first.columns.items() if not k.startswith(_NOT_DRAWN)},
            "reward": reward,
            "num_steps": torch.tensor(len(window), device=reward.device),
            "terminated": last.columns["terminated"],
            **{f"next_{name}": part for name, part in last.successor.items()},
            "index": torch.tensor([slot * self.num_envs + env, generation], device=reward.device),
        }

    def trajectories(self) -> Iterator[Trajectory]:
        """Yield every environment's `episodes`."""
        for env in range(self.check_allocated().num_envs):
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

    def sample_indices(
        self, num_minibatches: int | None, minibatch_size: int | None
    ) -> Iterator[Tensor]:
        """Draw places in `transitions`.

        Raises:
            ConfigError: when nothing is stored, or one of the sizes is missing or below 1.
        """
        count = len(self.transitions())
        if count == 0:
            raise ConfigError("the replay storage holds no transition yet; collect some first")
        if not num_minibatches or not minibatch_size or min(num_minibatches, minibatch_size) < 1:
            raise ConfigError(
                "num_minibatches and minibatch_size must both be at least 1, got "
                f"{num_minibatches} and {minibatch_size}"
            )
        yield torch.randint(count, (num_minibatches, minibatch_size), generator=self.generator)

    def gather(self, indices: Tensor) -> Iterator[ReplayBatch]:
        """Make one batch per row of the block."""
        transitions = self.transitions()
        for places in indices.tolist():
            batch = stack([transitions[place] for place in places], 0)
            ones = {name: torch.ones_like(batch["reward"][:, 0]) for name in ("weight", "mask")}
            yield assembled(ReplayBatch, {**batch, **ones})

    def new_observations(self) -> tuple[Observation, Tensor]:
        """Return what was inserted since the last call, as far as it is stored.

        Returns:
            Observations `(L, B, ...)`, and whether they were acted on, `(L, B)`.
        """
        new = [[row for row in rows if row.step >= self._reported] for rows in self._rows]
        self._reported = self._inserted
        data = self._slice(new)
        return join_observation(data), data["valid"]

    def state_dict(self) -> StateDict:
        """Return all that `RowStorage` returns, and how many rows `new_observations` returned."""
        return {**super().state_dict(), "told": self._reported}

    def load_state_dict(self, state: StateDict) -> None:
        """Take over a state returned by `state_dict`; the storage must be allocated.

        Raises:
            CheckpointError: when the rows do not fit this storage.
        """
        told = StateReader(state, "storage").count("told")
        super().load_state_dict(state)
        self._reported = told

    def _share(self) -> int:
        return self.size // self.num_envs


@dataclass(frozen=True, slots=True)
class ReferenceSequence:
    """A piece of an episode.

    Attributes:
        burn_in: rows of the episode right before those to learn from, W at most.
        rows: to learn from, from 1 to T.
        windows: the transition of up to n steps that begins with each of ``rows``, as the columns
            of a batch.
        following: up to n - 1 rows after ``rows``, as far as windows reach.
    """

    burn_in: list[Row]
    rows: list[Row]
    windows: list[dict[str, Tensor]]
    following: list[Row]


class ReferenceSequenceStorage(ReferenceReplayStorage):
    """A `ReferenceReplayStorage` that knows sequences: an oracle, which makes no batches of them.

    Each episode, or piece of one, is cut into sequences of T transitions to learn from, the last
    of which may be shorter. Up to W transitions of the episode before them are burn-in.

    Args:
        size: rows over all environments, at most.
        n_step: rewards per transition, at most.
        learned: T.
        burn_in: W.
    """

    def __init__(
        self, size: int = 1000, n_step: int = 1, *, learned: int = 10, burn_in: int = 10
    ) -> None:
        super().__init__(size, n_step)
        self.learned = learned
        self.burn_in = burn_in

    def sequences(self) -> list[ReferenceSequence]:
        """Return every sequence that can be drawn, each environment's oldest first."""
        return [self.sequence(*place) for place in self.places() if place[2] % self.learned == 0]

    def sequence(self, env: int, episode: list[Row], start: int) -> ReferenceSequence:
        """Return the sequence that begins in a place of an episode."""
        end = min(start + self.learned, len(episode))
        return ReferenceSequence(
            episode[max(start - self.burn_in, 0) : start],
            episode[start:end],
            [self.transition(env, episode, step) for step in range(start, end)],
            episode[end : end + self.n_step - 1],
        )
