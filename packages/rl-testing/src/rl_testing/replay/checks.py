"""Comparisons of what storages give with what the oracle holds."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from rl_core.batch import ReplayBatch, Trajectory
from rl_testing._rows import stack
from rl_testing.replay.goals import DESIRED_GOAL, ReferenceGoals
from rl_testing.replay.reference import ReferenceReplayStorage
from rl_testing.storages import columns_of

_ABOUT_THE_DRAW = ("weight", "mask", "key")
"""Columns of a batch that tell how a sample was drawn, not what happened."""


def check_transitions(
    batch: ReplayBatch,
    oracle: ReferenceReplayStorage,
    *,
    goals: ReferenceGoals | None = None,
    oldest: int = 0,
) -> list[int]:
    """Assert that samples are exactly the oracle's transitions with the same actions.

    All columns are compared, bit for bit, but ``weight`` and ``key``. Every sample counts: what is
    drawn with replacement needs no padding, so all masks are 1. Works with any storage that changes
    nothing about a transition but its goal, however it draws.

    Args:
        batch: of transitions, of which no two that are stored have the same action.
        oracle: got the same data, and looks as many steps ahead.
        goals: how samples were relabelled; None where none was.
        oldest: what is drawn, and achieved, must not have been inserted earlier.

    Returns:
        Which of ``oracle.transitions()`` the samples are.
    """
    assert batch.start is None, "a batch of transitions has no sequence start"
    assert len(batch.mask), "there is no sample to compare"
    assert bool((batch.mask == 1.0).all()), f"mask {batch.mask.tolist()}; every sample must count"
    known = oracle.places()
    place_of = {
        _known_by(episode[start].columns["action"]): i
        for i, (_, episode, start) in enumerate(known)
    }
    actions = [_known_by(action) for action in batch.action]
    for action in actions:
        assert action in place_of, f"the sample with action {action} must not be drawn (any more)"
    places = [place_of[action] for action in actions]
    drawn = columns_of(batch)
    expected_of: dict[tuple[int, float | None], dict[str, Tensor]] = {}
    samples: list[tuple[int, float | None]] = []
    for sample, place in enumerate(places):
        goal = None if goals is None else goals.new_goal(drawn[DESIRED_GOAL][sample])
        samples.append((place, goal))
        if (place, goal) in expected_of:
            continue
        env, episode, start = known[place]
        assert episode[start].step >= oldest, f"action {actions[sample]} is too old"
        if goals is not None and goal is not None:
            goals.check_allowed(goal, known, place, oldest)
            episode = goals.in_hindsight(episode, goal)
        expected_of[place, goal] = oracle.transition(env, episode, start)
    expected = stack([expected_of[sample] for sample in samples], 0)
    for name in _ABOUT_THE_DRAW:
        drawn.pop(name)
        expected.pop(name, None)
    assert sorted(drawn) == sorted(expected), f"columns {sorted(drawn)}; {sorted(expected)}"
    rows = [f"the sample with action {action}" for action in actions]
    for name, column in expected.items():
        _check_column(name, drawn[name], column, rows)
    return places


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
        known[_known_by(whole.action[-1])] = end, whole
    places: list[int] = []
    for piece in trajectories:
        actions = [_known_by(action) for action in piece.action]
        last = actions[-1]
        assert last in known, f"no trajectory ends with action {last}"
        end, whole = known[last]
        assert len(piece) <= len(whole), f"the trajectory to action {last} begins too early"
        assert piece.terminated == whole.terminated, f"terminated of the trajectory to {last}"
        given, expected = columns_of(piece), columns_of(whole)
        assert sorted(given) == sorted(expected), f"columns {sorted(given)}; {sorted(expected)}"
        rows = [f"the step with action {action}" for action in actions]
        for name, column in expected.items():
            tail = column[len(whole) - len(piece) :]
            _check_column(name, given[name], tail, [*rows, f"what followed action {last}"])
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


def _known_by(action: Tensor) -> tuple[float, ...]:
    return tuple(action.flatten().tolist())


def _check_column(name: str, given: Tensor, expected: Tensor, rows: Sequence[str]) -> None:
    assert given.dtype == expected.dtype, f"{name}: {given.dtype}; expected {expected.dtype}"
    assert given.shape == expected.shape, f"{name}: {given.shape}; expected {expected.shape}"
    differs = (given != expected).reshape(len(given), -1).any(dim=1)
    if differs.any():
        row = int(torch.argmax(differs.int()))
        raise AssertionError(
            f"{name} of {rows[row]} is {given[row].tolist()}; expected {expected[row].tolist()}"
        )
