"""Rollouts of several tasks: collecting them, and grouping their rows by task."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from rl_core.batch import PREPARED_COLUMNS, Rollout, RolloutBatch
from rl_core.env import EnvStep, VecEnv
from rl_core.errors import ConfigError, EnvironmentFaultError
from rl_core.types import Observation, map_observation, to_flags, to_numbers, to_tensors

ChooseActions: TypeAlias = Callable[[Observation], tuple[Tensor, Tensor]]
"""From observations `(B, ...)` to the actor's and the environment's actions, each `(B, ...)`."""

TreeT = TypeVar("TreeT")

_LONGEST = 100_000


@torch.no_grad()
def collect_episodes(
    envs: VecEnv,
    choose: ChooseActions,
    num_episodes: int | npt.NDArray[np.int64],
    device: torch.device,
    *,
    seed: int | None = None,
    before_step: Callable[[], None] = lambda: None,
    after_step: Callable[[EnvStep, npt.NDArray[np.bool_]], None] = lambda *_: None,
) -> Rollout:
    """Play whole episodes in every environment.

    Args:
        envs: reset first.
        choose: the policy.
        num_episodes: in each environment, `(B,)` where these differ and some may play none; what
            one does after its last episode has ``valid=False``.
        device: where the rollout is wanted.
        seed: of the reset; None goes on with the environments' own generators.
        before_step: called before each step.
        after_step: called after each, with the rows whose episode it ended, `(B,)`.

    Raises:
        ConfigError: for numbers that are not whole or of another shape, or where all are below 1.
        EnvironmentFaultError: when an episode does not end.
    """
    left = np.array(num_episodes)
    is_fitting = left.dtype.kind in "iu" and left.shape in ((), (envs.num_envs,))
    if not is_fitting or left.min() < 0 or left.max() < 1:
        raise ConfigError(
            "num_episodes must be a whole number of at least 1, or an array of one number for each "
            f"of the {envs.num_envs} environments, got {num_episodes!r}"
        )
    observation = to_tensors(envs.reset(seed), device)
    left = np.broadcast_to(left, envs.num_envs).copy()
    longest = _LONGEST * int(left.max())
    begins = np.ones(envs.num_envs, np.bool_)
    rows: dict[str, list[Any]] = {name: [] for name in _COLUMNS}
    finals: list[tuple[Tensor, Observation]] = []
    while left.any():
        if len(rows["action"]) >= longest:
            raise EnvironmentFaultError(
                f"{envs.spec_id}: an episode has not ended after {_LONGEST} steps; give the "
                "environment a time limit"
            )
        before_step()
        action, env_action = choose(observation)
        env_action = env_action.clone()  # which an environment may change, as `action` may not be
        step = envs.step(env_action if envs.array_type == "torch" else env_action.cpu().numpy())
        terminated, truncated = to_flags(step.terminated), to_flags(step.truncated)
        valid, ended = to_flags(step.valid) & (left > 0), terminated | truncated
        if step.final_observation is not None and ended.any():
            index = torch.from_numpy(np.flatnonzero(ended)).to(device)
            final = to_tensors(step.final_observation, device)
            place = torch.stack([torch.full_like(index, len(rows["action"])), index], dim=1)
            finals.append((place, map_observation(lambda part, i=index: part[i], final)))  # type: ignore[misc]  # a default of a lambda
        reward = np.where(valid, to_numbers(step.reward), 0.0).astype(np.float32)
        columns = (observation, action, reward, terminated, truncated, valid, begins)
        for name, value in zip(_COLUMNS, columns, strict=True):
            rows[name].append(value)
        # Where final observations are separate, ended rows show the next episode's first one.
        begins = ~to_flags(step.valid) if step.final_observation is None else ended
        left = left - (ended & valid)
        after_step(step, ended & valid)
        observation = to_tensors(step.observation, device)
    nothing = map_observation(lambda part: part[:0], observation)
    places = [place for place, _ in finals]
    return Rollout(
        observation=stacked(rows["observation"]),
        next_observation=observation,
        action=torch.stack(rows["action"]),
        **{
            name: torch.from_numpy(np.stack(rows[name])).to(device)  # type: ignore[arg-type]  # arrays
            for name in _COLUMNS[2:]
        },
        state={},
        final_index=torch.cat([torch.zeros(0, 2, dtype=torch.int64, device=device), *places]),
        final_observation=tree_map(
            lambda *parts: torch.cat(parts), nothing, *(final for _, final in finals)
        ),
    )


_COLUMNS = ("observation", "action", "reward", "terminated", "truncated", "valid", "episode_start")


def split_tasks(column: Tensor, axis: int, num_tasks: int) -> Tensor:
    """Split an axis of ``B`` rows into those of M tasks: `(..., B, ...)` to `(..., M, B / M, ...)`.

    Rows of a task lie beside each other.
    """
    rows = column.shape[axis] // num_tasks
    return column.reshape(*column.shape[:axis], num_tasks, rows, *column.shape[axis + 1 :])


def join_tasks(column: Tensor) -> Tensor:
    """Undo `split_tasks` with the tasks in front: from `(M, T, B / M, ...)` to `(T, B, ...)`."""
    return column.movedim(0, 1).flatten(1, 2)


def group_by_task(column: Tensor, num_tasks: int) -> Tensor:
    """Give each task its samples: from `(T, B, ...)` to `(M, T B / M, ...)`, as a copy."""
    by_task = split_tasks(column, 1, num_tasks).movedim(1, 0)
    return by_task.clone(memory_format=torch.contiguous_format).flatten(1, 2)


def next_observations(rollout: Rollout) -> Tensor:
    """Return what followed each step of a rollout of plain observations, `(T, B, ...)`."""
    assert isinstance(rollout.observation, Tensor)
    assert isinstance(rollout.next_observation, Tensor)
    assert isinstance(rollout.final_observation, Tensor)
    following = torch.cat([rollout.observation[1:], rollout.next_observation.unsqueeze(0)])
    row, env = rollout.final_index.unbind(1)
    following[row, env] = rollout.final_observation
    return following


def task_batch(rollout: Rollout, prepared: Mapping[str, Tensor], num_tasks: int) -> RolloutBatch:
    """Return the batch of every task, with columns `(M, N, ...)`.

    Args:
        rollout: `(T, B, ...)`.
        prepared: further columns `(T, B, ...)`; names unknown to a batch become extras.
        num_tasks: M.
    """
    batch = RolloutBatch(
        observation=rollout.observation,
        action=rollout.action,
        mask=rollout.valid.to(torch.float32),
        episode_start=rollout.episode_start,
        state={},
        extras={name: part for name, part in prepared.items() if name not in PREPARED_COLUMNS},
        **{name: prepared[name] for name in PREPARED_COLUMNS},
    )
    by_task: RolloutBatch = tree_map(lambda column: group_by_task(column, num_tasks), batch)
    return by_task


def stacked(trees: Sequence[TreeT]) -> TreeT:
    """Stack batches or observations along a new first axis."""
    tree: TreeT = tree_map(lambda *columns: torch.stack(columns), *trees)
    return tree


def one_rollout(batch: RolloutBatch, index: int) -> RolloutBatch:
    """Take one rollout `(M, N, ...)` of a batch `(K + 1, M, N, ...)`."""
    rollout: RolloutBatch = tree_map(lambda column: column[index], batch)
    return rollout
