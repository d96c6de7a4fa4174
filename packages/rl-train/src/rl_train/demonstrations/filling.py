"""Filling a replay storage with trajectories."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rl_core.actor import Actor
from rl_core.batch import Trajectory, Transition
from rl_core.errors import ConfigError, DataError
from rl_core.storage import AnyStorage, HasTrajectories, StorageSpec
from rl_core.types import Array, ArrayObservation, State, to_tensors
from rl_train.demonstrations.sources import Source, read_demonstrations


def fill_storage(storage: AnyStorage, source: Source, actor: Actor) -> int:
    """Put demonstrations into a replay storage.

    Args:
        storage: allocated, for the actor.
        source: see `read_demonstrations`.
        actor: actor that learns from them, whose scale of actions they get. A recurrent one is run
            over the demonstrations to store its states.

    Returns:
        Number of transitions that were inserted.

    Raises:
        ConfigError: when the storage keeps rollouts, is too small, or stores columns that
            demonstrations do not have.
        SpaceError: when the data was recorded in other spaces.
        DataError: when the data does not fit its spaces.
    """
    if not isinstance(storage, HasTrajectories):
        raise ConfigError(
            f"demonstrations need a replay storage; {type(storage).__name__} keeps rollouts of "
            "the policy that learns"
        )
    return insert_trajectories(storage, read_demonstrations(source, actor), actor)


def insert_trajectories(
    storage: HasTrajectories[object], trajectories: Iterable[Trajectory], actor: Actor | None = None
) -> int:
    """Insert trajectories, one after the other in each environment's rows.

    When no trajectory is left for an environment, its rows are filled with invalid ones.

    Args:
        storage: an allocated replay storage.
        trajectories: with actions as the storage keeps them.
        actor: computes recurrent states; only needed where the storage keeps some.

    Returns:
        Number of transitions that were inserted.

    Raises:
        ConfigError: when the storage is too small, or stores columns that trajectories do not have.
        DataError: when there is no trajectory.
    """
    spec = storage.check_allocated()
    if spec.extras:
        raise ConfigError(
            f"demonstrations have no {sorted(spec.extras)}, which the algorithm stores with each "
            "step; choose an algorithm that stores nothing of its own"
        )
    if spec.state_sizes and actor is None:
        raise ConfigError("recurrent states are stored; give the actor that computes them")
    before, count, rows = storage.num_transitions, 0, 0
    storage.mark_boundary()
    with torch.no_grad():
        for transition in _transitions(spec, iter(trajectories), actor):
            storage.insert_transition(transition)
            count += int(np.count_nonzero(transition.valid))
            rows += 1
            if rows % 1000 == 0:  # a source may have no end
                _check_room(storage.num_transitions, before + count)
    storage.mark_boundary()
    if count == 0:
        raise DataError("the demonstrations hold no transition; expected at least one")
    _check_room(storage.num_transitions, before + count)
    return count


def _check_room(held: int, count: int) -> None:
    if held < count:
        raise ConfigError(
            f"storage.size is too small: {count} demonstrated transitions do not fit into it; "
            "make it larger, with room for collected transitions too"
        )


class _Row(NamedTuple):
    """One step of one environment; an invalid one where no trajectory is left."""

    observation: dict[str, Array]
    next_observation: dict[str, Array]
    action: Array
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    valid: bool = False
    episode_start: bool = False


def _transitions(
    spec: StorageSpec, trajectories: Iterator[Trajectory], actor: Actor | None
) -> Iterator[Transition]:
    """Yield steps of several environments, which take turns in drawing trajectories."""
    num_envs = spec.num_envs
    state: State = {}
    if actor is not None and spec.state_sizes:
        state = actor.actor_initial_states(num_envs)
    envs = [_rows(spec, trajectories) for _ in range(num_envs)]
    observation: ArrayObservation | None = None
    for rows, next_rows in pairwise(zip(*envs, strict=True)):
        if not any(row.valid for row in rows):
            return
        if observation is None:
            observation = _stacked([row.observation for row in rows])
        terminated, truncated, valid, start = np.array(
            [(row.terminated, row.truncated, row.valid, row.episode_start) for row in rows]
        ).T
        ended = any(row.terminated or row.truncated for row in rows)
        transition = Transition(
            observation=observation,
            action=np.array([row.action for row in rows]),
            reward=np.array([row.reward for row in rows], np.float32),
            terminated=terminated,
            truncated=truncated,
            valid=valid,
            episode_start=start,
            next_observation=_stacked([row.observation for row in next_rows]),
            final_observation=_stacked([row.next_observation for row in rows]) if ended else None,
            state=state,
            extras={},
        )
        yield transition
        observation = transition.next_observation
        if actor is not None and state:
            state = _next_state(actor, transition)


def _rows(spec: StorageSpec, trajectories: Iterator[Trajectory]) -> Iterator[_Row]:
    """Yield the rows of one environment, without end."""
    leaves = spec.observation if isinstance(spec.observation, Mapping) else {"": spec.observation}
    after = {key: torch.zeros(leaf.shape, dtype=leaf.dtype).numpy() for key, leaf in leaves.items()}
    for trajectory in trajectories:
        # Arrays once, because rows of tensors take ten times as long.
        observation = trajectory.observation
        parts = {"": observation} if isinstance(observation, Tensor) else observation
        columns = {key: part.numpy() for key, part in parts.items()}
        action = trajectory.action.to(spec.action.dtype).numpy()
        last = len(trajectory) - 1
        after = {key: column[0] for key, column in columns.items()}
        for step, reward in enumerate(trajectory.reward.tolist()):
            before, after = after, {key: column[step + 1] for key, column in columns.items()}
            yield _Row(
                before,
                after,
                action[step],
                reward,
                terminated=step == last and trajectory.terminated,
                truncated=step == last and not trajectory.terminated,
                valid=True,
                episode_start=step == 0,
            )
    nothing = torch.zeros(spec.action.shape, dtype=spec.action.dtype).numpy()
    while True:  # an environment without a trajectory keeps showing its last observation
        yield _Row(after, after, nothing)


def _next_state(actor: Actor, transition: Transition) -> State:
    """Return the actor's recurrent state after a demonstrated step."""
    device, state = actor.device, transition.state
    starts = torch.from_numpy(transition.episode_start).to(device)
    inputs = to_tensors(transition.observation, device)
    _, after = actor.distribution(inputs, state, starts)
    action = torch.as_tensor(transition.action, device=device)
    return actor.remember_action(inputs, action, state, after, starts)


def _stacked(rows: list[dict[str, Array]]) -> ArrayObservation:
    columns = {key: np.array([row[key] for row in rows]) for key in rows[0]}
    return columns.get("", columns)
