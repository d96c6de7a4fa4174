"""Comparisons of what storages give with what the oracle holds."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from rl_core.batch import ReplayBatch, Trajectory
from rl_core.storage import columns_below
from rl_testing._rows import Row, stack
from rl_testing.replay.reference import (
    ReferenceReplayStorage,
    ReferenceSequence,
    ReferenceSequenceStorage,
)
from rl_testing.storages import columns_of

_DESIRED_GOAL = "observation/desired_goal"

Place = tuple[int, list[Row], int]
"""Environment, episode, and place there; see `ReferenceReplayStorage.places`."""

_Sample = tuple[int, float | None]
"""Which of the oracle's places was drawn, and its desired goal; None where goals do not matter."""


class Relabeling(Protocol):
    """Tells what samples are in a storage that relabels goals in hindsight."""

    def episode(
        self, desired: Tensor, places: Sequence[Place], place: int, oldest: int
    ) -> list[Row]:
        """Return a sample's episode as it would have been with the goal that the sample has.

        Args:
            desired: the goal of the sample.
            places: of the oracle.
            place: which of these was drawn, alone or as the first one of a sequence.
            oldest: rows inserted before this one are stored no longer.

        Raises:
            AssertionError: when the sample may not have that goal.
        """


def check_transitions(
    batch: ReplayBatch,
    oracle: ReferenceReplayStorage,
    *,
    goals: Relabeling | None = None,
    oldest: int = 0,
) -> list[int]:
    """Assert that samples are exactly the oracle's transitions with the same actions.

    All columns are compared, bit for bit, but of ``weight`` and ``index`` only the form. Every
    sample counts: what is drawn with replacement needs no padding, so all masks are 1. Works with
    any storage that changes nothing about a transition but its goal, however it draws.

    Args:
        batch: of transitions, of which no two that are stored have the same action.
        oracle: got the same data, and looks as many steps ahead.
        goals: how samples were relabeled; None where none was.
        oldest: what is drawn, and achieved, must not have been inserted earlier.

    Returns:
        Which of ``oracle.transitions()`` the samples are.
    """
    assert batch.start is None, "a batch of transitions has no sequence start"
    assert len(batch.mask), "there is no sample to compare"
    assert bool((batch.mask == 1.0).all()), f"mask {batch.mask.tolist()}; every sample must count"
    drawn = columns_of(batch)
    samples, found = _find(batch.action, drawn.get(_DESIRED_GOAL), oracle, goals, oldest)
    numbers = {sample: number for number, sample in enumerate(found)}
    columns = stack([oracle.transition(*place) for place in found.values()], 0)
    which = torch.tensor([numbers[sample] for sample in samples], device=batch.action.device)
    expected = {name: column[which] for name, column in columns.items()}
    one = expected["reward"][:, 0]
    for name, form in (("weight", one), ("mask", one), ("index", expected.pop("index"))):
        _check_form(name, drawn.pop(name), form)
    actions = _known_by(batch.action)
    _check_columns(drawn, expected, lambda row: f"the sample with action {actions[row]}")
    return [place for place, _ in samples]


def check_sequences(
    batch: ReplayBatch,
    oracle: ReferenceSequenceStorage,
    *,
    goals: Relabeling | None = None,
    oldest: int = 0,
) -> list[int]:
    """Assert that samples are exactly the oracle's sequences with the same first actions.

    Rows that count are compared bit for bit, and so is the state before them: the stored one, or
    zeros where the episode begins. Rows that pad may hold anything.

    Args:
        batch: of sequences, of which no two that are stored have the same first action.
        oracle: got the same data, and has not forgotten any since; it cuts sequences alike.
        goals: how samples were relabeled, each with one goal for all its rows; None where none
            was.
        oldest: no sequence may begin earlier, in rows inserted before it, and no goal may have
            been achieved earlier.

    Returns:
        With which of ``oracle.transitions()`` the samples begin.
    """
    start, num_samples = batch.start, len(batch.index)
    assert start is not None, "a batch of sequences needs its start"
    assert num_samples, "there is no sample to compare"
    assert batch.mask.shape == batch.action.shape[:2] == (oracle.learned, num_samples)
    assert batch.weight.shape == batch.mask.shape
    assert batch.index.shape == (num_samples, 2)
    assert start.episode_start.shape == (oracle.burn_in + 1, num_samples)
    assert len(start.action) == oracle.burn_in + oracle.learned + oracle.n_step - 1
    columns = columns_of(batch)
    desired = columns[_DESIRED_GOAL][0] if _DESIRED_GOAL in columns else None
    samples, found = _find(batch.action[0], desired, oracle, goals, oldest)
    for sample, (env, episode, first) in found.items():
        n = samples.index(sample)  # one of those that are alike is enough
        name = f"the sequence of action {batch.action[0, n].tolist()}, goal {sample[1]}"
        assert first % oracle.learned == 0, f"{name} begins elsewhere"
        drawn = {
            column: part[n] if column.startswith(("index", "start/state/")) else part[:, n]
            for column, part in columns.items()
        }
        _check_sequence(drawn, oracle.sequence(env, episode, first), oracle.n_step, name)
    return [place for place, _ in samples]


def check_trajectories(
    trajectories: Iterable[Trajectory], oracle: ReferenceReplayStorage
) -> list[int]:
    """Assert that a storage's trajectories are those of the oracle, whose oldest may be gone.

    Each is the end of one of the oracle's, bit for bit, and they are in the same order.

    Args:
        trajectories: of which no two steps that are stored have the same action.
        oracle: got the same data.

    Returns:
        Which of ``oracle.transitions()`` the steps are.
    """
    known: dict[tuple[float, ...], tuple[int, Trajectory]] = {}
    end = 0
    for whole in oracle.trajectories():
        end += len(whole)
        known[_known_by(whole.action[-1:])[0]] = end, whole
    places: list[int] = []
    for piece in trajectories:
        actions = _known_by(piece.action)
        last = actions[-1]
        assert last in known, f"no trajectory ends with action {last}"
        end, whole = known[last]
        name = f"the trajectory to action {last}"
        assert len(piece) <= len(whole), f"{name} begins too early"
        assert piece.terminated == whole.terminated, f"terminated of {name}"
        first = len(whole) - len(piece)
        expected = {name: column[first:] for name, column in columns_of(whole).items()}
        _check_columns(columns_of(piece), expected, f"step {{}} of {name}".format)
        places += range(end - len(piece), end)
    assert places == sorted(set(places)), "trajectories are not in the order of time"
    return places


def must_hold(oracle: ReferenceReplayStorage, rows: int, per_episode: int = 1) -> list[int]:
    """Return which transitions a storage with so many rows per environment must hold.

    The newest ones that fit when every transition takes a row, and every episode some more, such
    as one for the observation after its last transition.

    Args:
        oracle: got the same data.
        rows: of each environment.
        per_episode: rows that an episode takes beside those of its transitions.

    Returns:
        Places in ``oracle.transitions()``.
    """
    places: list[int] = []
    begin = 0
    for env in range(oracle.num_envs):
        episodes = oracle.episodes(env)
        end = begin = begin + sum(map(len, episodes))
        room = rows
        for episode in reversed(episodes):
            fits = max(0, min(len(episode), room - per_episode))
            places += range(end - fits, end)
            room -= per_episode + len(episode)
            end -= len(episode)
    return places


def _find(
    actions: Tensor,
    desired: Tensor | None,
    oracle: ReferenceReplayStorage,
    goals: Relabeling | None,
    oldest: int,
) -> tuple[list[_Sample], dict[_Sample, Place]]:
    """Tell transitions by their actions, and return what they are with their goals."""
    places = oracle.places()
    stored = torch.stack([episode[start].columns["action"] for _, episode, start in places])
    place_of = {action: place for place, action in enumerate(_known_by(stored))}
    samples: list[_Sample] = []
    found: dict[_Sample, Place] = {}
    for number, action in enumerate(_known_by(actions)):
        assert action in place_of, f"the sample with action {action} must not be drawn (any more)"
        place = place_of[action]
        goal = None if goals is None or desired is None else desired[number]
        samples.append((place, None if goal is None else float(goal)))
        if samples[-1] in found:
            continue
        env, episode, start = places[place]
        assert episode[start].step >= oldest, f"the sample with action {action} is too old"
        if goals is not None and goal is not None:
            episode = goals.episode(goal, places, place, oldest)
        found[samples[-1]] = env, episode, start
    return samples, found


def _check_sequence(
    drawn: dict[str, Tensor], sequence: ReferenceSequence, n_step: int, name: str
) -> None:
    """Compare the columns of one sample with the sequence that it should be."""
    start = columns_below("start/", drawn)
    length, burn_in = len(sequence.rows), len(start["episode_start"]) - 1
    counts = [1.0] * length + [0.0] * (len(drawn["mask"]) - length)
    assert drawn["mask"].tolist() == counts, f"mask of {name}"
    expected = stack(sequence.windows, 0)
    del expected["index"]
    follows = torch.arange(length) + expected["num_steps"].cpu()
    given = {}
    for column, part in drawn.items():
        if column.startswith("next_"):  # the rows after the last one
            assert len(part) == n_step, f"{column} of {name}"
            given[column] = torch.cat([drawn[column.removeprefix("next_")], part])[follows]
        elif not column.startswith(("start/", "weight", "mask", "index")):
            given[column] = part[:length]
    _check_columns(given, expected, lambda row: f"row {row} of {name}")

    rows = [*sequence.burn_in, *sequence.rows, *sequence.following]
    missing = burn_in - len(sequence.burn_in)
    columns = stack([row.columns for row in rows], 0)
    before = {
        column.replace("observation", "burn_in", 1): part[: len(sequence.burn_in)]
        for column, part in columns.items()
        if column.startswith("observation")
    }
    before["action"] = columns["action"]
    seen = {column: start[column][missing:][: len(before[column])] for column in before}
    _check_columns(seen, before, lambda row: f"row {row} of what is before and in {name}")
    begins = rows[0].columns["episode_start"]
    marks = [bool(missing or begins)] + [False] * (burn_in - missing)
    assert start["episode_start"][missing:].tolist() == marks, f"start of {name}"
    states = {key: part[:1] * ~begins for key, part in columns_below("state/", columns).items()}
    given = {key: part[None] for key, part in columns_below("state/", start).items()}
    _check_columns(given, states, lambda _: f"the start of {name}")


def _known_by(actions: Tensor) -> list[tuple[float, ...]]:
    """Return what transitions `(N,)` are told apart by."""
    return [tuple(action) for action in actions.reshape(len(actions), -1).tolist()]


def _check_columns(
    given: Mapping[str, Tensor], expected: Mapping[str, Tensor], row_name: Callable[[int], str]
) -> None:
    assert sorted(given) == sorted(expected), f"columns {sorted(given)}; {sorted(expected)}"
    for name, wanted in expected.items():
        got = given[name]
        _check_form(name, got, wanted)
        if not torch.equal(got, wanted):
            row = int((got != wanted).nonzero()[0, 0])
            raise AssertionError(
                f"{name} of {row_name(row)} is {got[row].tolist()}; expected {wanted[row].tolist()}"
            )


def _check_form(name: str, got: Tensor, wanted: Tensor) -> None:
    for part in ("dtype", "shape", "device"):
        actual, expected = getattr(got, part), getattr(wanted, part)
        assert actual == expected, f"{name}: {part} is {actual}; expected {expected}"
