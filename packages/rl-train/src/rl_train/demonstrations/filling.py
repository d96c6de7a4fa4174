"""Filling a replay storage with trajectories."""

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rl_core.actor import Actor
from rl_core.arrays import to_tensors
from rl_core.batch import Trajectory, Transition
from rl_core.errors import ConfigError, DataError
from rl_core.storage import AnyStorage, StorageSpec, TensorSpec
from rl_core.types import Array, ArrayObservation, State
from rl_train.demonstrations.sources import Source, read_demonstrations

_Mask = npt.NDArray[np.bool_]


def fill_storage(storage: AnyStorage, source: Source, actor: Actor) -> int:
    """Put demonstrations into a replay storage.

    Args:
        storage: allocated, for the actor.
        source: see `read_demonstrations`.
        actor: who is to learn from them. It says how actions are scaled; if it is recurrent, it
            is run over the demonstrations, so that states are stored as when it acts.

    Returns:
        How many transitions were put in.

    Raises:
        ConfigError: when the storage keeps rollouts, has too little room, or stores what
            demonstrations do not have.
        SpaceError: when the data was recorded in other spaces.
        DataError: when the data is not what its spaces declare.
    """
    if storage.rollout_steps is not None:
        raise ConfigError(
            f"demonstrations need a replay storage; {type(storage).__name__} keeps rollouts of "
            "the policy that learns"
        )
    return insert_trajectories(storage, read_demonstrations(source, actor), actor)


def insert_trajectories(
    storage: AnyStorage, trajectories: Iterable[Trajectory], actor: Actor | None = None
) -> int:
    """Insert trajectories side by side, one after the other in each environment's rows.

    Where those of one environment are used up first, rows are added that are no transitions.

    Args:
        storage: an allocated replay storage.
        trajectories: with actions as the storage keeps them.
        actor: fills recurrent states; only needed where some are stored.

    Returns:
        How many transitions were put in.

    Raises:
        ConfigError: when the storage has too little room, or stores what trajectories do not have.
        DataError: when there is no trajectory.
    """
    spec = storage.spec
    if spec is None:
        raise ConfigError(
            f"the {type(storage).__name__} is not allocated yet; fill it when its Trainer was made"
        )
    if spec.extras:
        raise ConfigError(
            f"demonstrations have no {sorted(spec.extras)}, which the algorithm stores with each "
            "step; choose an algorithm that stores nothing of its own"
        )
    before, count = storage.num_transitions, 0
    storage.cut()
    with torch.no_grad():
        for transition in _Rows(spec, iter(trajectories), actor):
            storage.insert_transition(transition)
            count += int(np.count_nonzero(transition.valid))
    storage.cut()
    if count == 0:
        raise DataError("the demonstrations hold no transition; expected at least one")
    if storage.num_transitions < before + count:
        raise ConfigError(
            f"storage.size is too small: {count} demonstrated transitions do not fit into it; "
            "make it larger, so that there is room for what is collected too"
        )
    return count


class _Rows:
    """Steps of several environments, each of which lives through trajectories in turn."""

    def __init__(
        self, spec: StorageSpec, trajectories: Iterator[Trajectory], actor: Actor | None
    ) -> None:
        self._spec = spec
        self._left = trajectories
        self._actor = actor if spec.state_sizes else None
        if spec.state_sizes and actor is None:
            raise ConfigError("recurrent states are stored; give the actor that fills them")
        self._playing = [next(trajectories, None) for _ in range(spec.num_envs)]
        self._step = [0] * spec.num_envs

    def __iter__(self) -> Iterator[Transition]:
        spec, envs = self._spec, range(self._spec.num_envs)
        # What an environment without a trajectory shows: the last it saw, or zeros.
        idle = [_zeros(spec.observation) for _ in envs]
        state: State = {} if self._actor is None else self._actor.actor_initial_states(len(envs))
        while any(playing is not None for playing in self._playing):
            now = [self._observed(env, 0, idle[env]) for env in envs]
            after = [self._observed(env, 1, idle[env]) for env in envs]
            valid = np.array([playing is not None for playing in self._playing])
            start = valid & (np.array(self._step) == 0)
            actions, rewards, terminated, truncated = self._done()
            for env in (terminated | truncated).nonzero()[0]:
                self._playing[env], self._step[env] = next(self._left, None), -1
                idle[env] = after[env]
            self._step = [step + 1 for step in self._step]
            ended = terminated | truncated
            observation = _stacked(now)
            yield Transition(
                observation=observation,
                action=actions,
                reward=rewards,
                terminated=terminated,
                truncated=truncated,
                valid=valid,
                episode_start=start,
                next_observation=_stacked([self._observed(env, 0, idle[env]) for env in envs]),
                final_observation=_stacked(after) if ended.any() else None,
                state=state,
                extras={},
            )
            state = self._after(observation, actions, state, start)

    def _observed(self, env: int, ahead: int, idle: dict[str, Array]) -> dict[str, Array]:
        playing, row = self._playing[env], self._step[env] + ahead
        if playing is None:
            return idle
        if isinstance(playing.observation, Mapping):
            return {key: part[row].numpy() for key, part in playing.observation.items()}
        return {"": playing.observation[row].numpy()}

    def _done(self) -> tuple[Tensor, Array, _Mask, _Mask]:
        """Return actions, rewards and ends of this step, `(B, ...)`."""
        action = self._spec.action
        actions = torch.zeros((self._spec.num_envs, *action.shape), dtype=action.dtype)
        rewards = np.zeros(self._spec.num_envs, np.float32)
        terminated, truncated = (np.zeros(self._spec.num_envs, np.bool_) for _ in range(2))
        for env, (playing, step) in enumerate(zip(self._playing, self._step, strict=True)):
            if playing is None:
                continue
            actions[env] = playing.action[step]
            rewards[env] = playing.reward[step]
            if step == len(playing) - 1:
                terminated[env], truncated[env] = playing.terminated, not playing.terminated
        return actions, rewards, terminated, truncated

    def _after(
        self, observation: ArrayObservation, action: Tensor, state: State, start: Array
    ) -> State:
        """Return what the actor remembers after what was demonstrated."""
        actor = self._actor
        if actor is None:
            return {}
        starts = torch.from_numpy(start).to(actor.device)
        inputs = to_tensors(observation, actor.device)
        _, after = actor.distribution(inputs, state, starts)
        return actor.remember_action(inputs, action.to(actor.device), state, after, starts)


def _zeros(observation: TensorSpec | Mapping[str, TensorSpec]) -> dict[str, Array]:
    leaves = {"": observation} if isinstance(observation, TensorSpec) else observation
    return {key: torch.zeros(leaf.shape, dtype=leaf.dtype).numpy() for key, leaf in leaves.items()}


def _stacked(rows: list[dict[str, Array]]) -> ArrayObservation:
    columns = {key: np.stack([row[key] for row in rows]) for key in rows[0]}
    return columns.get("", columns)
