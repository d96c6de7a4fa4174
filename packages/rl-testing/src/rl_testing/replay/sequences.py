"""A slow and obvious storage of sequences, and comparisons with what it holds."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from rl_core.batch import ReplayBatch, SequenceStart
from rl_core.errors import ConfigError
from rl_core.storage import join_observation
from rl_testing._rows import Row, below, stack
from rl_testing.replay.goals import DESIRED_GOAL, ReferenceGoals
from rl_testing.replay.reference import ReferenceReplayStorage

Columns = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class ReferenceSequence:
    """A piece of an episode.

    Attributes:
        env: the environment it is of.
        burn_in: rows of the episode right before those to learn from, W at most.
        rows: to learn from, from 1 to T.
        windows: the transition of up to n steps that begins with each of ``rows``, as the columns
            of a batch.
        following: up to n rows after ``rows``, as far as windows reach.
    """

    env: int
    burn_in: list[Row]
    rows: list[Row]
    windows: list[Columns]
    following: list[Row]


class ReferenceSequenceStorage(ReferenceReplayStorage):
    """A `ReferenceReplayStorage` that draws sequences, for tests only.

    Each episode, or piece of one, is cut into sequences of T transitions to learn from, the last
    of which may be shorter. Up to W transitions of the episode before them are burn-in.

    Args:
        size: rows over all environments, at most.
        n_step: rewards per transition, at most.
        learned: T.
        burn_in: W.

    Raises:
        ConfigError: when a number is out of range.
    """

    def __init__(
        self, size: int = 1000, n_step: int = 1, *, learned: int = 10, burn_in: int = 10
    ) -> None:
        super().__init__(size, n_step)
        if learned < 1 or burn_in < 0:
            raise ConfigError(
                f"learned must be at least 1 and burn_in at least 0, got {learned} and {burn_in}"
            )
        self.learned = learned
        self.burn_in = burn_in

    @property
    def gives_sequences(self) -> bool:
        """Always."""
        return True

    @property
    def steps_per_sample(self) -> int:
        """Burn-in and what is learned from."""
        return self.burn_in + self.learned

    def sequences(self) -> list[ReferenceSequence]:
        """Return every sequence that can be drawn, each environment's oldest first."""
        return [
            self.sequence(env, episode, start)
            for env in range(self.num_envs)
            for episode in self.episodes(env)
            for start in range(0, len(episode), self.learned)
        ]

    def sample_indices(
        self, num_mini_batch: int | None, mini_batch_size: int | None
    ) -> Iterator[Tensor]:
        """Draw places in `sequences`: as many as hold ``mini_batch_size`` transitions.

        Raises:
            ConfigError: when nothing is stored, or one of the sizes is missing or below 1.
        """
        count = len(self.sequences())
        for block in super().sample_indices(num_mini_batch, mini_batch_size):
            size = -(-block.shape[1] // self.learned)
            yield torch.randint(count, (len(block), size), generator=self._generator)

    def gather(self, indices: Tensor) -> Iterator[ReplayBatch]:
        """Make one batch per row of the block; what pads is zero."""
        sequences = self.sequences()
        for places in indices.tolist():
            batch = stack([self._columns(sequences[place]) for place in places], 1)
            yield ReplayBatch(
                observation=join_observation(batch),
                action=batch["action"],
                reward=batch["reward"],
                num_steps=batch["num_steps"].clamp(min=1),
                terminated=batch["terminated"],
                next_observation=join_observation(batch, "next_observation"),
                weight=torch.ones_like(batch["mask"]),
                mask=batch["mask"],
                key=batch["key"][0],
                start=SequenceStart(
                    state={name: state[0] for name, state in below("state/", batch).items()},
                    burn_in=join_observation(below("burn_in/", batch)),
                    action=batch["done"],
                    episode_start=batch["episode_start"],
                ),
                extras=below("extras/", batch),
            )

    def sequence(self, env: int, episode: list[Row], start: int) -> ReferenceSequence:
        """Return the sequence that begins in a place of an episode."""
        end = min(start + self.learned, len(episode))
        return ReferenceSequence(
            env,
            episode[max(start - self.burn_in, 0) : start],
            episode[start:end],
            [self.transition(env, episode, step) for step in range(start, end)],
            episode[end : end + self.n_step - 1],
        )

    def _columns(self, sequence: ReferenceSequence) -> Columns:
        """Lay a sequence out in time: each column with as many rows as a batch has."""
        rows = [*sequence.rows, *sequence.following]
        seen = [_observation(row.columns) for row in rows] + [rows[-1].successor]
        ahead = _padded(seen, self.learned + self.n_step)
        columns = {name: column[: self.learned] for name, column in ahead.items()}
        columns |= {f"next_{name}": column[self.learned :] for name, column in ahead.items()}
        columns |= {
            name: column
            for name, column in _padded(sequence.windows, self.learned).items()
            if "observation" not in name
        }
        columns["mask"] = torch.zeros(self.learned)
        columns["mask"][: len(sequence.rows)] = 1.0
        missing = self.burn_in - len(sequence.burn_in)
        before = [_observation(row.columns) for row in sequence.burn_in]
        burn_in = _padded(before[::-1] or seen[:1], self.burn_in)
        for name, column in burn_in.items():
            columns[f"burn_in/{name}"] = column.flip(0) if before else torch.zeros_like(column)
        done = _padded(_actions(rows), self.learned + self.n_step - 1)["action"]
        columns["done"] = torch.cat([done.new_zeros(missing, *done.shape[1:]), done])
        if sequence.burn_in:
            warm_up = stack(_actions(sequence.burn_in), 0)["action"]
            columns["done"] = torch.cat([columns["done"][:missing], warm_up, done])
        first = (sequence.burn_in or sequence.rows)[0]
        columns["episode_start"] = torch.zeros(self.burn_in + 1, dtype=torch.bool)
        columns["episode_start"][missing] = bool(missing or first.columns["episode_start"])
        for name, state in below("state/", first.columns).items():
            begins = first.columns["episode_start"]
            columns[f"state/{name}"] = torch.where(begins, torch.zeros_like(state), state)[None]
        return columns


def check_sequences(
    batch: ReplayBatch,
    oracle: ReferenceSequenceStorage,
    *,
    goals: ReferenceGoals | None = None,
    oldest: int = 0,
) -> list[ReferenceSequence]:
    """Assert that samples are exactly the oracle's sequences with the same first actions.

    Rows that count are compared bit for bit, and so is the state before them: the stored one, or
    zeros where the episode begins. Rows that pad may hold anything.

    Args:
        batch: of sequences, of which no two that are stored have the same first action.
        oracle: got the same data, and has not forgotten any since; it cuts sequences alike.
        goals: how samples were relabelled, each with one goal for all its rows; None where none
            was.
        oldest: no sequence may begin earlier, in rows inserted before it, and no goal may have
            been achieved earlier.

    Returns:
        Which of ``oracle.sequences()`` the samples are.
    """
    start = batch.start
    assert start is not None, "a batch of sequences needs its start"
    assert len(batch.key), "there is no sample to compare"
    places = oracle.places()
    known = {
        _known_by(episode[first].columns["action"]): i
        for i, (_, episode, first) in enumerate(places)
        if first % oracle.learned == 0
    }
    assert batch.mask.shape == batch.action.shape[:2] == (oracle.learned, len(batch.key))
    assert start.episode_start.shape == (oracle.burn_in + 1, len(batch.key))
    assert len(start.action) == oracle.burn_in + oracle.learned + oracle.n_step - 1
    observation = _by_column(batch.observation)
    sequence_of: dict[tuple[int, float | None], ReferenceSequence] = {}
    found: list[ReferenceSequence] = []
    for n in range(len(batch.key)):
        name = _known_by(batch.action[0, n])
        assert name in known, f"no sequence begins with action {name}"
        place = known[name]
        goal = None if goals is None else goals.new_goal(observation[DESIRED_GOAL][0, n])
        if (place, goal) not in sequence_of:  # once is enough, of whichever comes first
            env, episode, first = places[place]
            assert episode[first].step >= oldest, f"the sequence of action {name} is too old"
            if goals is not None and goal is not None:
                goals.check_allowed(goal, places, place, oldest)
                episode = goals.in_hindsight(episode, goal)
            sequence_of[place, goal] = oracle.sequence(env, episode, first)
            _check_sequence(batch, n, sequence_of[place, goal], f"action {name}, goal {goal}")
        found.append(sequence_of[place, goal])
    return found


def _check_sequence(batch: ReplayBatch, n: int, sequence: ReferenceSequence, name: str) -> None:
    """Compare sample n with the sequence that it should be."""
    start = batch.start
    assert start is not None
    observation, after, before = map(
        _by_column, (batch.observation, batch.next_observation, start.burn_in)
    )
    drawn = {
        "action": batch.action,
        "reward": batch.reward,
        "num_steps": batch.num_steps,
        "terminated": batch.terminated,
        **{f"extras/{key}": column for key, column in batch.extras.items()},
        **observation,
    }
    learned, burn_in = len(batch.mask), len(start.episode_start) - 1
    length = len(sequence.rows)
    counts = [1.0] * length + [0.0] * (learned - length)
    assert batch.mask[:, n].tolist() == counts, f"mask of {name}"
    for step, window in enumerate(sequence.windows):
        follows = step + int(window["num_steps"])
        for key, column in drawn.items():
            _check(f"{key} {step} of {name}", column[step, n], window[key])
        for key in observation:
            later = after[key][follows - learned, n] if follows >= learned else None
            seen = observation[key][follows, n] if later is None else later
            _check(f"{key} after {step} of {name}", seen, window[f"next_{key}"])
    missing = burn_in - len(sequence.burn_in)
    for step, row in enumerate(sequence.burn_in, start=missing):
        for key, column in before.items():
            _check(f"burn-in {step} of {name}", column[step, n], row.columns[key])
    rows = [*sequence.burn_in, *sequence.rows, *sequence.following]
    for step, row in enumerate(rows, start=missing):
        done = row.columns["action"]
        _check(f"what was done {step} rows into {name}", start.action[step, n], done)
    first = rows[0].columns
    begins = [bool(missing or first["episode_start"])] + [False] * (burn_in - missing)
    assert start.episode_start[missing:, n].tolist() == begins, f"start of {name}"
    states = below("state/", first)
    assert sorted(states) == sorted(start.state)
    for key, state in states.items():
        expected = torch.zeros_like(state) if first["episode_start"] else state
        _check(f"state of {name}", start.state[key][n], expected)


def _observation(columns: Mapping[str, Tensor]) -> Columns:
    return {name: value for name, value in columns.items() if name.startswith("observation")}


def _actions(rows: list[Row]) -> list[Columns]:
    return [{"action": row.columns["action"]} for row in rows]


def _padded(rows: list[Columns], length: int) -> Columns:
    """Stack rows to columns of a given length, with zeros at the end."""
    columns = {}
    for name, column in stack(rows, 0).items():
        columns[name] = column.new_zeros(length, *column.shape[1:])
        columns[name][: len(column)] = column[:length]
    return columns


def _by_column(observation: object) -> Columns:
    if isinstance(observation, Tensor):
        return {"observation": observation}
    assert isinstance(observation, Mapping)
    return {f"observation/{key}": column for key, column in observation.items()}


def _known_by(action: Tensor) -> tuple[float, ...]:
    return tuple(action.flatten().tolist())


def _check(what: str, drawn: Tensor, expected: Tensor) -> None:
    assert drawn.dtype == expected.dtype, f"{what}: {drawn.dtype}; expected {expected.dtype}"
    assert torch.equal(drawn, expected), f"{what}: {drawn.tolist()}; expected {expected.tolist()}"
